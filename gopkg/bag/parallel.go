package bag

import (
	"runtime"
	"sort"
	"sync"
	"sync/atomic"

	"loaderx/gopkg/mem"
)

const (
	// Goroutines claim bags that begin within so many lookups, at most.
	mostClaimed  = 4096
	leastClaimed = 256
	// From about so many bytes of rows on a second goroutine pays for its start.
	shareBytes = 128 << 10
)

// ReduceAll is Reduce on at most threads goroutines, the caller's included (0:
// GOMAXPROCS, which is also the most), each under mem.Guard: a fault becomes
// errs.ErrFault and a panic errs.ErrInternal. The error returned is that of
// the first bags that failed. A bag is not divided.
func (r *Reducer) ReduceAll(threads int, dst []byte, in Lookups, offsets []int64) error {
	if err := r.checkPart(dst, &in, offsets, 0); err != nil {
		return err
	}
	return r.reduceAll(threads, dst, &in, offsets, 0)
}

// reduceAll is ReduceAll without its checks; see reduce for origin.
func (r *Reducer) reduceAll(threads int, dst []byte, in *Lookups, offsets []int64, origin int64) error {
	if len(offsets) < 2 {
		return nil
	}
	bags := len(offsets) - 1
	first := offsets[0]
	n := offsets[bags] - first
	limit := runtime.GOMAXPROCS(0)
	if threads > 0 {
		limit = min(limit, threads)
	}
	// Also where all bags are empty, their results have to be cleared.
	work := n*r.rowBytes + int64(len(dst))
	limit = int(min(int64(limit), 1+work/shareBytes, int64(bags)))
	if limit < 2 {
		return mem.Guard(func() error { return r.reduce(dst, in, offsets, origin) })
	}
	each := min(max(n/int64(8*limit), leastClaimed), mostClaimed)
	begin := func(claim int64) int {
		return sort.Search(bags, func(b int) bool { return offsets[b]-first >= claim*each })
	}
	var (
		next   atomic.Int64
		failed atomic.Bool
		mu     sync.Mutex
		err    error
		errAt  int64
		wait   sync.WaitGroup
	)
	help := func() {
		for !failed.Load() {
			claim := next.Add(1) - 1
			if claim > n/each {
				return
			}
			lo, hi := begin(claim), begin(claim+1)
			e := mem.Guard(func() error {
				return r.reduce(dst[lo*r.outBytes:hi*r.outBytes], in, offsets[lo:hi+1], origin)
			})
			if e == nil {
				continue
			}
			failed.Store(true)
			mu.Lock()
			if err == nil || claim < errAt {
				err, errAt = e, claim
			}
			mu.Unlock()
		}
	}
	for range limit - 1 {
		wait.Go(help)
	}
	help()
	wait.Wait()
	return err
}
