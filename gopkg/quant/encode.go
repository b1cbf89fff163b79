package quant

import (
	"encoding/binary"
	"fmt"
	"math"

	"loaderx/gopkg/errs"
)

var le = binary.LittleEndian

// EncodeRows encodes src, rows of dim numbers one behind the other, into dst,
// which must be exactly as long as the encoded rows. It returns
// errs.ErrArgument for a number that the kind can't hold, naming its row; dst
// then holds the rows before it.
func (k Kind) EncodeRows(dst []byte, src []float32, dim int) error {
	return k.EncodeRowsFrom(0, dst, src, dim)
}

// EncodeRowsFrom is EncodeRows for a piece of a table: errors count rows from
// first on.
func (k Kind) EncodeRowsFrom(first int64, dst []byte, src []float32, dim int) error {
	width, err := k.RowBytes(dim)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	n := len(src) / dim
	if len(src)%dim != 0 || len(dst)/width != n || len(dst)%width != 0 {
		return fmt.Errorf("encode %d numbers in rows of %d into %d bytes, want %d for each row: %w",
			len(src), dim, len(dst), width, errs.ErrArgument)
	}
	encode := encoders[k]
	for i := range n {
		if err := encode(dst[i*width:][:width], src[i*dim:][:dim]); err != nil {
			return fmt.Errorf("encode row %d as %s: %w", first+int64(i), k, err)
		}
	}
	return nil
}

var encoders = [kinds]func(dst []byte, src []float32) error{
	Float32: func(dst []byte, src []float32) error {
		for i, x := range src {
			le.PutUint32(dst[4*i:], math.Float32bits(x))
		}
		return nil
	},
	Float64: func(dst []byte, src []float32) error {
		for i, x := range src {
			le.PutUint64(dst[8*i:], math.Float64bits(float64(x)))
		}
		return nil
	},
	Float16: func(dst []byte, src []float32) error {
		for i, x := range src {
			le.PutUint16(dst[2*i:], FloatToHalf(x))
		}
		return nil
	},
	BFloat16: func(dst []byte, src []float32) error {
		for i, x := range src {
			le.PutUint16(dst[2*i:], FloatToBFloat(x))
		}
		return nil
	},
	Int8:  encodeInt8,
	UInt8: encodeUInt8,
	Int4:  encodeInt4,
}

// finite returns an error for the first number that is NaN or infinite.
func finite(src []float32) error {
	for i, x := range src {
		if x-x != 0 {
			return fmt.Errorf("column %d is %v: %w", i, x, errs.ErrArgument)
		}
	}
	return nil
}

// nearest rounds a small number to the nearest integer, to even on ties, and
// returns its low eight bits: where the last bit of a float32 is worth 1, the
// sum rounds as it should. Callers convert products, lest they be fused with it.
func nearest(v float32) byte { return byte(math.Float32bits(v + 3<<22)) }

func encodeInt8(dst []byte, src []float32) error {
	var top float32
	for _, x := range src {
		top = max(top, float32(math.Abs(float64(x))))
	}
	if top-top != 0 {
		return finite(src)
	}
	scale := top / 127
	le.PutUint32(dst[len(src):], math.Float32bits(scale))
	if scale == 0 {
		clear(dst[:len(src)])
		return nil
	}
	for i, x := range src {
		v := x / scale
		// A subnormal scale is coarse enough to take a code past 127.
		if v > 127 {
			v = 127
		} else if v < -127 {
			v = -127
		}
		dst[i] = nearest(v)
	}
	return nil
}

// bounds returns the least and the largest number, or an error for NaN or
// infinity.
func bounds(src []float32) (least, most float32, err error) {
	least, most = math.MaxFloat32, -math.MaxFloat32
	var odd float32 // NaN as soon as a number is not finite
	for _, x := range src {
		odd += x - x
		if x < least {
			least = x
		}
		if x > most {
			most = x
		}
	}
	switch {
	case odd != odd:
		return 0, 0, finite(src)
	case least == 0 || most == 0:
		least, most = zeroBounds(src)
	}
	return least, most, nil
}

// zeroBounds is bounds where one of them is a zero. Which of two zeros it takes
// shows in the sign of a bias or of a scale of zero; it is chosen as FBGEMM's
// AVX2 code does, which keeps the last extreme number in each of eight lanes,
// and then the first among those and what is left over.
func zeroBounds(src []float32) (least, most float32) {
	var low, high [8]float32
	for i := range low {
		low[i], high[i] = math.MaxFloat32, -math.MaxFloat32
	}
	whole := len(src) &^ 7
	for i := 0; i < whole; i += 8 {
		for j, x := range src[i : i+8] {
			if !(low[j] < x) {
				low[j] = x
			}
			if !(high[j] > x) {
				high[j] = x
			}
		}
	}
	least, most = low[0], high[0]
	for j := range low {
		if low[j] < least {
			least = low[j]
		}
		if high[j] > most {
			most = high[j]
		}
	}
	for _, x := range src[whole:] {
		if x < least {
			least = x
		}
		if x > most {
			most = x
		}
	}
	return least, most
}

func encodeUInt8(dst []byte, src []float32) error {
	least, most, err := bounds(src)
	if err != nil {
		return err
	}
	width := most - least
	if math.IsInf(float64(width), 0) {
		return fmt.Errorf("from %v to %v is more than float32 holds: %w", least, most, errs.ErrArgument)
	}
	le.PutUint32(dst[len(src):], math.Float32bits(width/255))
	le.PutUint32(dst[len(src)+4:], math.Float32bits(least))
	inverse := 255 / (width + 1e-8)
	for i, x := range src {
		dst[i] = nearest(float32((x - least) * inverse))
	}
	return nil
}

func encodeInt4(dst []byte, src []float32) error {
	least, most, err := bounds(src)
	if err != nil {
		return err
	}
	bias := FloatToHalf(least)
	least = HalfToFloat(bias)
	scale := float32(1)
	if width := most - least; width != 0 {
		scale = HalfToFloat(FloatToHalf(width / 15))
	}
	if least-least != 0 || scale-scale != 0 {
		return fmt.Errorf("minimum %v and scale %v are more than float16 holds: %w", least, scale, errs.ErrArgument)
	}
	inverse := 1 / scale
	if scale == 0 || math.IsInf(float64(inverse), 0) {
		scale, inverse = 1, 1
	}
	at := Int4.ScaleAt(len(src))
	le.PutUint16(dst[at:], FloatToHalf(scale))
	le.PutUint16(dst[at+2:], bias)
	clear(dst[:at])
	for i, x := range src {
		v := float32((x - least) * inverse)
		if v > 15 {
			v = 15
		} else if v < 0 {
			v = 0
		}
		dst[i/2] |= nearest(v) << (4 * (i & 1))
	}
	return nil
}
