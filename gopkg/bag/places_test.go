package bag

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestPlacesAndWhatIsOutside(t *testing.T) {
	eachWay(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 9))
		for _, n := range []int{0, 1, 7, 8, 9, 16, 100, checkedAtOnce, 2*checkedAtOnce + 13} {
			for _, last := range []int64{0, 5, 1 << 33, math.MaxInt64 >> 20} {
				ids, want, got := make([]int64, n), make([]int64, n), make([]int64, n+1)
				at, width := rng.Int64N(1<<20), []int64{1, 512, 1 << 19, 1 << 20}[rng.IntN(4)]
				for i := range ids {
					ids[i] = rng.Int64N(last + 1)
					want[i] = at + ids[i]*width
				}
				if Outside(ids, last) || !Places(got, ids, at, width, last) || !slices.Equal(got[:n], want) || got[n] != 0 {
					t.Fatalf("%d ids up to %d", n, last)
				}
				for _, bad := range []int64{-1, last + 1, math.MinInt64, math.MaxInt64} {
					if n == 0 {
						continue
					}
					i := rng.IntN(n)
					good := ids[i]
					ids[i] = bad
					if !Outside(ids, last) || Places(got, ids, at, width, last) {
						t.Fatalf("%d at %d of %d is in [0, %d]", bad, i, n, last)
					}
					ids[i] = good
				}
			}
		}
	})
}
