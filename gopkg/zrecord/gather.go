package zrecord

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
	"loaderx/gopkg/work"
)

// Sizes of the blocks of records that goroutines claim.
const (
	maxBlock   = 256      // records
	blockBytes = 64 << 10 // about what a block writes
	// From about this many bytes on a second goroutine pays for being woken:
	// plain copies, and records that must be decoded.
	shareRaw        = 384 << 10
	shareCompressed = 32 << 10
)

// BlockRecords returns how many records of about each bytes are best copied by
// one goroutine in one go.
func BlockRecords(each int64) int {
	n := min(max(blockBytes/max(each, 1), 1), maxBlock)
	together := mem.RowsTogether(each)
	return int((n + together - 1) / together * together)
}

// Gather copies records into r.Dst from position from of r.Idxs on, and stops
// after about budget, or at the end; next is the position to go on from, and
// len(r.Idxs) when all is done. A budget of 0 or less sets no limit. At least
// one block of records is copied by every call.
//
// Indices are all checked before anything is written. After any other error
// Dst's content is undefined.
func (s *Store) Gather(r *Request, from int, budget time.Duration) (next int, err error) {
	if err := s.enter(); err != nil {
		return from, err
	}
	defer s.life.Leave()
	n := len(r.Idxs)
	if from < 0 || from > n {
		return from, fmt.Errorf("gather from position %d of %d: %w", from, n, errs.ErrArgument)
	}
	length, err := s.records()
	if err != nil {
		return from, fmt.Errorf("gather: %w", err)
	}
	if err := r.check(); err != nil {
		return from, fmt.Errorf("gather: %w", err)
	}
	if r.Wrap, err = wrapOf(r.Wrap, length); err != nil {
		return from, fmt.Errorf("gather: %w", err)
	}
	// Going on, it is enough that each block checks its own again.
	if from == 0 {
		if err := checkIndices(r.Idxs, 0, r.Wrap, length, s.path); err != nil {
			return from, fmt.Errorf("gather: %w", err)
		}
	}
	if from == n {
		return n, nil
	}
	g := gathers.Get().(*gather)
	next, err = g.run(s, r, from, budget, length)
	g.store, g.req = nil, Request{}
	gathers.Put(g)
	if err != nil {
		return from, fmt.Errorf("gather: %w", err)
	}
	return next, nil
}

// gather is one running Gather: its goroutines claim blocks of positions
// through next until none are left.
type gather struct {
	members atomic.Int32 // goroutines at work, the caller's included; 0: closed
	done    chan struct{}

	next atomic.Int64 // the first position that nobody claimed
	stop atomic.Bool  // time is up, or a block failed

	store  *Store
	req    Request
	length int64
	per    int // positions in a block
	start  time.Time
	budget time.Duration
	lane   lane // the caller's

	mu    sync.Mutex
	err   error // of the first failed block in the order of positions
	errAt int
}

var gathers = sync.Pool{New: func() any { return &gather{done: make(chan struct{}, 1)} }}

// lane is one goroutine's scratch memory.
type lane struct {
	idxs []int64 // of the block at work, a part of room
	at   int     // its first position
	room [maxBlock]int64
	locs [maxBlock]location
	// offsets are the places of the block's records in their chunk.
	offsets [maxBlock]uint32
	buf     []byte // a private copy of one record's stored bytes
	sum     byte   // keeps touch from being optimized away
}

func (g *gather) run(s *Store, r *Request, from int, budget time.Duration, length int64) (int, error) {
	n := len(r.Idxs)
	each := len(r.Dst) / n // about a record's length
	if r.Offsets == nil {
		each = int(r.RowBytes)
	}
	g.store, g.req, g.length = s, *r, length
	g.per = BlockRecords(int64(each))
	g.budget = budget
	if budget > 0 {
		g.start = time.Now()
	}
	g.next.Store(int64(from))
	g.stop.Store(false)
	g.err = nil
	share := shareRaw
	if s.compressed.Load() {
		share = shareCompressed
	}
	helpers := min((n-from)*each/share, (n-from+g.per-1)/g.per-1)
	// From here on pool goroutines may join.
	g.members.Store(1)
	if helpers > 0 {
		pool.Call(g, helpers)
	}
	g.work(&g.lane, true)
	if !g.leave() {
		<-g.done
	}
	if g.err != nil {
		return from, g.err
	}
	return min(int(g.next.Load()), n), nil
}

// join makes a pool goroutine a member, unless the gather has ended already.
func (g *gather) join() bool {
	for {
		m := g.members.Load()
		if m <= 0 {
			return false
		}
		if g.members.CompareAndSwap(m, m+1) {
			return true
		}
	}
}

// leave returns true for the last member; nobody joins after it.
func (g *gather) leave() bool { return g.members.Add(-1) == 0 }

// Help is work for a member from the pool.
func (g *gather) Help(l *lane) {
	if !g.join() {
		return
	}
	g.work(l, false)
	if g.leave() {
		g.done <- struct{}{}
	}
}

// work claims and copies blocks until there are none left or time is up. The
// caller copies one block whatever the time.
func (g *gather) work(l *lane, caller bool) {
	err := mem.Guard(func() error {
		n := len(g.req.Idxs)
		for first := caller; ; first = false {
			if !first && g.stop.Load() {
				return nil
			}
			if g.budget > 0 && !first && time.Since(g.start) >= g.budget {
				g.stop.Store(true)
				return nil
			}
			l.at = int(g.next.Add(int64(g.per))) - g.per
			if l.at >= n {
				return nil
			}
			if err := g.block(l, min(l.at+g.per, n)); err != nil {
				return err
			}
		}
	})
	if err != nil {
		g.fail(l, err)
	}
}

// fail notes an error; the one at the lowest position is returned.
func (g *gather) fail(l *lane, err error) {
	g.stop.Store(true)
	if errors.Is(err, errs.ErrFault) {
		err = g.store.explainFault(l.idxs, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil || l.at < g.errAt {
		g.err, g.errAt = err, l.at
	}
}

// explainFault says which file shrank under a read of idxs.
func (s *Store) explainFault(idxs []int64, fault error) error {
	name := ""
	// The table itself may be what is gone.
	if err := mem.Guard(func() error { name = s.files.blame(idxs); return nil }); err != nil {
		name = filepath.Join(s.path, metaName)
	}
	if name == "" {
		return fmt.Errorf("store %s: %w", s.path, fault)
	}
	return fmt.Errorf("%s was shortened or can't be read: %w", name, fault)
}

// block copies the positions from l.at to end.
func (g *gather) block(l *lane, end int) error {
	at := l.at
	l.idxs = l.room[:end-at]
	if err := resolve(l.idxs, g.req.Idxs[at:end], at, g.req.Wrap, g.length, g.store.path); err != nil {
		return err
	}
	if g.req.Offsets == nil {
		done := g.store.files.copyRaw(l.idxs, g.req.Dst[int64(at)*g.req.RowBytes:], g.req.RowBytes, l)
		if at += done; at == end {
			return nil
		}
		l.at, l.idxs = at, l.idxs[done:]
	}
	locs := l.locs[:end-at]
	if err := g.store.files.locate(l.idxs, locs); err != nil {
		return err
	}
	dst, row, offsets := g.req.Dst, g.req.RowBytes, g.req.Offsets
	if offsets == nil {
		for i := range locs {
			if int64(locs[i].size) != row {
				return fmt.Errorf("store %s: record %d has %d bytes, every record should have %d: %w",
					g.store.path, l.idxs[i], locs[i].size, row, errs.ErrCorrupt)
			}
		}
	} else {
		offsets = offsets[at:end]
		for i := range locs {
			// Written so that an offset near 2^64 can't wrap around.
			if room := uint64(len(dst)); offsets[i] > room || uint64(locs[i].size) > room-offsets[i] {
				return fmt.Errorf("record %d of %d bytes at offset %d of a buffer of %d (position %d): %w",
					l.idxs[i], locs[i].size, offsets[i], room, at+i, errs.ErrBuffer)
			}
		}
	}
	l.touch(locs)
	for i := range locs {
		loc := &locs[i]
		start := int64(at+i) * row
		if offsets != nil {
			start = int64(offsets[i])
		}
		out := dst[start : start+int64(loc.size)]
		if loc.tag == codec.Raw {
			copy(out, loc.data)
			continue
		}
		if err := g.store.decode(out, loc, l); err != nil {
			return fmt.Errorf("store %s: record %d: %w", g.store.path, l.idxs[i], err)
		}
	}
	return nil
}

// touch reads a byte of each record before they are copied: the loads do not
// depend on each other, so the processor waits for many cache lines and page
// walks at once instead of one by one. Large records gain by it, too.
func (l *lane) touch(locs []location) {
	var sum byte
	for i := range locs {
		sum += locs[i].data[0]
	}
	l.sum = sum
}

// decode decodes one compressed record into out.
func (s *Store) decode(out []byte, loc *location, l *lane) error {
	if !s.compressed.Load() {
		s.compressed.Store(true)
	}
	var dict *codec.Dict
	if loc.tag == codec.ZstdDict {
		var err error
		if dict, err = s.loadDict(); err != nil {
			return fmt.Errorf("its dictionary: %w: %w", errs.ErrCorrupt, err)
		}
	}
	// libzstd gets a private copy: a fault on the mapped file inside C code
	// would end the process.
	l.buf = append(l.buf[:0], loc.data...)
	return codec.Decode(out, l.buf, dict)
}

// pool helps the gathers of all stores of the process.
var pool work.Pool[lane, *gather]
