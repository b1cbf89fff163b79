package bag

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/quant"
)

// TestKernelsHaveTheBitsOfTheGoCode gives them rows of arbitrary bytes, so NaN,
// infinities and subnormals in columns, scales and biases.
func TestKernelsHaveTheBitsOfTheGoCode(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, dim := range []int{1, 3, 7, 8, 9, 12, 16, 31, 33, 64, 65, 100, 127, 128, 129, 200, 1025} {
		const n = 60
		eachSpec(dim, func(name string, spec Spec) {
			var want []byte
			var in Lookups
			var offsets []int64
			for _, way := range ways() { // Go is the first
				done := use(way)
				r := reducer(t, spec)
				if want == nil {
					in, offsets = draw(t, r, rng, n, 20, rng.IntN(2) == 0)
				}
				got := make([]byte, 20*r.OutBytes())
				must(t, r.Reduce(got, in, offsets))
				done()
				if want == nil {
					want = got
				}
				same(t, way+"/"+name, spec, got, want)
			}
		})
	}
}

// TestOnlyTheRowIsRead puts a row at the very end of its memory.
func TestOnlyTheRowIsRead(t *testing.T) {
	eachWay(t, func(t *testing.T) {
		for _, dim := range []int{1, 2, 5, 8, 9, 13, 31, 64, 129} {
			eachSpec(dim, func(name string, spec Spec) {
				r := reducer(t, spec)
				base, end := lastBytes(t, int(r.RowBytes()))
				in := Lookups{Base: base, Places: []int64{end, end}}
				switch {
				case spec.Weighted && spec.Kind == quant.Float64:
					in.Weights64 = []float64{1, 2}
				case spec.Weighted:
					in.Weights = []float32{1, 2}
				}
				if err := r.ReduceAll(1, make([]byte, r.OutBytes()), in, []int64{0, 2}); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			})
		}
	})
}

func TestPiecesAndGoroutinesChangeNoBit(t *testing.T) {
	eachWay(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(2, 2))
		for _, dim := range []int{1, 13, 140} {
			eachSpec(dim, func(name string, spec Spec) {
				r := reducer(t, spec)
				const n, bags = 400, 30
				in, offsets := draw(t, r, rng, n, bags, true)
				want := make([]byte, bags*r.OutBytes())
				must(t, r.Reduce(want, in, offsets))
				for range 3 {
					dirty := make([]byte, len(want))
					for i := range dirty {
						dirty[i] = 0xaa
					}
					s, err := r.NewStream(2, dirty, offsets)
					must(t, err)
					for at := 0; at < n; {
						to := min(at+rng.IntN(60), n)
						must(t, s.Add(in.slice(at, to)))
						at = to
					}
					must(t, s.Finish())
					same(t, "stream "+name, spec, dirty, want)
				}
				// One bag of all, a lookup at a time and at once.
				whole := make([]byte, r.OutBytes())
				must(t, r.Reduce(whole, in, []int64{0, n}))
				b := r.NewBag()
				for range 2 { // Finish empties it
					for at := range n {
						must(t, b.Add(in.slice(at, at+1)))
					}
					got := make([]byte, r.OutBytes())
					must(t, b.Finish(got))
					same(t, "bag "+name, spec, got, whole)
				}
			})
		}
	})
}

func TestBagsLongerThanARunOfAKernel(t *testing.T) {
	eachWay(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(3, 3))
		for _, kind := range kinds {
			for _, mode := range []Mode{Sum, Mean, Max} {
				spec := Spec{Kind: kind, Dim: 11, Mode: mode}
				r := reducer(t, spec)
				const n = 3*maxRun + 5
				in, _ := draw(t, r, rng, n, 1, true)
				offsets := []int64{0, 0, 3, 3 + 2*maxRun, n - 1, n, n}
				got := make([]byte, (len(offsets)-1)*r.OutBytes())
				must(t, r.ReduceAll(2, got, in, offsets))
				defer use("Go")()
				pure := reducer(t, spec)
				s := new(scratch)
				for b := range len(offsets) - 1 {
					want := make([]byte, r.OutBytes())
					if n := int(offsets[b+1] - offsets[b]); n > 0 {
						s.ends = []int64{int64(n)}
						acc := want
						if !pure.direct {
							acc = make([]byte, pure.accBytes)
						}
						pure.accumulateGo(acc, 0, &in, int(offsets[b]), false, s)
						pure.finish(want, acc, int64(n))
					}
					same(t, kind.String(), spec, got[b*r.OutBytes():][:r.OutBytes()], want)
				}
			}
		}
	})
}

func TestManyGoroutinesGiveTheSame(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	for _, kind := range kinds {
		spec := Spec{Kind: kind, Dim: 65, Mode: Mean}
		r := reducer(t, spec)
		const n, bags = 20000, 3000
		in, offsets := draw(t, r, rng, n, bags, true)
		want := make([]byte, bags*r.OutBytes())
		must(t, r.Reduce(want, in, offsets))
		for _, threads := range []int{0, 1, 2, 7} {
			got := make([]byte, len(want))
			must(t, r.ReduceAll(threads, got, in, offsets))
			same(t, kind.String(), spec, got, want)
		}
	}
}

func TestF64RoundsOnce(t *testing.T) {
	eachWay(t, func(t *testing.T) {
		column := func(kind quant.Kind, mode Mode, accumulate Accumulate, weights []float32, numbers ...float32) float64 {
			spec := Spec{Kind: kind, Dim: 1, Mode: mode, Accumulate: accumulate, Weighted: weights != nil}
			r := reducer(t, spec)
			base := make([]byte, len(numbers)*int(r.RowBytes()))
			must(t, kind.EncodeRows(base, numbers, 1))
			in := Lookups{Base: base, Weights: weights}
			for i := range numbers {
				in.Places = append(in.Places, int64(i)*r.RowBytes())
			}
			got := make([]byte, r.OutBytes())
			must(t, r.Reduce(got, in, []int64{0, int64(len(numbers))}))
			return element(resultKind(kind), got, 0)
		}
		for _, c := range []struct {
			name      string
			got, want float64
		}{
			{"float32 cancels", column(quant.Float32, Sum, F64, nil, 1e8, 1, -1e8), 1},
			{"torch does not", column(quant.Float32, Sum, Torch, nil, 1e8, 1, -1e8), 0},
			{"a mean beyond float32's sums", column(quant.Float32, Mean, F64, nil, 3e38, 3e38), float64(float32(3e38))},
			{"weights", column(quant.Float32, Sum, F64, []float32{3, 1, 1}, 1e8, 1, -3e8), 1},
			// 2049 rounds to 2048 in float16, the mean of the exact sum doesn't.
			{"a float16 mean", column(quant.Float16, Mean, F64, nil, 2048, 1), 1024.5 - 0.5},
			{"a bfloat16 mean", column(quant.BFloat16, Mean, F64, nil, 256, 1, 1), 86},
			{"torch rounds twice", column(quant.BFloat16, Mean, Torch, nil, 256, 1), 129},
		} {
			if c.got != c.want {
				t.Errorf("%s: got %v, want %v", c.name, c.got, c.want)
			}
		}
	})
}

func TestWhatDoesNotFitIsRefused(t *testing.T) {
	r := reducer(t, Spec{Kind: quant.Float32, Dim: 2})
	weighted := reducer(t, Spec{Kind: quant.Float32, Dim: 2, Weighted: true})
	double := reducer(t, Spec{Kind: quant.Float64, Dim: 1, Weighted: true})
	in := Lookups{Base: make([]byte, 24), Places: []int64{0, 8, 16}}
	places := func(p ...int64) Lookups { return Lookups{Base: in.Base, Places: p} }
	dst := make([]byte, 16)
	for _, c := range []struct {
		name string
		err  error
		want error
	}{
		{"a place below the rows", r.Reduce(dst, places(0, -1), []int64{0, 1, 2}), errs.ErrIndex},
		{"a place past the last row", r.ReduceAll(2, dst, places(0, 17), []int64{0, 1, 2}), errs.ErrIndex},
		{"a place at the end of the world", r.Reduce(dst, places(0, math.MaxInt64), []int64{0, 1, 2}), errs.ErrIndex},
		{"a place of a continued bag", r.NewBag().Add(places(25)), errs.ErrIndex},
		{"offsets that decrease", r.Reduce(dst, in, []int64{0, 2, 1}), errs.ErrArgument},
		{"offsets below zero", r.Reduce(dst, in, []int64{-1, 2, 3}), errs.ErrArgument},
		{"offsets past the lookups", r.Reduce(dst, in, []int64{0, 2, 4}), errs.ErrArgument},
		{"a short result", r.Reduce(dst[:15], in, []int64{0, 2, 3}), errs.ErrBuffer},
		{"a long result", r.Reduce(make([]byte, 17), in, []int64{0, 2, 3}), errs.ErrBuffer},
		{"a result for no bags", r.Reduce(dst, in, nil), errs.ErrBuffer},
		{"a short result of a bag", r.NewBag().Finish(dst[:7]), errs.ErrBuffer},
		{"no weights", weighted.Reduce(dst, in, []int64{0, 1, 3}), errs.ErrArgument},
		{"weights of a sum without", r.Reduce(dst, Lookups{Base: in.Base, Places: in.Places, Weights: make([]float32, 3)}, []int64{0, 1, 3}), errs.ErrArgument},
		{"weights of the other type", double.Reduce(dst, Lookups{Base: in.Base, Places: in.Places, Weights: make([]float32, 3)}, []int64{0, 1, 3}), errs.ErrArgument},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, c.err, c.want)
		}
	}
	for name, spec := range map[string]Spec{
		"no columns":         {Kind: quant.Float32},
		"an unknown mode":    {Kind: quant.Float32, Dim: 1, Mode: 3},
		"unknown arithmetic": {Kind: quant.Float32, Dim: 1, Accumulate: 2},
		"a weighted mean":    {Kind: quant.Float32, Dim: 1, Mode: Mean, Weighted: true},
		"a weighted maximum": {Kind: quant.Float32, Dim: 1, Mode: Max, Weighted: true},
		"an unknown kind":    {Kind: 99, Dim: 1},
	} {
		if _, err := New(spec); !errors.Is(err, errs.ErrArgument) && !errors.Is(err, errs.ErrType) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	// Nothing at all is fine.
	must(t, r.ReduceAll(2, nil, Lookups{}, nil))
	must(t, r.ReduceAll(2, nil, Lookups{}, []int64{0}))
	must(t, r.Reduce(dst, Lookups{}, []int64{0, 0, 0}))
}

func TestStreamsCountTheirLookups(t *testing.T) {
	r := reducer(t, Spec{Kind: quant.Float32, Dim: 2})
	in := Lookups{Base: make([]byte, 24), Places: []int64{0, 8, 16}}
	s, err := r.NewStream(1, make([]byte, 16), []int64{0, 2, 4})
	must(t, err)
	must(t, s.Add(in))
	if err := s.Finish(); !errors.Is(err, errs.ErrArgument) {
		t.Errorf("a lookup is missing: %v", err)
	}
	if err := s.Add(in); !errors.Is(err, errs.ErrArgument) {
		t.Errorf("lookups too many: %v", err)
	}
	if s, err = r.NewStream(1, nil, nil); err != nil || s.Finish() != nil || s.Add(in) == nil {
		t.Errorf("a stream without bags: %v", err)
	}
	if _, err = r.NewStream(1, nil, []int64{0, 1}); !errors.Is(err, errs.ErrBuffer) {
		t.Errorf("a short result: %v", err)
	}
}

func TestFamiliesOfKernelsAreComplete(t *testing.T) {
	if !wide {
		t.Skip("no assembly on this processor")
	}
	eachSpec(1000, func(name string, spec Spec) {
		r := reducer(t, spec)
		if len(r.tiles) == 0 {
			t.Errorf("%s is left to Go code", name)
		}
		covered := 0
		for _, tile := range r.tiles {
			if tile.column > covered {
				t.Errorf("%s: columns %d to %d are in no tile", name, covered, tile.column)
			}
			covered = tile.column + tile.columns
		}
		if covered != spec.Dim {
			t.Errorf("%s: %d of %d columns", name, covered, spec.Dim)
		}
	})
}
