package pipeline

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/sampler"
	"loaderx/gopkg/zrecord"
)

// fake holds records that are functions of their number: record i is i, as
// 8 bytes, size(i) times.
type fake struct {
	size  func(i int64) int // in units of 8 bytes; nil: 1
	fails func(i int64) error
	gate  func(i int64) // called before record i is copied
}

func (f *fake) units(i int64) int {
	if f.size == nil {
		return 1
	}
	return f.size(i)
}

func (f *fake) Gather(r *zrecord.Request, _ int, _ time.Duration) (int, error) {
	for k, idx := range r.Idxs {
		if f.gate != nil {
			f.gate(idx)
		}
		if f.fails != nil {
			if err := f.fails(idx); err != nil {
				return 0, err
			}
		}
		at := uint64(k) * uint64(r.RowBytes)
		if r.Offsets != nil {
			at = r.Offsets[k]
		}
		dst := r.Dst[at:]
		for range f.units(idx) {
			binary.LittleEndian.PutUint64(dst, uint64(idx))
			dst = dst[8:]
		}
	}
	return len(r.Idxs), nil
}

func (f *fake) Lengths(idxs []int64, _ int64, out []uint32) (total int64, err error) {
	for k, idx := range idxs {
		out[k] = uint32(8 * f.units(idx))
		total += int64(out[k])
	}
	return total, nil
}

func plan(n, batch uint64, mode sampler.Mode) sampler.Plan {
	return sampler.Plan{Length: n, Batch: batch, Mode: mode, Seed: 42, World: 1}
}

// owner is a caller: it owns the memory of slots.
type owner struct {
	t     *testing.T
	p     *Pipeline
	slots []Slot
}

// open starts a pipeline and gives it all its slots, with data of the given
// number of bytes for each stream.
func open(t *testing.T, cfg Config, bytes ...int) *owner {
	t.Helper()
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	o := &owner{t: t, p: p}
	most, _ := cfg.Plan.Most()
	for id := range cfg.Slots {
		s := Slot{Indices: make([]int64, most)}
		for _, n := range bytes {
			b := Buffer{Data: make([]byte, n), Aux: make([]int64, most+1)}
			fill(b.Data, []byte{0xAA}) // what was in the memory must not show
			s.Buffers = append(s.Buffers, b)
		}
		o.slots = append(o.slots, s)
		o.give(id)
	}
	return o
}

func (o *owner) give(id int) {
	o.t.Helper()
	if err := o.p.Give(id, o.slots[id]); err != nil {
		o.t.Fatal(err)
	}
}

// next waits for a step, however long it takes.
func (o *owner) next(step uint64) (Delivery, error) {
	for {
		d, err := o.p.Next(step, 20*time.Millisecond)
		if err != nil || d.Outcome != Later {
			return d, err
		}
	}
}

// batch is next for a step that must come.
func (o *owner) batch(step uint64) Delivery {
	o.t.Helper()
	d, err := o.next(step)
	if err != nil {
		o.t.Fatalf("step %d: %v", step, err)
	}
	if d.Outcome != Batch {
		o.t.Fatalf("step %d: outcome %d", step, d.Outcome)
	}
	return d
}

// words reads a stream's part of a slot as the numbers in it.
func (o *owner) words(id, stream, n int) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = int64(binary.LittleEndian.Uint64(o.slots[id].Buffers[stream].Data[8*i:]))
	}
	return out
}

func want(t *testing.T, p sampler.Plan, step uint64) []int64 {
	t.Helper()
	most, err := p.Most()
	if err != nil {
		t.Fatal(err)
	}
	out := make([]int64, most)
	n, err := p.Fill(step, out)
	if err != nil {
		t.Fatal(err)
	}
	return out[:n]
}

func equal(t *testing.T, what string, got, want []int64) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

func wantErr(t *testing.T, what string, err error, kind *errs.Error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("%s: got %v, want %v", what, err, kind)
	}
}

// gate stops goroutines until it is opened.
type gate struct {
	once    sync.Once
	open    chan struct{}
	arrived chan int64
}

func newGate() *gate { return &gate{open: make(chan struct{}), arrived: make(chan int64, 1000)} }

func (g *gate) pass(i int64) {
	g.arrived <- i
	<-g.open
}

func (g *gate) release() { g.once.Do(func() { close(g.open) }) }

func (g *gate) wait(t *testing.T) {
	t.Helper()
	select {
	case <-g.arrived:
	case <-time.After(20 * time.Second):
		t.Fatal("nobody came")
	}
}

var errBad = fmt.Errorf("bad record: %w", errs.ErrCorrupt)
