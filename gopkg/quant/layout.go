package quant

import (
	"fmt"
	"math"

	"loaderx/gopkg/errs"
)

// Kind says how a row of numbers is stored. FORMAT.md shows the bytes.
type Kind uint8

// The kinds. Their numbers are part of the C ABI and of MEFTNAT1 files: new kinds come last, and
// none is ever taken out. All numbers in rows are little-endian; dim is the number of columns.
const (
	// Float32 rows are the numbers themselves.
	Float32 Kind = iota
	// Float64 rows are for tables that were float64 to begin with.
	Float64
	// Float16 rows are IEEE half precision, rounded to nearest even.
	Float16
	// BFloat16 rows are the upper halves of float32, rounded to nearest even.
	BFloat16
	// Int8 rows are dim signed codes and then one float32 scale.
	Int8
	// UInt8 rows are dim unsigned codes, then a float32 scale and a float32
	// bias: torch's embedding_bag_byte_prepack.
	UInt8
	// Int4 rows are dim codes of four bits, the even column in a byte's low
	// half, then a float16 scale and a float16 bias: torch's
	// embedding_bag_4bit_prepack, and the same for an odd dim, whose last high
	// half is zero.
	Int4

	kinds = iota
)

// Sizes of what follows a row's codes.
const (
	int8Tail  = 4 // float32 scale
	uint8Tail = 8 // float32 scale, float32 bias
	int4Tail  = 4 // float16 scale, float16 bias
)

// maxRowBytes is the widest row; MEFTNAT1 tables have the same limit.
const maxRowBytes = 1 << 30

var layouts = [kinds]struct {
	name string
	bits int // of one column
	tail int // bytes behind the columns
}{
	Float32:  {"fp32", 32, 0},
	Float64:  {"fp64", 64, 0},
	Float16:  {"fp16", 16, 0},
	BFloat16: {"bf16", 16, 0},
	Int8:     {"int8", 8, int8Tail},
	UInt8:    {"uint8_rowwise", 8, uint8Tail},
	Int4:     {"int4_rowwise", 4, int4Tail},
}

// String returns the name that ParseKind takes.
func (k Kind) String() string {
	if k >= kinds {
		return fmt.Sprintf("Kind(%d)", uint8(k))
	}
	return layouts[k].name
}

// ParseKind returns the kind of a name: fp32, fp64, fp16, bf16, int8,
// uint8_rowwise or int4_rowwise.
func ParseKind(name string) (Kind, error) {
	names := ""
	for k := range Kind(kinds) {
		if layouts[k].name == name {
			return k, nil
		}
		names += " " + layouts[k].name
	}
	return 0, fmt.Errorf("row kind %q, want one of%s: %w", name, names, errs.ErrType)
}

// Valid reports whether k is one of the kinds.
func (k Kind) Valid() bool { return k < kinds }

// Quantised reports whether rows hold codes and the numbers that scale them.
func (k Kind) Quantised() bool { return k.Valid() && layouts[k].tail > 0 }

// Bits returns the width of one column; it panics for an invalid kind.
func (k Kind) Bits() int { return layouts[k].bits }

// ScaleAt returns where in a row of dim columns the scale begins, which is the
// number of bytes before it. For kinds without a scale that is the whole row.
func (k Kind) ScaleAt(dim int) int { return (dim*layouts[k].bits + 7) / 8 }

// Dim returns the columns of a row of so many bytes, 0 if no row of the kind has that
// width. An Int4 row of an odd number is as wide as that of one more, which is returned.
func (k Kind) Dim(rowBytes int64) int {
	if !k.Valid() || rowBytes > maxRowBytes {
		return 0
	}
	dim := int((rowBytes - int64(layouts[k].tail)) * 8 / int64(layouts[k].bits))
	if width, err := k.RowBytes(dim); err != nil || int64(width) != rowBytes {
		return 0
	}
	return dim
}

// RowBytes returns the width of a row of dim columns. It returns errs.ErrType
// for an unknown kind, and errs.ErrArgument for a dim below 1 or a row above
// 1 GiB.
func (k Kind) RowBytes(dim int) (int, error) {
	if !k.Valid() {
		return 0, fmt.Errorf("row kind %d of %d: %w", uint8(k), kinds, errs.ErrType)
	}
	if dim < 1 || dim > math.MaxInt/64 || k.ScaleAt(dim) > maxRowBytes-layouts[k].tail {
		return 0, fmt.Errorf("%s rows of %d columns, want 1 or more and at most %d bytes: %w", k, dim, maxRowBytes, errs.ErrArgument)
	}
	return k.ScaleAt(dim) + layouts[k].tail, nil
}
