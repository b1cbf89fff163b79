//go:build !amd64 || purego

package bag

// wide and wider say which assembly may run; here there is none.
var wide, wider = false, false

func familyOf(kernelKey) []kernel { return nil }

func (r *Reducer) accumulateTiles([]byte, int, *Lookups, int, part, *scratch) {}

func finishWide(rounding, bool, []byte, []byte, float32) int { return 0 }

func finishDoubleWide([]byte, []byte, int, float64) int { return 0 }

func divideWide([]byte, float32) int { return 0 }

func outsideFast([]int64, int64) (int, bool) { return 0, false }

func placesFast([]int64, []int64, int64, int64, int64) (int, bool) { return 0, true }
