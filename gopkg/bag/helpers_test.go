package bag

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"loaderx/gopkg/quant"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func reducer(t testing.TB, spec Spec) *Reducer {
	t.Helper()
	r, err := New(spec)
	must(t, err)
	return r
}

// eachWay runs a test with each set of kernels that the processor can run, and
// with the Go code.
func eachWay(t *testing.T, test func(t *testing.T)) {
	for _, way := range ways() {
		t.Run(way, func(t *testing.T) {
			defer use(way)()
			test(t)
		})
	}
}

func ways() []string {
	all := []string{"Go"}
	if wide {
		all = append(all, "AVX2")
	}
	if wider {
		all = append(all, "AVX-512")
	}
	return all
}

// use makes new Reducers use some kernels, until the function returned is called.
func use(way string) func() {
	wasWide, wasWider := wide, wider
	wide, wider = way != "Go", way == "AVX-512"
	return func() { wide, wider = wasWide, wasWider }
}

var kinds = []quant.Kind{
	quant.Float32, quant.Float64, quant.Float16, quant.BFloat16, quant.Int8, quant.UInt8, quant.Int4,
}

// eachSpec calls f for every reduction of rows of dim columns.
func eachSpec(dim int, f func(name string, spec Spec)) {
	for _, kind := range kinds {
		for _, accumulate := range []Accumulate{Torch, F64} {
			for _, padding := range []bool{false, true} {
				if padding && (accumulate == F64 || kind.Quantised()) {
					continue // makes no difference
				}
				for _, c := range []struct {
					name     string
					mode     Mode
					weighted bool
				}{{"sum", Sum, false}, {"mean", Mean, false}, {"max", Max, false}, {"weighted", Sum, true}} {
					name := fmt.Sprintf("%v/%s/dim=%d/f64=%v/padding=%v", kind, c.name, dim, accumulate == F64, padding)
					f(name, Spec{Kind: kind, Dim: dim, Mode: c.mode, Weighted: c.weighted, Accumulate: accumulate, PaddingIndex: padding})
				}
			}
		}
	}
}

// draw returns n lookups of 50 rows that begin at odd places, and offsets of
// bags, some of them empty. Rows are arbitrary bytes unless ordinary, in which case
// they are numbers around zero.
func draw(t testing.TB, r *Reducer, rng *rand.Rand, n, bags int, ordinary bool) (Lookups, []int64) {
	t.Helper()
	const rows = 50
	width := int(r.RowBytes())
	base := make([]byte, 1+rows*width)
	for i := range base {
		base[i] = byte(rng.Uint32())
	}
	if ordinary {
		numbers := make([]float32, rows*r.spec.Dim)
		for i := range numbers {
			numbers[i] = float32(rng.NormFloat64())
		}
		must(t, r.spec.Kind.EncodeRows(base[1:], numbers, r.spec.Dim))
	}
	in := Lookups{Base: base, Places: make([]int64, n)}
	for i := range in.Places {
		in.Places[i] = 1 + int64(rng.IntN(rows)*width)
		weight := rng.NormFloat64()
		switch {
		case !r.spec.Weighted:
		case r.spec.Kind == quant.Float64:
			in.Weights64 = append(in.Weights64, weight)
		default:
			in.Weights = append(in.Weights, float32(weight))
		}
	}
	offsets := make([]int64, bags+1)
	for i := 1; i <= bags; i++ {
		offsets[i] = offsets[i-1]
		if left := int64(n) - offsets[i]; left > 0 && rng.IntN(3) > 0 {
			offsets[i] += rng.Int64N(min(left, 2*int64(n)/int64(bags)+1) + 1)
		}
	}
	offsets[bags] = int64(n)
	return in, offsets
}

// same fails the test unless two results agree in all bits; all NaNs are the
// same.
func same(t testing.TB, name string, spec Spec, got, want []byte) {
	t.Helper()
	kind := resultKind(spec.Kind)
	if at := differ(kind, got, want); at >= 0 {
		t.Fatalf("%s: column %d of bag %d: got %x, want %x", name, at%spec.Dim, at/spec.Dim, element(kind, got, at), element(kind, want, at))
	}
}
