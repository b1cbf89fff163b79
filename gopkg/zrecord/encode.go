package zrecord

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
)

// encodeRun compresses the records of one append on several goroutines and
// delivers the blocks in order. At most workers+2 blocks are in memory.
//
// A worker compresses its own copy of a block: libzstd must not read a mapped
// file of the caller, and a cancelled append need not wait for libzstd before
// it gives the caller's memory back.
type encodeRun struct {
	tag    codec.Tag
	encode codec.Encoder

	mu      sync.Mutex // guards the fields below and reading span.src
	span    span
	claimed int // blocks claimed by workers
	stopped bool

	quit  chan struct{}
	free  chan *slot   // slots that hold no block
	ready []chan *slot // block i arrives at ready[i % len(ready)]
	taken int          // blocks delivered
	last  *slot        // delivered last; free again with the next one
	own   *slot        // for a run without workers
}

// slot holds one block, before and after compression.
type slot struct {
	number int // of the block, -1 for none
	src    []byte
	out    []byte
	block  block
	err    error
}

var slots = sync.Pool{New: func() any { return new(slot) }}

// encoding bounds the goroutines that compress in this process.
var encoding = make(chan struct{}, runtime.GOMAXPROCS(0))

// startEncoding starts workers goroutines; with 0 the caller of next does the
// work.
func startEncoding(records span, tag codec.Tag, encode codec.Encoder, workers int) *encodeRun {
	r := &encodeRun{tag: tag, encode: encode, span: records}
	if workers == 0 {
		r.own = slots.Get().(*slot)
		return r
	}
	window := workers + 2
	r.quit = make(chan struct{})
	r.free = make(chan *slot, window)
	r.ready = make([]chan *slot, window)
	for i := range r.ready {
		r.ready[i] = make(chan *slot, 1)
		r.free <- slots.Get().(*slot)
	}
	for range workers {
		go r.work()
	}
	return r
}

// work compresses blocks until there are none left or the run is stopped.
func (r *encodeRun) work() {
	for {
		var s *slot
		select {
		case <-r.quit:
			return
		case s = <-r.free:
		}
		select {
		case <-r.quit:
			return
		case encoding <- struct{}{}:
		}
		s.err = mem.Guard(func() error {
			if !r.claim(s) {
				return nil
			}
			return r.compress(s)
		})
		<-encoding
		if s.number < 0 {
			slots.Put(s)
			return
		}
		r.ready[s.number%len(r.ready)] <- s
	}
}

// claim copies the next block's records to s. It returns false, and s.number
// is -1, when there is none.
func (r *encodeRun) claim(s *slot) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.number = -1
	if r.stopped || r.span.at == len(r.span.offsets) {
		return false
	}
	// The number is set before the copy, which may fault: the block must be
	// delivered all the same, with its error.
	s.number = r.claimed
	r.claimed++
	var data []byte
	data, s.block.records = r.span.cut(encodeBlockBytes, s.block.records[:0])
	s.src = append(s.src[:0], data...)
	return true
}

// compress fills s.out and s.block from s.src.
func (r *encodeRun) compress(s *slot) error {
	out, src := s.out[:0], s.src
	for i := range s.block.records {
		rec := &s.block.records[i]
		record := src[:rec.size]
		src = src[rec.size:]
		out = slices.Grow(out, codec.Bound(len(record)))
		start := len(out)
		done, err := r.encode(out, record)
		if err != nil {
			return fmt.Errorf("compress record of %d bytes: %w: %v", len(record), errs.ErrInternal, err)
		}
		if size := len(done) - start; size < len(record) {
			out, rec.phys, rec.tag = done, uint32(size), r.tag
		} else {
			out = append(out[:start], record...)
		}
	}
	s.out, s.block.data = out, out
	return nil
}

func (r *encodeRun) next(ctx context.Context) (block, error) {
	if ctx.Err() != nil {
		return block{}, cancelled(ctx)
	}
	if r.own != nil {
		return r.nextInline()
	}
	if r.last != nil {
		r.free <- r.last
		r.last = nil
	}
	if r.delivered() {
		return block{}, nil
	}
	select {
	case <-ctx.Done():
		return block{}, cancelled(ctx)
	case s := <-r.ready[r.taken%len(r.ready)]:
		r.taken++
		if s.err != nil {
			return block{}, s.err
		}
		r.last = s
		return s.block, nil
	}
}

// delivered reports whether next has returned every block.
func (r *encodeRun) delivered() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.span.at == len(r.span.offsets) && r.taken == r.claimed
}

func (r *encodeRun) nextInline() (block, error) {
	s := r.own
	err := mem.Guard(func() error {
		if !r.claim(s) {
			s.block = block{records: s.block.records[:0]}
			return nil
		}
		return r.compress(s)
	})
	return s.block, err
}

// stop ends the run: when it returns, nobody reads the caller's memory any
// more. A worker inside libzstd ends by itself afterwards.
func (r *encodeRun) stop() {
	r.mu.Lock()
	r.stopped = true
	r.span.src = nil
	r.mu.Unlock()
	if r.own != nil {
		slots.Put(r.own)
		return
	}
	close(r.quit)
	if r.last != nil {
		slots.Put(r.last)
	}
	for {
		select {
		case s := <-r.free:
			slots.Put(s)
		default:
			return
		}
	}
}
