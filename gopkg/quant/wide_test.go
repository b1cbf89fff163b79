package quant

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// sameBits compares numbers; all NaNs are the same.
func sameBits(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

func decodePure(t testing.TB, k Kind, src []byte, n, dim int) []float32 {
	t.Helper()
	defer func(was bool) { wide = was }(wide)
	wide = false
	dst := make([]float32, n*dim)
	if err := k.DecodeRows(dst, src, dim); err != nil {
		t.Fatal(err)
	}
	return dst
}

func TestAssemblyDecodesAsGoDoes(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 1))
	for k := range Kind(kinds) {
		for _, dim := range []int{1, 7, 8, 9, 15, 64, 129} {
			width, err := k.RowBytes(dim)
			if err != nil {
				t.Fatal(err)
			}
			const n = 200
			src := make([]byte, n*width)
			for i := range src {
				src[i] = byte(rng.Uint32())
			}
			want := decodePure(t, k, src, n, dim)
			got := make([]float32, n*dim)
			if err := k.DecodeRows(got, src, dim); err != nil {
				t.Fatal(err)
			}
			for i := range got {
				if !sameBits(got[i], want[i]) {
					t.Fatalf("%v of %d columns: element %d is %x, in Go %x", k, dim, i, got[i], want[i])
				}
			}
		}
	}
}

func TestEveryHalfSurvivesTheWayThereAndBack(t *testing.T) {
	all := make([]byte, 2<<16)
	for i := range 1 << 16 {
		le.PutUint16(all[2*i:], uint16(i))
	}
	wideHalf, back := make([]float32, 1<<16), make([]byte, len(all))
	for _, k := range []Kind{Float16, BFloat16} {
		if err := k.DecodeRows(wideHalf, all, 1<<16); err != nil {
			t.Fatal(err)
		}
		pure := decodePure(t, k, all, 1, 1<<16)
		if err := k.EncodeRows(back, wideHalf, 1<<16); err != nil {
			t.Fatal(err)
		}
		for i, x := range wideHalf {
			if math.Float32bits(x) != math.Float32bits(pure[i]) {
				t.Fatalf("%v %#x: %x, in Go %x", k, i, x, pure[i])
			}
			if x == x && le.Uint16(back[2*i:]) != uint16(i) {
				t.Fatalf("%v %#x: %x came back as %#x", k, i, x, le.Uint16(back[2*i:]))
			}
			if x != x && le.Uint16(back[2*i:])&0x7fff <= map[Kind]uint16{Float16: 0x7c00, BFloat16: 0x7f80}[k] {
				t.Fatalf("%v %#x: NaN came back as %#x", k, i, le.Uint16(back[2*i:]))
			}
		}
	}
}

// TestRoundingGoesToTheNearestEven looks at every midpoint between neighbours,
// and just beside it, where rounding twice would go wrong.
func TestRoundingGoesToTheNearestEven(t *testing.T) {
	for _, k := range []struct {
		name   string
		widen  func(uint16) float32
		round  func(float32) uint16
		double func(float64) uint16
		last   uint16 // the largest finite number
	}{
		{"fp16", HalfToFloat, FloatToHalf, DoubleToHalf, 0x7bff},
		{"bf16", BFloatToFloat, FloatToBFloat, DoubleToBFloat, 0x7f7f},
	} {
		for h := uint16(0); h < k.last; h++ {
			low, high := float64(k.widen(h)), float64(k.widen(h+1))
			middle := (low + high) / 2
			even := h + h&1
			for _, c := range []struct {
				x    float64
				want uint16
			}{
				{middle, even},
				{math.Nextafter(middle, 0), h},
				{math.Nextafter(middle, math.Inf(1)), h + 1},
				{low, h},
			} {
				if got := k.double(c.x); got != c.want {
					t.Fatalf("%s: %x became %#x, want %#x", k.name, c.x, got, c.want)
				}
				if got := k.double(-c.x); got != c.want|0x8000 {
					t.Fatalf("%s: %x became %#x, want %#x", k.name, -c.x, got, c.want|0x8000)
				}
				if f := float32(c.x); float64(f) == c.x && k.round(f) != c.want {
					t.Fatalf("%s: float32 %x became %#x, want %#x", k.name, f, k.round(f), c.want)
				}
			}
		}
		if k.double(math.MaxFloat64) != k.last+1 || k.round(math.MaxFloat32) != k.last+1 || k.double(5e-324) != 0 {
			t.Errorf("%s: the extremes are wrong", k.name)
		}
	}
}

func TestFMARoundsOnce(t *testing.T) {
	for _, c := range []struct{ x, y, z, want float32 }{
		// x*y is 1 + 2^-11 + 2^-24, half way between two numbers: z decides.
		{1 + 1.0/4096, 1 + 1.0/4096, 1e-30, 1 + 1.0/2048 + 1.0/(1<<23)},
		{1 + 1.0/4096, 1 + 1.0/4096, -1e-30, 1 + 1.0/2048},
		{1 + 1.0/4096, 1 + 1.0/4096, 0, 1 + 1.0/2048},
		{0x1p-100, 0x1p-100, 0, 0},
		{0x1p-75, 0x1p-75, 0x1p-149, 0x1p-148},
		{0x1.000002p-75, 0x1p-75, 0, 0x1p-149},
		{0x1p127, 2, -0x1p127, 0x1p127},
		{3, -1, 3, 0},
	} {
		if got := FMA(c.x, c.y, c.z); math.Float32bits(got) != math.Float32bits(c.want) {
			t.Errorf("fma(%x, %x, %x) = %x, want %x", c.x, c.y, c.z, got, c.want)
		}
	}
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range [][3]float32{{inf, 0, 1}, {inf, 1, -inf}, {nan, 1, 1}, {1, 1, nan}} {
		if got := FMA(c[0], c[1], c[2]); got == got {
			t.Errorf("fma%v = %v, want NaN", c, got)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	for k := range Kind(kinds) {
		const dim, n = 128, 1024
		width, err := k.RowBytes(dim)
		if err != nil {
			b.Fatal(err)
		}
		src, dst := make([]byte, n*width), make([]float32, n*dim)
		b.Run(fmt.Sprint(k), func(b *testing.B) {
			b.SetBytes(int64(len(src)))
			b.ReportAllocs()
			for b.Loop() {
				if err := k.DecodeRows(dst, src, dim); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkEncode(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	for k := range Kind(kinds) {
		const dim, n = 128, 1024
		width, err := k.RowBytes(dim)
		if err != nil {
			b.Fatal(err)
		}
		src, dst := make([]float32, n*dim), make([]byte, n*width)
		for i := range src {
			src[i] = float32(rng.NormFloat64())
		}
		b.Run(fmt.Sprint(k), func(b *testing.B) {
			b.SetBytes(int64(4 * len(src)))
			b.ReportAllocs()
			for b.Loop() {
				if err := k.EncodeRows(dst, src, dim); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
