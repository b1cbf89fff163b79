package pipeline

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"loaderx/gopkg/errs"
)

// Outcome is what Next returned.
type Outcome uint8

// The outcomes. The numbers are part of the boundary to Python.
const (
	// Batch is a slot that holds the step.
	Batch Outcome = 0
	// Grow is a slot whose buffers are too small for the step: give it again
	// with larger ones, then ask again.
	Grow Outcome = 1
	// End means that there is no such step.
	End Outcome = 2
	// Later means that the time is up: ask again.
	Later Outcome = 3
)

// Delivery is a slot that belongs to the caller.
type Delivery struct {
	Outcome Outcome
	Slot    int
	Records int     // in the step
	Rows    []int64 // of each stream's result, or for Grow the bytes it needs
}

// Next delivers a step, and the error that it failed with as an error. Steps
// are asked for in order, also by several callers at once; a step that was
// delivered already is delivered again, for as long as its slot was not given
// back. After about wait it returns Later. Closing the pipeline ends it with
// errs.ErrClosed.
func (p *Pipeline) Next(want uint64, wait time.Duration) (Delivery, error) {
	s, outcome, err := p.next(want, wait)
	if s == nil || err != nil {
		return Delivery{Outcome: outcome, Slot: -1}, err
	}
	d := Delivery{Outcome: outcome, Slot: s.id, Records: s.n}
	for i := range s.parts {
		if outcome == Grow {
			d.Rows = append(d.Rows, s.parts[i].need)
		} else {
			d.Rows = append(d.Rows, s.parts[i].rows)
		}
	}
	return d, nil
}

// NextAt is Next for slots that were given with GiveAt: what they hold is
// written into their words. It returns -1 for no slot.
func (p *Pipeline) NextAt(want uint64, wait time.Duration) (slot int64, outcome Outcome, err error) {
	s, outcome, err := p.next(want, wait)
	if s == nil || err != nil {
		return -1, outcome, err
	}
	s.tell(outcome)
	return int64(s.id), outcome, nil
}

var waiters = sync.Pool{New: func() any {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return &waiter{wake: make(chan struct{}, 1), lane: newLane(), time: timer}
}}

func (p *Pipeline) next(want uint64, wait time.Duration) (*slot, Outcome, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s, outcome, done, err := p.look(want); done {
		return s, outcome, err
	}
	w := waiters.Get().(*waiter)
	w.want = want
	select { // a wake-up that came too late for its last user
	case <-w.wake:
	default:
	}
	p.waiters = append(p.waiters, w)
	p.running++
	defer func() {
		p.left()
		at := slices.Index(p.waiters, w)
		p.waiters = slices.Delete(p.waiters, at, at+1)
		waiters.Put(w)
	}()
	var end time.Time
	for {
		if p.claim(w.lane, want >= p.begin) {
			if end.IsZero() {
				end = time.Now().Add(wait)
			}
			p.step(w.lane)
		} else {
			if end.IsZero() {
				end = time.Now().Add(wait)
			}
			p.sleep(w, time.Until(end))
		}
		if s, outcome, done, err := p.look(want); done {
			return s, outcome, err
		}
		if !time.Now().Before(end) {
			return nil, Later, nil
		}
	}
}

// sleep waits for a wake-up without the lock.
func (p *Pipeline) sleep(w *waiter, d time.Duration) {
	p.mu.Unlock()
	defer p.mu.Lock()
	w.time.Reset(d)
	defer w.time.Stop()
	select {
	case <-w.wake:
	case <-w.time.C:
	}
}

// look finds a step that can be delivered, or why it never will.
func (p *Pipeline) look(want uint64) (s *slot, outcome Outcome, done bool, err error) {
	if p.closed {
		return nil, Later, true, fmt.Errorf("pipeline: %w", errs.ErrClosed)
	}
	if want >= p.end {
		return nil, End, true, nil
	}
	for at, s := range p.queue {
		if s.step != want {
			continue
		}
		switch {
		case s.state == starved:
			return s, Grow, true, nil
		case s.state != ready:
			return nil, Later, false, nil
		case s.err != nil:
			return nil, Later, true, fmt.Errorf("step %d: %w", want, s.err)
		}
		s.state = taken
		p.queue = slices.Delete(p.queue, at, at+1)
		if len(p.free) > 0 {
			p.rouse()
		}
		return s, Batch, true, nil
	}
	if want < p.begin {
		for i := range p.slots {
			if s := &p.slots[i]; s.state == taken && s.step == want && s.n > 0 {
				return s, Batch, true, nil
			}
		}
		return nil, Later, true, fmt.Errorf("step %d was delivered and its slot given back: %w", want, errs.ErrArgument)
	}
	if p.failed {
		for _, s := range p.queue {
			if s.err != nil {
				return nil, Later, true, fmt.Errorf("step %d: %w", s.step, s.err)
			}
		}
	}
	return nil, Later, false, nil
}
