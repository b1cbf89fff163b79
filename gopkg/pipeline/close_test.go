package pipeline

import (
	"runtime"
	"testing"
	"time"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/sampler"
)

func gated(t *testing.T, workers int) (*owner, *gate) {
	g := newGate()
	t.Cleanup(g.release)
	return open(t, Config{
		Plan: plan(1000, 2, sampler.Sequential), Workers: workers, Ahead: 3, Slots: 5,
		Streams: []Stream{{Name: "x", Records: &fake{size: big, gate: g.pass}, RowBytes: 8 * bigUnits}},
	}, 2*8*bigUnits), g
}

// The early prototype freed buffers that a goroutine was writing to.
func TestCloseWaitsForWritersToLeave(t *testing.T) {
	o, g := gated(t, 3)
	g.wait(t)
	o.p.Stop()
	if o.p.Stopped() {
		t.Fatal("stopped while a goroutine is in a gather")
	}
	closed := make(chan struct{})
	go func() {
		_ = o.p.Close()
		close(closed)
	}()
	select {
	case <-closed:
		t.Fatal("closed while a goroutine is in a gather")
	case <-time.After(50 * time.Millisecond):
	}
	g.release()
	<-closed
	if !o.p.Stopped() {
		t.Fatal("closed and not stopped")
	}
	for id := range o.slots { // the memory is the caller's again: a late writer is a race
		clear(o.slots[id].Buffers[0].Data)
	}
	_, err := o.next(0)
	wantErr(t, "next", err, errs.ErrClosed)
	wantErr(t, "give", o.p.Give(0, o.slots[0]), errs.ErrClosed)
}

func TestCloseWaitsForAConsumerThatHelps(t *testing.T) {
	o, g := gated(t, 0)
	done := make(chan error)
	go func() {
		_, err := o.next(0)
		done <- err
	}()
	g.wait(t)
	o.p.Stop()
	if o.p.Stopped() {
		t.Fatal("stopped while a consumer copies")
	}
	g.release()
	wantErr(t, "next", <-done, errs.ErrClosed)
	_ = o.p.Close()
}

func TestCloseWakesAConsumerThatWaits(t *testing.T) {
	o, g := gated(t, 1)
	g.wait(t)
	done := make(chan error)
	go func() {
		for {
			// It can't help: the step is in a worker's hands.
			if _, err := o.p.Next(0, time.Hour); err != nil {
				done <- err
				return
			}
		}
	}()
	time.Sleep(10 * time.Millisecond)
	o.p.Stop()
	g.release()
	wantErr(t, "next", <-done, errs.ErrClosed)
}

func TestNextReturnsInTime(t *testing.T) {
	// One block a step and one step ahead: nothing to help with.
	g := newGate()
	o := open(t, Config{
		Plan: plan(1000, 1, sampler.Sequential), Workers: 1, Ahead: 1, Slots: 5,
		Streams: []Stream{{Name: "x", Records: &fake{size: big, gate: g.pass}, RowBytes: 8 * bigUnits}},
	}, 8*bigUnits)
	g.wait(t)
	d, err := o.p.Next(0, time.Millisecond)
	if err != nil || d.Outcome != Later {
		t.Fatalf("got %v, %v", d, err)
	}
	g.release()
	o.batch(0)
}

func TestWithoutSlotsNextWaitsForOne(t *testing.T) {
	p, err := New(Config{Plan: plan(10, 2, sampler.IID), Slots: 1, Streams: []Stream{{Name: "x", Records: &fake{}, RowBytes: 8}}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if d, err := p.Next(0, time.Millisecond); err != nil || d.Outcome != Later {
		t.Fatalf("got %v, %v", d, err)
	}
	done := make(chan Delivery)
	go func() {
		d, _ := p.Next(0, time.Hour)
		done <- d
	}()
	time.Sleep(5 * time.Millisecond)
	if err := p.Give(0, Slot{Indices: make([]int64, 2), Buffers: []Buffer{{Data: make([]byte, 16)}}}); err != nil {
		t.Fatal(err)
	}
	if d := <-done; d.Outcome != Batch {
		t.Fatalf("got %v", d)
	}
}

func TestPipelinesLeaveNoGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	for k := range 300 {
		o, err := New(Config{
			Plan: plan(100, 4, sampler.IID), Workers: 4, Ahead: 4, Slots: 6,
			Streams: []Stream{{Name: "x", Records: &fake{size: big}, RowBytes: 8 * bigUnits}},
		})
		if err != nil {
			t.Fatal(err)
		}
		slot := Slot{Indices: make([]int64, 4), Buffers: []Buffer{{Data: make([]byte, 4*8*bigUnits)}}}
		if err := o.Give(0, slot); err != nil {
			t.Fatal(err)
		}
		if k%3 == 0 {
			if _, err := o.Next(0, time.Second); err != nil {
				t.Fatal(err)
			}
		}
		_ = o.Close()
	}
	for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > before {
		t.Fatalf("%d goroutines, %d before", n, before)
	}
}
