// Package handle gives engine objects numbers that a foreign caller can hold,
// and makes every use of a number safe against a concurrent close.
package handle

import (
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
)

const (
	pageBits = 10
	pageSize = 1 << pageBits
	slotBits = 2 * pageBits
	maxSlots = 1 << slotBits
)

// Table maps ids to open objects. All methods are safe for concurrent use.
//
// An object lives until it was closed and the last user released it; its own
// Close runs exactly once, on a goroutine of its own, so that no caller is kept
// waiting for longer than it asked for.
type Table struct {
	pages [pageSize]atomic.Pointer[page]

	mu       sync.Mutex
	free     []int          // slots to use again
	used     int            // slots ever used
	serial   int64          // part of the next id, so that an old id never names a new object
	reserved map[int64]bool // ids given out whose object is not here yet
	open     atomic.Int64
	closing  atomic.Int64 // objects whose Close runs
}

type page [pageSize]atomic.Pointer[entry]

// entry is one open object. It is never used again for another object.
type entry struct {
	id      int64
	obj     io.Closer
	refs    atomic.Int64 // users; closing adds the closed mark
	abandon atomic.Bool  // nobody will ask for the result of Close
	done    chan struct{}
	err     error // result of obj.Close, valid once done is closed
}

// closed is far below zero, so that any number of users keeps refs negative.
const closed = math.MinInt64 / 2

// Ref is a use of an object; Release ends it.
type Ref struct {
	table *Table
	entry *entry
}

// SetGeneration sets where ids start, so that those of runtimes with different
// generations differ for the first sixteen million objects; the Python side
// does not rely on more. Call it before the first Reserve.
func (t *Table) SetGeneration(generation int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.serial = max(t.serial, (generation&0x7fff)<<24)
}

// Len returns how many objects are held.
func (t *Table) Len() int64 { return t.open.Load() }

// Closing returns how many objects are being closed at this moment.
func (t *Table) Closing() int64 { return t.closing.Load() }

// Reserve returns a new id, a positive number, for an object that Fill brings
// later. A caller that may be interrupted at any instant knows the id before
// the object exists, and so can always close it. Close or Abandon give an id
// back that was never filled. A full table returns errs.ErrFull.
func (t *Table) Reserve() (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var slot int
	if n := len(t.free); n > 0 {
		slot, t.free = t.free[n-1], t.free[:n-1]
	} else if t.used < maxSlots {
		slot, t.used = t.used, t.used+1
	} else {
		return 0, errs.ErrFull.Errorf("%d engine objects are open, which is the limit", maxSlots)
	}
	if t.pages[slot>>pageBits].Load() == nil {
		t.pages[slot>>pageBits].Store(new(page))
	}
	t.serial++
	id := t.serial<<slotBits | int64(slot)
	if t.reserved == nil {
		t.reserved = map[int64]bool{}
	}
	t.reserved[id] = true
	return id, nil
}

// Fill stores the object of a reserved id. For any other id it closes the
// object and returns errs.ErrClosed.
func (t *Table) Fill(id int64, obj io.Closer) error {
	t.mu.Lock()
	known := t.reserved[id]
	if known {
		delete(t.reserved, id)
		t.cell(id).Store(&entry{id: id, obj: obj, done: make(chan struct{})})
		t.open.Add(1)
	}
	t.mu.Unlock()
	if !known {
		return errors.Join(fmt.Errorf("handle %d is not reserved: %w", id, errs.ErrClosed), obj.Close())
	}
	return nil
}

// giveBack frees a reserved id that was not filled.
func (t *Table) giveBack(id int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reserved[id] {
		delete(t.reserved, id)
		t.free = append(t.free, int(id&(maxSlots-1)))
	}
}

func (t *Table) cell(id int64) *atomic.Pointer[entry] {
	slot := int(id & (maxSlots - 1))
	return &t.pages[slot>>pageBits].Load()[slot&(pageSize-1)]
}

func (t *Table) find(id int64) *entry {
	if id <= 0 {
		return nil
	}
	slot := int(id & (maxSlots - 1))
	p := t.pages[slot>>pageBits].Load()
	if p == nil {
		return nil
	}
	e := p[slot&(pageSize-1)].Load()
	if e == nil || e.id != id {
		return nil
	}
	return e
}

// remove takes e out of the table; only the first caller has an effect.
func (t *Table) remove(e *entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cell(e.id).CompareAndSwap(e, nil) {
		t.free = append(t.free, int(e.id&(maxSlots-1)))
		t.open.Add(-1)
	}
}

// Use returns the object behind id as a T. The object stays open until the
// Ref is released. It returns errs.ErrClosed for an id that is closed or
// unknown, and errs.ErrType for an object of another kind.
func Use[T any](t *Table, id int64) (obj T, ref Ref, err error) {
	e := t.find(id)
	if e == nil || e.refs.Add(1) <= 0 {
		if e != nil {
			t.release(e)
		}
		return obj, Ref{}, fmt.Errorf("handle %d: %w", id, errs.ErrClosed)
	}
	obj, ok := e.obj.(T)
	if !ok {
		err = fmt.Errorf("handle %d is a %T: %w", id, e.obj, errs.ErrType)
		t.release(e)
		return obj, Ref{}, err
	}
	return obj, Ref{t, e}, nil
}

// Release ends the use. The last release of a closed object closes it.
func (r Ref) Release() { r.table.release(r.entry) }

func (t *Table) release(e *entry) {
	if e.refs.Add(-1) == closed {
		t.finish(e)
	}
}

// finish runs once per entry: refs passes through exactly "closed" only when
// the mark is set and the last user is gone; a late Use that finds the mark
// brings it there a second time, which done tells apart.
func (t *Table) finish(e *entry) {
	t.mu.Lock()
	select {
	case <-e.done:
		t.mu.Unlock()
		return
	default:
	}
	obj := e.obj
	if obj == nil {
		t.mu.Unlock()
		return
	}
	e.obj = nil
	t.closing.Add(1)
	t.mu.Unlock()
	go func() {
		defer t.closing.Add(-1)
		// A panic here has no caller to go to.
		e.err = mem.Guard(obj.Close)
		close(e.done)
		if e.abandon.Load() {
			t.remove(e)
		}
	}()
}

// Close closes the object behind id and waits up to wait for its users to
// leave. It returns false when they have not left by then: the object is
// closed to new users, and calling again waits on. The error is the one of
// the object's own Close. An id that is closed already is no error.
func (t *Table) Close(id int64, wait time.Duration) (bool, error) {
	e := t.find(id)
	if e == nil {
		t.giveBack(id)
		return true, nil
	}
	t.mark(e)
	select {
	case <-e.done:
	default:
		if wait <= 0 {
			return false, nil
		}
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-e.done:
		case <-timer.C:
			return false, nil
		}
	}
	t.remove(e)
	return true, e.err
}

// Abandon closes the object behind id without waiting; when its last user
// leaves, the id is free again.
func (t *Table) Abandon(id int64) {
	e := t.find(id)
	if e == nil {
		t.giveBack(id)
		return
	}
	e.abandon.Store(true)
	t.mark(e)
	select {
	case <-e.done:
		t.remove(e)
	default:
	}
}

// mark sets the closed mark once; it holds a use of its own meanwhile, so that
// the release at its end is the one that finishes an object without users.
func (t *Table) mark(e *entry) {
	for {
		n := e.refs.Load()
		if n < 0 {
			return
		}
		if e.refs.CompareAndSwap(n, n+1+closed) {
			t.release(e)
			return
		}
	}
}

// Each calls f with every object that is open. Objects stay open during the
// call of f; f must not call the table.
func (t *Table) Each(f func(io.Closer)) {
	t.mu.Lock()
	used := t.used
	t.mu.Unlock()
	for slot := range used {
		e := t.pages[slot>>pageBits].Load()[slot&(pageSize-1)].Load()
		if e == nil {
			continue
		}
		if e.refs.Add(1) > 0 {
			f(e.obj)
		}
		t.release(e)
	}
}
