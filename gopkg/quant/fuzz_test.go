package quant

import (
	"math"
	"testing"
)

// FuzzDecode protects readers of tables: any bytes of a row's length decode,
// and the way over Unpack gives the same numbers.
func FuzzDecode(f *testing.F) {
	f.Add(uint8(0), uint8(3), []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})
	f.Add(uint8(5), uint8(9), make([]byte, 64))
	f.Add(uint8(6), uint8(17), []byte("0123456789abcdefghijklmnopqrstuvwxyz"))
	f.Fuzz(func(t *testing.T, kind, columns uint8, src []byte) {
		k, dim := Kind(kind), int(columns)
		width, err := k.RowBytes(dim)
		if err != nil {
			if err := k.DecodeRows(nil, src, dim); err == nil {
				t.Fatal("decoded rows that have no width")
			}
			return
		}
		rows := len(src) / width
		dst := make([]float32, rows*dim)
		if err := k.DecodeRows(dst, src, dim); (err == nil) != (len(src) == rows*width) {
			t.Fatalf("%d bytes in rows of %d: %v", len(src), width, err)
		}
		if err := k.DecodeRows(dst, src[:rows*width], dim); err != nil {
			t.Fatal(err)
		}
		want := make([]float32, dim)
		for i := range rows {
			row := src[i*width:][:width]
			k.Unpack(want, row, 0)
			scale, bias := k.Scale(row, dim)
			for j, x := range dst[i*dim:][:dim] {
				w := want[j]
				if k.Quantised() {
					w = FMA(scale, w, bias)
				}
				if x != w && (x == x || w == w) || x == x && math.Signbit(float64(x)) != math.Signbit(float64(w)) {
					t.Fatalf("%v: row %d, column %d: %x by decoding, %x by hand", k, i, j, x, w)
				}
			}
		}
	})
}

// FuzzEncode protects writers: what was encoded is within a step of what went
// in, or it was refused.
func FuzzEncode(f *testing.F) {
	f.Add(uint8(4), []byte{0, 0, 128, 63, 0, 0, 0, 64})
	f.Add(uint8(5), []byte{0, 0, 128, 127, 1, 0, 0, 0, 1, 0, 0, 128})
	f.Add(uint8(6), []byte{0, 0, 128, 63, 0, 0, 0, 0x47, 1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, kind uint8, numbers []byte) {
		k, src := Kind(kind), floats(numbers)
		width, err := k.RowBytes(len(src))
		if err != nil {
			return
		}
		row := make([]byte, width)
		if err := k.EncodeRows(row, src, len(src)); err != nil {
			return
		}
		got := make([]float32, len(src))
		if err := k.DecodeRows(got, row, len(src)); err != nil {
			t.Fatal(err)
		}
		scale, _ := k.Scale(row, len(src))
		for i, x := range src {
			away := math.Abs(float64(got[i]) - float64(x))
			size := math.Abs(float64(x))
			var most float64
			switch k {
			case Float16:
				if size >= 65520 {
					continue
				}
				most = size/1024 + 1.0/(1<<24)
			case BFloat16:
				most = size/128 + 1e-38
			case Int8, UInt8:
				// A subnormal scale may be half of what it should be.
				most = math.Abs(float64(scale))*0.51 + size*1e-6 + 1e-36
				if k == UInt8 {
					most += 1e-8 // what torch adds to the range
				}
			case Int4:
				continue // float16's rounding of a bias may be far from a row of one value
			}
			if x == x && !(away <= most) && size <= math.MaxFloat32/256 {
				t.Fatalf("%v: %g came back as %g; scale %g", k, x, got[i], scale)
			}
		}
	})
}
