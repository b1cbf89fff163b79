package pipeline

import (
	"fmt"
	"sync"
	"time"

	"loaderx/gopkg/errs"
)

// worth is what a step must cost before workers are woken for it, in
// nanoseconds: waking one costs the consumer several microseconds.
const worth = 20_000

// Pipeline is a running pipeline. It is safe for concurrent use.
type Pipeline struct {
	cfg  Config
	most int    // indices of the largest step
	end  uint64 // the first step that does not exist

	mu      sync.Mutex
	work    sync.Cond // workers wait for something to claim
	slots   []slot
	free    []*slot // the last one given is used first: it is in the cache
	queue   []*slot // steps begun and not delivered, in order
	begin   uint64  // the next step to begin
	failed  bool    // no step is begun after one has failed
	closed  bool
	running int // goroutines and calls that may touch slots
	idle    sync.Cond
	waiters []*waiter
	cost    int64 // of a step, a moving average in nanoseconds
}

// New starts a pipeline. It does nothing before it was given a slot. The caller
// closes it, and frees the slots after that.
func New(cfg Config) (*Pipeline, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("pipeline: %w", err)
	}
	most, err := cfg.Plan.Most()
	if err != nil {
		return nil, fmt.Errorf("pipeline: %w", err)
	}
	p := &Pipeline{cfg: cfg, most: most, begin: cfg.Step, end: cfg.Plan.Steps(), slots: make([]slot, cfg.Slots)}
	p.work.L, p.idle.L = &p.mu, &p.mu
	for i := range p.slots {
		p.slots[i].id = i
		p.slots[i].parts = make([]part, len(cfg.Streams))
		p.slots[i].Buffers = make([]Buffer, 0, len(cfg.Streams))
	}
	for i := range cfg.Streams {
		if cfg.Streams[i].Kind != Dense {
			p.cost = 2 * worth // not known yet
		}
		p.cost += int64(most) * cfg.Streams[i].RowBytes / 8 // 8 bytes a nanosecond
	}
	n := cfg.goroutines()
	if cfg.Ahead == 0 {
		n = 0
	}
	p.running = n
	for range n {
		go p.worker()
	}
	return p, nil
}

// Give hands a slot to the pipeline: one that it never had, one that Next
// delivered, or one that Next said was too small, with larger buffers.
func (p *Pipeline) Give(id int, m Slot) error {
	if id < 0 || id >= len(p.slots) {
		return fmt.Errorf("slot %d of %d: %w", id, len(p.slots), errs.ErrArgument)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.slots[id]
	if err := p.mayGive(s); err != nil {
		return err
	}
	return p.give(s, m)
}

// mayGive returns why a slot's memory must not be changed now.
func (p *Pipeline) mayGive(s *slot) error {
	if p.closed {
		return fmt.Errorf("pipeline: %w", errs.ErrClosed)
	}
	if s.state != taken && s.state != starved {
		return fmt.Errorf("slot %d was not delivered: %w", s.id, errs.ErrArgument)
	}
	return nil
}

func (p *Pipeline) give(s *slot, m Slot) error {
	if err := s.give(&p.cfg, m, p.most); err != nil {
		return err
	}
	if s.state == starved {
		s.state = unplanned
	} else {
		s.state = free
		p.free = append(p.free, s)
	}
	p.rouse()
	p.notify(nil)
	return nil
}

// rouse wakes a worker if there is work that is worth it.
func (p *Pipeline) rouse() {
	if p.cost >= worth {
		p.work.Signal()
	}
}

// claim finds work for l: a block or a plan of the earliest step that has any,
// or else the next step. A consumer may begin the step it waits for however
// many are under way.
func (p *Pipeline) claim(l *lane, beyond bool) bool {
	for _, s := range p.queue {
		switch {
		case s.state == unplanned:
			s.state = planning
			l.s, l.at = s, planIt
			return true
		case s.state == filling && s.claimed < s.blocks:
			l.s, l.at = s, s.claimed
			s.claimed++
			return true
		}
	}
	n := len(p.free)
	if n == 0 || p.failed || p.begin >= p.end || (len(p.queue) >= p.cfg.Ahead && !beyond) {
		return false
	}
	s := p.free[n-1]
	p.free = p.free[:n-1]
	p.queue = append(p.queue, s)
	s.state, s.step = planning, p.begin
	s.n, s.err, s.errAt, s.cost = 0, nil, 0, 0
	p.begin++
	l.s, l.at = s, planIt
	return true
}

// step does the claimed work; the lock is held before and after.
func (p *Pipeline) step(l *lane) {
	l.cfg = &p.cfg
	p.mu.Unlock()
	took, err := l.do()
	p.mu.Lock()
	s := l.s
	l.s = nil
	s.cost += int64(took)
	if l.at == planIt {
		s.state = filling
		switch {
		case err != nil:
			s.blocks, s.claimed, s.left = 0, 0, 0
			p.fail(s, 0, err)
		case !l.fits:
			s.state = starved
			p.notify(s)
			return
		case s.blocks > 1:
			p.rouse()
		}
	} else {
		s.left--
		if err != nil {
			p.fail(s, l.at, err)
		}
	}
	if s.left == 0 {
		s.state = ready
		p.cost += (s.cost - p.cost) / 4
		p.notify(s)
	}
}

// fail notes a step's error; of several the one at the earliest block stays.
func (p *Pipeline) fail(s *slot, at int, err error) {
	if s.err == nil || at < s.errAt {
		s.err, s.errAt = err, at
	}
	s.left -= s.blocks - s.claimed
	s.claimed = s.blocks
	p.failed = true
}

// worker is the body of a goroutine.
func (p *Pipeline) worker() {
	l := newLane()
	p.mu.Lock()
	for !p.closed {
		if p.cost >= worth && p.claim(l, false) {
			p.step(l)
		} else {
			p.work.Wait()
		}
	}
	p.left()
	p.mu.Unlock()
}

// left ends what running counts.
func (p *Pipeline) left() {
	p.running--
	if p.running == 0 {
		p.idle.Broadcast()
	}
}

// Stop makes Next return, and every goroutine end after the block it copies. It
// waits for nothing.
func (p *Pipeline) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.work.Broadcast()
	p.notify(nil)
}

// Stopped reports whether no goroutine and no call will touch a slot again.
func (p *Pipeline) Stopped() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed && p.running == 0
}

// Close stops the pipeline and waits until no slot will be touched again. A
// second call waits, too.
func (p *Pipeline) Close() error {
	p.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.running > 0 {
		p.idle.Wait()
	}
	return nil
}

// waiter is a call of Next that sleeps until its step is ready.
type waiter struct {
	want uint64
	wake chan struct{} // has room for one
	lane *lane
	time *time.Timer
}

// notify wakes the waiters of a step, or all of them.
func (p *Pipeline) notify(s *slot) {
	for _, w := range p.waiters {
		if s == nil || w.want == s.step {
			select {
			case w.wake <- struct{}{}:
			default:
			}
		}
	}
}
