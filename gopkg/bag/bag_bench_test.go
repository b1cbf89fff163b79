package bag

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"loaderx/gopkg/quant"
)

// A million rows, of which 4096 bags take 20 each.
const (
	benchRows = 1 << 20
	benchDim  = 128
	benchBags = 4096
	benchEach = 20
)

func benchOffsets() []int64 {
	offsets := make([]int64, benchBags+1)
	for b := range offsets {
		offsets[b] = int64(b * benchEach)
	}
	return offsets
}

// benchBase is a table of rows whose numbers are ordinary.
func benchBase(b *testing.B, kind quant.Kind) ([]byte, int64) {
	b.Helper()
	width, err := kind.RowBytes(benchDim)
	must(b, err)
	rng := rand.New(rand.NewPCG(1, 2))
	sample := make([]float32, 1024*benchDim)
	for i := range sample {
		sample[i] = float32(rng.NormFloat64())
	}
	rows := make([]byte, 1024*width)
	must(b, kind.EncodeRows(rows, sample, benchDim))
	base := make([]byte, benchRows*width)
	for at := 0; at < len(base); at += len(rows) {
		copy(base[at:], rows)
	}
	return base, int64(width)
}

func BenchmarkReduceAll(b *testing.B) {
	offsets := benchOffsets()
	for _, kind := range []quant.Kind{quant.Float32, quant.Float16, quant.BFloat16, quant.Int8, quant.UInt8, quant.Int4} {
		base, width := benchBase(b, kind)
		// More of them than the caches hold rows, so that no round finds those of
		// the round before.
		places := make([]int64, 8*benchBags*benchEach)
		rng := rand.New(rand.NewPCG(3, 4))
		for i := range places {
			places[i] = rng.Int64N(benchRows) * width
		}
		weights := make([]float32, benchBags*benchEach)
		for i := range weights {
			weights[i] = float32(rng.NormFloat64())
		}
		for _, c := range []struct {
			name string
			spec Spec
		}{
			{"sum", Spec{}}, {"mean", Spec{Mode: Mean}}, {"max", Spec{Mode: Max}}, {"weighted", Spec{Weighted: true}},
			{"sum_f64", Spec{Accumulate: F64}},
		} {
			c.spec.Kind, c.spec.Dim = kind, benchDim
			r := reducer(b, c.spec)
			in := Lookups{Base: base}
			if c.spec.Weighted {
				in.Weights = weights
			}
			dst := make([]byte, benchBags*r.OutBytes())
			for _, threads := range []int{1, 2} {
				b.Run(fmt.Sprintf("%v/%s/threads=%d", kind, c.name, threads), func(b *testing.B) {
					b.SetBytes(benchBags * benchEach * width)
					b.ReportAllocs()
					for i := 0; b.Loop(); i++ {
						in.Places = places[i%8*benchBags*benchEach:][:benchBags*benchEach]
						must(b, r.ReduceAll(threads, dst, in, offsets))
					}
				})
			}
		}
	}
}
