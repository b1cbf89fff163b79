package sampler

import (
	"fmt"
	"math"
	"testing"
)

// The tests here have fixed seeds: they pass or fail alike every time. A
// correct generator exceeds limit in one test of about ten million.
const limit = 5.3

// seeds are those that a user is likely to choose, and the extremes.
var seeds = []uint64{0, 1, 2, 42, 1234, math.MaxInt64, 1 << 63, math.MaxUint64}

// normalized returns how many standard deviations chi-square over counts lies
// from its mean, where every cell expects the same.
func normalized(counts []int64) float64 {
	var n float64
	for _, c := range counts {
		n += float64(c)
	}
	want, sum := n/float64(len(counts)), 0.0
	for _, c := range counts {
		sum += (float64(c) - want) * (float64(c) - want) / want
	}
	free := float64(len(counts) - 1)
	// Wilson and Hilferty: the cube root is nearly normal.
	return (math.Cbrt(sum/free) - (1 - 2/(9*free))) / math.Sqrt(2/(9*free))
}

// cell places an index into one of n equal parts of the length.
func cell(index int64, length uint64, n int) int {
	return int(float64(index) / float64(length) * float64(n))
}

func TestIIDUniform(t *testing.T) {
	const draws = 1 << 17
	for _, length := range []uint64{2, 3, 10, 1000, 60000, 1 << 28, 1<<28 + 1, 1 << 40, 3 << 61, MaxLength} {
		for _, seed := range seeds {
			for _, step := range []uint64{0, 1 << 33} {
				got := fill(t, Params{length, 1 << 12, IID, seed}, step, draws>>12)
				counts := make([]int64, min(length, 1000))
				low := make([]int64, min(length, 64)) // by the low bits or the remainder
				even := length - length%uint64(len(low))
				for _, v := range got {
					counts[cell(v, length, len(counts))]++
					if uint64(v) < even {
						low[uint64(v)%uint64(len(low))]++
					}
				}
				if z := normalized(counts); math.Abs(z) > limit {
					t.Errorf("length %d seed %d step %d: %.1f deviations over the range", length, seed, step, z)
				}
				if z := normalized(low); math.Abs(z) > limit {
					t.Errorf("length %d seed %d step %d: %.1f deviations over remainders", length, seed, step, z)
				}
			}
		}
	}
}

// TestIIDUnbiased protects the rejection: for these lengths a plain multiply
// gives the remainders by 3 weights of 2:3:3 and 22:21:21.
func TestIIDUnbiased(t *testing.T) {
	for _, length := range []uint64{3 << 61, 3 << 26} {
		counts := make([]int64, 3)
		for _, v := range fill(t, Params{length, 1 << 20, IID, 42}, 0, 1) {
			counts[uint64(v)%3]++
		}
		if z := normalized(counts); math.Abs(z) > limit {
			t.Errorf("length %d: %.1f deviations: %v", length, z, counts)
		}
	}
}

// TestIIDLags protects independence: pairs of draws at a distance fill a
// square evenly. Distances include the halves of a word, batches, and the
// same draw under another seed.
func TestIIDLags(t *testing.T) {
	const draws, side = 1 << 18, 32
	for _, length := range []uint64{1000, 1 << 28, 1 << 45, 3 << 61} {
		for k, seed := range seeds {
			a := fill(t, Params{length, 1 << 10, IID, seed}, 0, draws>>10)
			check := func(name string, b []int64) {
				t.Helper()
				// Parts are not quite equal unless side divides the length:
				// count only what is even.
				counts := make([]int64, side*side)
				usable := int64(length - length%side)
				for i, v := range b {
					if v < usable && a[i] < usable {
						counts[cell(a[i], uint64(usable), side)*side+cell(v, uint64(usable), side)]++
					}
				}
				if z := normalized(counts); math.Abs(z) > limit {
					t.Errorf("length %d seed %d, %s: %.1f deviations", length, seed, name, z)
				}
			}
			for _, lag := range []int{1, 2, 3, 4, 8, 255, 256, 1024} {
				check(fmt.Sprintf("lag %d", lag), a[lag:])
			}
			other := seeds[(k+1)%len(seeds)]
			check(fmt.Sprintf("seed %d", other), fill(t, Params{length, 1 << 10, IID, other}, 0, draws>>10))
		}
	}
}

// TestCyclicUniform protects the shuffle: over many cycles every position sees
// every index equally often, and neighbours at random distances.
func TestCyclicUniform(t *testing.T) {
	const length, cycles = 100, 20000
	for _, seed := range seeds {
		got := fill(t, Params{length, length, Cyclic, seed}, 0, cycles)
		for _, pos := range []int{0, 1, 50, 99} {
			counts := make([]int64, length)
			for c := range cycles {
				counts[got[c*length+pos]]++
			}
			if z := normalized(counts); math.Abs(z) > limit {
				t.Errorf("seed %d position %d: %.1f deviations", seed, pos, z)
			}
		}
		distance := make([]int64, length-1)
		for c := range cycles {
			a, b := got[c*length+10], got[c*length+11]
			distance[(b-a+length)%length-1]++
		}
		if z := normalized(distance); math.Abs(z) > limit {
			t.Errorf("seed %d neighbours: %.1f deviations", seed, z)
		}
	}
}
