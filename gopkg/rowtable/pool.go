package rowtable

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
	"loaderx/gopkg/work"
)

// maxPortion is the most ids that a goroutine claims at once.
const maxPortion = 1024

// lane is one goroutine's scratch memory.
type lane struct {
	places  [maxPortion]int64
	rows    [maxPortion]int64 // stored rows
	hashes  [maxPortion]uint64
	offsets [maxPortion]int64
	from    [maxPortion]int64
	to      [maxPortion]int64
	order   [maxPortion]uint16
	missed  [maxPortion]uint64
	missing [maxPortion]bool
	counts  [maxShards + 1]uint16

	packed  []byte // a private copy of a block as stored
	decoded []byte // a decoded block, maybe still shuffled
	plain   []byte // a block without its predictor
	row     []byte
	sum     byte // keeps touch from being optimized away
	bags    bagLane
}

// keptBytes is how much of each buffer a lane keeps when its work has ended.
const keptBytes = 4 << 20

func (l *lane) trim() {
	for _, b := range []*[]byte{&l.packed, &l.decoded, &l.plain, &l.row} {
		if cap(*b) > keptBytes {
			*b = nil
		}
	}
}

// grow returns b with a length of n; its content is undefined.
func grow(b []byte, n int64) ([]byte, error) {
	if int64(cap(b)) >= n {
		return b[:n], nil
	}
	if err := spare(n); err != nil {
		return b, err
	}
	return make([]byte, n), nil
}

// spare is mem.Spare for what may be too much; asking costs a few microseconds.
func spare(n int64) error {
	if n < askedBytes {
		return nil
	}
	return mem.Spare(n + heapStep)
}

const (
	askedBytes = 4 << 20
	heapStep   = 64 << 20 // Go's heap grows by whole multiples of it
)

// touch reads the ends of the rows at places: the loads do not depend on each
// other, so the processor waits for many cache lines and page walks at once,
// where copies alone would wait for one after the other. What lies between the
// ends of longer rows is left to its own prefetching.
func (l *lane) touch(base []byte, places []int64, width int64) {
	var sum byte
	if width <= cacheLine && (places[0]|width)&(cacheLine-1) == 0 {
		for _, p := range places {
			sum += base[p]
		}
	} else {
		for _, p := range places {
			sum += base[p] + base[p+width-1]
		}
	}
	l.sum = sum
}

const cacheLine = 64

// crew works through numbered items in portions, on the caller's goroutine and
// on idle ones of the pool.
type crew struct {
	members atomic.Int32 // goroutines at work, the caller's included; 0: closed
	done    chan struct{}

	next atomic.Int64 // the first item that nobody claimed
	stop atomic.Bool  // time is up, cancelled, or an item failed

	step   func(l *lane, from, to int) error
	total  int
	per    int // items in a portion
	ctx    context.Context
	start  time.Time
	budget time.Duration

	mu    sync.Mutex
	err   error // of the first failed portion in the order of items
	errAt int
}

// limit sets when the following runs shall end early: about budget from now,
// unless it is 0 or less, and when ctx ends.
func (c *crew) limit(ctx context.Context, budget time.Duration) {
	c.ctx, c.budget = ctx, budget
	if budget > 0 {
		c.start = time.Now()
	}
}

// run calls step for the items from from to total, in portions of per and on
// up to helpers other goroutines, and returns the item to go on from. The
// caller does one portion whatever the time.
func (c *crew) run(l *lane, step func(l *lane, from, to int) error, from, total, per, helpers int) (int, error) {
	c.step, c.total, c.per = step, total, per
	c.next.Store(int64(from))
	c.stop.Store(false)
	c.err = nil
	helpers = min(helpers, (total-from+per-1)/per-1)
	// From here on pool goroutines may join.
	c.members.Store(1)
	if helpers > 0 {
		pool.Call(c, helpers)
	}
	c.work(l, true)
	if !c.leave() {
		<-c.done
	}
	if c.err != nil {
		return from, c.err
	}
	return min(int(c.next.Load()), total), nil
}

// join makes a pool goroutine a member, unless the run has ended already.
func (c *crew) join() bool {
	for {
		m := c.members.Load()
		if m <= 0 {
			return false
		}
		if c.members.CompareAndSwap(m, m+1) {
			return true
		}
	}
}

// leave returns true for the last member; nobody joins after it.
func (c *crew) leave() bool { return c.members.Add(-1) == 0 }

// Help is work for a member from the pool.
func (c *crew) Help(l *lane) {
	if !c.join() {
		return
	}
	c.work(l, false)
	l.trim()
	if c.leave() {
		c.done <- struct{}{}
	}
}

func (c *crew) work(l *lane, caller bool) {
	at := 0
	err := mem.Guard(func() error {
		for first := caller; ; first = false {
			if !first && (c.stop.Load() || c.over()) {
				return nil
			}
			if err := stopped(c.ctx); err != nil {
				return err
			}
			at = int(c.next.Add(int64(c.per))) - c.per
			if at >= c.total {
				return nil
			}
			if err := c.step(l, at, min(at+c.per, c.total)); err != nil {
				return err
			}
		}
	})
	if err != nil {
		c.fail(at, err)
	}
}

// stopped returns the error of work that its context ended, and nil as long as
// it did not; there may be none.
func stopped(ctx context.Context) error {
	if ctx == nil || ctx.Err() == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errs.ErrCancelled, context.Cause(ctx))
}

// over reports whether time is up.
func (c *crew) over() bool {
	if c.budget <= 0 || time.Since(c.start) < c.budget {
		return false
	}
	c.stop.Store(true)
	return true
}

// fail notes an error; the one of the first item is returned.
func (c *crew) fail(at int, err error) {
	c.stop.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil || at < c.errAt {
		c.err, c.errAt = err, at
	}
}

// pool helps the crews of all tables of the process.
var pool work.Pool[lane, *crew]
