package quant

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"loaderx/gopkg/errs"
)

// vector is a case that torch computed; testdata/write_torch.py says how.
type vector struct {
	Kind    string
	Dim     int
	Regime  string
	Source  []byte
	Rows    []byte
	Decoded []byte
}

func vectors(t *testing.T) []vector {
	t.Helper()
	var all []vector
	for _, path := range []string{"testdata/torch.json", os.Getenv("QUANT_VECTORS")} {
		if path == "" {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var some []vector
		if err := json.Unmarshal(text, &some); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all = append(all, some...)
	}
	return all
}

func floats(b []byte) []float32 {
	f := make([]float32, len(b)/4)
	for i := range f {
		f[i] = math.Float32frombits(le.Uint32(b[4*i:]))
	}
	return f
}

func kindOf(t *testing.T, name string) Kind {
	t.Helper()
	k, err := ParseKind(name)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestRowsHaveTheBitsOfTorch(t *testing.T) {
	for _, v := range vectors(t) {
		k := kindOf(t, v.Kind)
		src := floats(v.Source)
		rows := make([]byte, len(v.Rows))
		if err := k.EncodeRows(rows, src, v.Dim); err != nil {
			t.Fatalf("%s %d %s: %v", v.Kind, v.Dim, v.Regime, err)
		}
		for i := range rows {
			if rows[i] != v.Rows[i] {
				width, _ := k.RowBytes(v.Dim)
				t.Fatalf("%s %d %s: byte %d of row %d: got %#x, torch has %#x\nsource %v\nrow %v\ntorch %v", v.Kind, v.Dim, v.Regime,
					i%width, i/width, rows[i], v.Rows[i], src[i/width*v.Dim:][:v.Dim], rows[i/width*width:][:width], v.Rows[i/width*width:][:width])
			}
		}
		got := make([]float32, len(src))
		if err := k.DecodeRows(got, v.Rows, v.Dim); err != nil {
			t.Fatal(err)
		}
		for i, want := range floats(v.Decoded) {
			if math.Float32bits(got[i]) != math.Float32bits(want) {
				t.Fatalf("%s %d %s: column %d: decoded %x, torch has %x", v.Kind, v.Dim, v.Regime, i%v.Dim, got[i], want)
			}
		}
	}
}

func TestInt8CodesAreSymmetricAndClose(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, dim := range []int{1, 2, 7, 128} {
		for _, size := range []float32{1, 1e30, 1e-30, 1e-44} {
			src := make([]float32, dim)
			for i := range src {
				src[i] = float32(rng.NormFloat64()) * size
			}
			row := make([]byte, dim+4)
			if err := Int8.EncodeRows(row, src, dim); err != nil {
				t.Fatal(err)
			}
			top := float32(0)
			for _, x := range src {
				top = max(top, float32(math.Abs(float64(x))))
			}
			scale, _ := Int8.Scale(row, dim)
			if scale != top/127 {
				t.Fatalf("scale %g of rows up to %g", scale, top)
			}
			got := make([]float32, dim)
			if err := Int8.DecodeRows(got, row, dim); err != nil {
				t.Fatal(err)
			}
			for i, x := range src {
				if code := int8(row[i]); code == -128 || size > 1e-40 && math.Abs(float64(got[i]-x)) > float64(scale)*0.5001 {
					t.Fatalf("%g became code %d, %g; scale %g", x, code, got[i], scale)
				}
			}
		}
	}
	row := make([]byte, 5)
	if err := Int8.EncodeRows(row, []float32{0}, 1); err != nil || row[0] != 0 || row[4] != 0 {
		t.Fatalf("a row of zeros: %v, %v", row, err)
	}
}

func TestOddInt4RowsAreTorchsWithoutTheLastColumn(t *testing.T) {
	src := []float32{0, 1.5, 3, 7.5, 15}
	row := make([]byte, 3+4)
	if err := Int4.EncodeRows(row, src, 5); err != nil {
		t.Fatal(err)
	}
	want := []byte{0x20, 0x83, 0x0f, 0x00, 0x3c, 0, 0}
	if string(row) != string(want) {
		t.Fatalf("got % x, want % x", row, want)
	}
	got := make([]float32, 5)
	if err := Int4.DecodeRows(got, row, 5); err != nil || got[4] != 15 || got[1] != 2 {
		t.Fatalf("%v, %v", got, err)
	}
}

func TestNumbersThatAKindCannotHoldAreRefused(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	cases := []struct {
		name string
		kind Kind
		src  []float32
		ok   bool
	}{
		{"NaN", Int8, []float32{1, nan}, false},
		{"infinity", Int8, []float32{-inf, 1}, false},
		{"NaN", UInt8, []float32{nan, 1}, false},
		{"infinity", UInt8, []float32{1, inf}, false},
		{"a range above float32", UInt8, []float32{-3e38, 3e38}, false},
		{"NaN", Int4, []float32{nan, 1}, false},
		{"a minimum below float16", Int4, []float32{-65520, 0}, false},
		{"a scale above float16", Int4, []float32{0, 1e6}, false},
		{"everything", Float16, []float32{nan, inf}, true},
		{"everything", BFloat16, []float32{nan, -inf}, true},
		{"everything", Float32, []float32{nan, 3e38}, true},
		{"the largest", Int8, []float32{-math.MaxFloat32, math.MaxFloat32}, true},
	}
	for _, c := range cases {
		t.Run(c.kind.String()+" "+c.name, func(t *testing.T) {
			width, _ := c.kind.RowBytes(2)
			err := c.kind.EncodeRows(make([]byte, 2*width), append([]float32{0, 1}, c.src...), 2)
			if c.ok && err != nil || !c.ok && !errors.Is(err, errs.ErrArgument) {
				t.Fatalf("got %v", err)
			}
		})
	}
}

func TestLengthsThatDoNotAgreeAreRefused(t *testing.T) {
	for k := range Kind(kinds) {
		width, err := k.RowBytes(3)
		if err != nil {
			t.Fatal(err)
		}
		for name, err := range map[string]error{
			"encode, short": k.EncodeRows(make([]byte, 2*width-1), make([]float32, 6), 3),
			"encode, long":  k.EncodeRows(make([]byte, 3*width), make([]float32, 6), 3),
			"encode, split": k.EncodeRows(make([]byte, 2*width), make([]float32, 7), 3),
			"decode, short": k.DecodeRows(make([]float32, 6), make([]byte, 2*width-1), 3),
			"decode, split": k.DecodeRows(make([]float32, 5), make([]byte, 2*width), 3),
			"no columns":    k.DecodeRows(nil, nil, 0),
			"too wide":      k.EncodeRows(nil, nil, math.MaxInt),
		} {
			if !errors.Is(err, errs.ErrArgument) {
				t.Errorf("%v %s: %v", k, name, err)
			}
		}
	}
	if _, err := ParseKind("fp8"); !errors.Is(err, errs.ErrType) {
		t.Errorf("unknown name: %v", err)
	}
	if err := Kind(99).DecodeRows(nil, nil, 1); !errors.Is(err, errs.ErrType) {
		t.Errorf("unknown kind: %v", err)
	}
}

func TestDimIsTheColumnsOfARowsBytes(t *testing.T) {
	for kind := range Kind(kinds) {
		for dim := 1; dim < 70; dim++ {
			width, err := kind.RowBytes(dim)
			if err != nil {
				t.Fatal(err)
			}
			want := dim
			if kind == Int4 {
				want += dim % 2
			}
			if got := kind.Dim(int64(width)); got != want {
				t.Errorf("%s rows of %d bytes have %d columns, want %d", kind, width, got, want)
			}
		}
		for _, width := range []int64{-1, 0, 1<<62 + 1} {
			if got := kind.Dim(width); got != 0 {
				t.Errorf("%s rows of %d bytes have %d columns", kind, width, got)
			}
		}
	}
	if Float64.Dim(12) != 0 || UInt8.Dim(8) != 0 || Int4.Dim(4) != 0 || Kind(kinds).Dim(16) != 0 {
		t.Error("columns of rows that can't be")
	}
}
