package sampler

import (
	"fmt"
	"testing"
)

func BenchmarkFill(b *testing.B) {
	for _, mode := range []Mode{Sequential, IID, Cyclic} {
		for _, length := range []uint64{7, 60_000, 1_281_167, 20_000_000, 3 << 61} {
			for _, batch := range []uint64{256, 8192} {
				b.Run(fmt.Sprintf("%v/%d/%d", mode, length, batch), func(b *testing.B) {
					p := Params{Length: length, Batch: batch, Mode: mode, Seed: 42}
					n, _ := p.PerStep()
					steps := max(1, 8192/n)
					out := make([]int64, steps*n)
					b.SetBytes(int64(8 * len(out)))
					b.ReportAllocs()
					step := uint64(0)
					for b.Loop() {
						if _, err := Fill(p, step, steps, out); err != nil {
							b.Fatal(err)
						}
						step += uint64(steps)
					}
					b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(out)), "ns/index")
				})
			}
		}
	}
}
