package rowtable

import (
	"math/rand/v2"
	"testing"

	"loaderx/gopkg/bag"
)

func TestBagsWithoutWeightsTakeNoneFromEarlierOnes(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 21))
	for _, c := range []Codec{Raw, Zlib} {
		f := forge{rowBytes: 16, blockRows: 4, codecs: []Codec{c}, predictors: []Predictor{None}}
		table := opened(t, f.make(t, rng, make([]byte, 40*16)), Options{})
		r := BagRequest{
			IDs: []int64{1, 2, 3, 1, 4}, Offsets: []int64{0, 2}, Out: make([]byte, 32), Dim: 4, Mode: bag.Sum,
			HasPadding: true, Padding: 1, Weights: []float32{1, 2, 3, 4, 5},
		}
		sure(t, table.EmbeddingBag(t.Context(), &r))
		r.Weights = nil
		for _, r.Mode = range []bag.Mode{bag.Sum, bag.Mean, bag.Max} {
			sure(t, table.EmbeddingBag(t.Context(), &r))
		}
	}
}
