package quant

import (
	"fmt"
	"math"

	"loaderx/gopkg/errs"
)

// DecodeRows decodes src, rows of dim columns one behind the other, into dst,
// dim numbers for each row. Every sequence of bytes of the right length is
// rows: codes with a scale that is no number decode to NaN. A Float64 row is
// rounded. It returns errs.ErrArgument for lengths that do not agree.
func (k Kind) DecodeRows(dst []float32, src []byte, dim int) error {
	width, err := k.RowBytes(dim)
	if err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	n := len(dst) / dim
	if len(dst)%dim != 0 || len(src)/width != n || len(src)%width != 0 {
		return fmt.Errorf("decode %d bytes in rows of %d into %d numbers, want %d for each row: %w",
			len(src), width, len(dst), dim, errs.ErrArgument)
	}
	if !k.Quantised() {
		// Nothing of a row is its own, so all columns are one long row.
		k.decode(dst, src)
		return nil
	}
	for i := range n {
		k.decode(dst[i*dim:][:dim], src[i*width:][:width])
	}
	return nil
}

// DecodeAt decodes rows of dim columns that begin at places of base into dst,
// one behind the other, otherwise as DecodeRows does. It panics for a place
// outside base.
func (k Kind) DecodeAt(dst []float32, base []byte, places []int64, dim int) error {
	width, err := k.RowBytes(dim)
	if err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	if len(dst)/dim != len(places) || len(dst)%dim != 0 {
		return fmt.Errorf("decode %d rows of %d columns into %d numbers: %w", len(places), dim, len(dst), errs.ErrArgument)
	}
	for i, p := range places {
		k.decode(dst[i*dim:][:dim], base[p:][:width])
	}
	return nil
}

// decode decodes one row: the wide part by assembly, the rest in Go.
func (k Kind) decode(dst []float32, row []byte) {
	done := k.decodeWide(dst, row)
	if k.Quantised() {
		scale, bias := k.Scale(row, len(dst))
		for i, code := range k.codes(dst, row, done) {
			dst[done+i] = FMA(scale, code, bias)
		}
		return
	}
	k.codes(dst, row, done)
}

// Scale returns the numbers that a quantised row of dim columns is scaled by:
// a column is code*scale+bias. The bias of Int8 is -0, which changes nothing.
func (k Kind) Scale(row []byte, dim int) (scale, bias float32) {
	tail := row[k.ScaleAt(dim):]
	switch k {
	case Int8:
		return math.Float32frombits(le.Uint32(tail)), float32(math.Copysign(0, -1))
	case UInt8:
		return math.Float32frombits(le.Uint32(tail)), math.Float32frombits(le.Uint32(tail[4:]))
	case Int4:
		return HalfToFloat(le.Uint16(tail)), HalfToFloat(le.Uint16(tail[2:]))
	}
	return 1, 0
}

// Unpack writes the columns of one row from column from on to dst[from:], as
// they are stored: codes of quantised kinds are not scaled. dst has as many
// elements as the row has columns.
func (k Kind) Unpack(dst []float32, row []byte, from int) { k.codes(dst, row, from) }

// codes is Unpack and returns what it wrote.
func (k Kind) codes(dst []float32, row []byte, from int) []float32 {
	out := dst[from:]
	switch k {
	case Float32:
		row = row[4*from:]
		for i := range out {
			out[i] = math.Float32frombits(le.Uint32(row))
			row = row[4:]
		}
	case Float64:
		for i := range out {
			out[i] = float32(math.Float64frombits(le.Uint64(row[8*(from+i):])))
		}
	case Float16:
		for i := range out {
			out[i] = HalfToFloat(le.Uint16(row[2*(from+i):]))
		}
	case BFloat16:
		for i := range out {
			out[i] = BFloatToFloat(le.Uint16(row[2*(from+i):]))
		}
	case Int8:
		for i := range out {
			out[i] = float32(int8(row[from+i]))
		}
	case UInt8:
		for i := range out {
			out[i] = float32(row[from+i])
		}
	case Int4:
		for i := range out {
			at := from + i
			out[i] = float32(row[at/2] >> (4 * (at & 1)) & 15)
		}
	}
	return out
}
