package rowtable

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"loaderx/gopkg/bag"
	"loaderx/gopkg/quant"
)

// BenchmarkEmbeddingBag reduces 4096 bags of 20 rows of a million, at the path
// that ROWS names or else of a table that it makes.
func BenchmarkEmbeddingBag(b *testing.B) {
	const n, bags, each, dim = 1 << 20, 4096, 20, 128
	path := os.Getenv("ROWS")
	if path == "" {
		path = b.TempDir() + "/t.men"
		_, err := Pack(b.Context(), make([]byte, n*dim*4), path, PackOptions{RowBytes: dim * 4, BlockRows: 256, Codec: Raw}, nil, nil)
		sure(b, err)
	}
	for _, threads := range []int{1, 2} {
		t, err := Open(path, Options{Threads: threads})
		sure(b, err)
		defer t.Close()
		rng := rand.New(rand.NewPCG(1, 1))
		sets := make([][]int64, 4)
		for i := range sets {
			sets[i] = make([]int64, bags*each)
			for j := range sets[i] {
				sets[i][j] = rng.Int64N(t.Rows())
			}
		}
		offsets := make([]int64, bags)
		for i := range offsets {
			offsets[i] = int64(i * each)
		}
		out := make([]byte, bags*dim*4)
		for _, mode := range []bag.Mode{bag.Sum, bag.Max} {
			b.Run(fmt.Sprintf("mode%d/%d", mode, threads), func(b *testing.B) {
				b.SetBytes(bags * each * dim * 4)
				b.ReportAllocs()
				for i := range b.N {
					r := BagRequest{IDs: sets[i%4], Offsets: offsets, Out: out, Kind: quant.Float32, Dim: dim, Mode: mode}
					if err := t.EmbeddingBag(b.Context(), &r); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
