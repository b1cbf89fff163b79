package handle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"loaderx/gopkg/errs"
)

type object struct {
	closes atomic.Int32
	err    error
}

func (o *object) Close() error { o.closes.Add(1); return o.err }

type other struct{}

func (other) Close() error { return nil }

func put(t *testing.T, table *Table, o *object) int64 {
	t.Helper()
	id, err := table.Reserve()
	if err == nil {
		err = table.Fill(id, o)
	}
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestAnObjectIsUsableUntilItIsClosed(t *testing.T) {
	var table Table
	o := &object{}
	id := put(t, &table, o)
	got, ref, err := Use[*object](&table, id)
	if err != nil || got != o {
		t.Fatalf("Use: %v, %v", got, err)
	}
	if _, _, err := Use[other](&table, id); !errors.Is(err, errs.ErrType) {
		t.Fatalf("other kind: %v", err)
	}
	if closed, _ := table.Close(id, 0); closed || o.closes.Load() != 0 {
		t.Fatal("closed beneath its user")
	}
	if _, _, err := Use[*object](&table, id); !errors.Is(err, errs.ErrClosed) {
		t.Fatalf("use after Close: %v", err)
	}
	ref.Release()
	if closed, err := table.Close(id, time.Second); !closed || err != nil || o.closes.Load() != 1 {
		t.Fatalf("closed %v, %v, %d times", closed, err, o.closes.Load())
	}
	if table.Len() != 0 {
		t.Fatalf("Len = %d", table.Len())
	}
}

func TestUnknownIdsAreClosed(t *testing.T) {
	var table Table
	id := put(t, &table, &object{})
	for _, unknown := range []int64{0, -1, id + 1, id + 1<<slotBits, 1<<63 - 1, -1 << 63} {
		if _, _, err := Use[*object](&table, unknown); !errors.Is(err, errs.ErrClosed) {
			t.Errorf("id %d: %v", unknown, err)
		}
		if closed, err := table.Close(unknown, 0); !closed || err != nil {
			t.Errorf("closing id %d: %v, %v", unknown, closed, err)
		}
		table.Abandon(unknown)
	}
}

func TestGenerationsNeverShareIds(t *testing.T) {
	var parent, child Table
	child.SetGeneration(1)
	seen := map[int64]bool{}
	for range 100 {
		seen[put(t, &parent, &object{})] = true
	}
	for range 100 {
		if id := put(t, &child, &object{}); seen[id] {
			t.Fatalf("id %d in both generations", id)
		}
	}
}

func TestCloseReportsTheObjectsError(t *testing.T) {
	var table Table
	id := put(t, &table, &object{err: errs.ErrIO})
	if closed, err := table.Close(id, time.Second); !closed || !errors.Is(err, errs.ErrIO) {
		t.Fatalf("%v, %v", closed, err)
	}
}

func TestAbandonedObjectsLeaveTheTable(t *testing.T) {
	var table Table
	o := &object{}
	id := put(t, &table, o)
	_, ref, err := Use[*object](&table, id)
	if err != nil {
		t.Fatal(err)
	}
	table.Abandon(id)
	if o.closes.Load() != 0 || table.Len() != 1 {
		t.Fatal("closed beneath its user")
	}
	ref.Release()
	settle(t, &table)
	if o.closes.Load() != 1 || table.Len() != 0 {
		t.Fatalf("closed %d times, Len %d", o.closes.Load(), table.Len())
	}
}

// settle waits until no object is being closed.
func settle(t *testing.T, table *Table) {
	t.Helper()
	for range 10_000 {
		if table.Closing() == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("an object does not finish closing")
}

func TestReservedIdsAreFilledOnceOrGivenBack(t *testing.T) {
	var table Table
	id, err := table.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := Use[*object](&table, id); !errors.Is(err, errs.ErrClosed) {
		t.Fatalf("use of an empty id: %v", err)
	}
	if err := table.Fill(id, &object{}); err != nil {
		t.Fatal(err)
	}
	second := &object{}
	if err := table.Fill(id, second); !errors.Is(err, errs.ErrClosed) || second.closes.Load() != 1 {
		t.Fatalf("filled twice: %v, closed %d times", err, second.closes.Load())
	}
	for i := range 3 {
		id, err := table.Reserve()
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			table.Abandon(id)
		} else if closed, err := table.Close(id, 0); !closed || err != nil {
			t.Fatalf("%v, %v", closed, err)
		}
		late := &object{}
		if err := table.Fill(id, late); !errors.Is(err, errs.ErrClosed) || late.closes.Load() != 1 {
			t.Fatalf("filled after it was given back: %v", err)
		}
	}
	if table.used != 2 {
		t.Fatalf("%d slots in use for at most two ids", table.used)
	}
}

type stuck struct{ release chan struct{} }

func (s stuck) Close() error { <-s.release; return nil }

func TestNoCallerWaitsLongerThanItAskedFor(t *testing.T) {
	var table Table
	id, err := table.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	s := stuck{make(chan struct{})}
	if err := table.Fill(id, s); err != nil {
		t.Fatal(err)
	}
	if closed, _ := table.Close(id, time.Millisecond); closed {
		t.Fatal("closed before its Close returned")
	}
	close(s.release)
	if closed, err := table.Close(id, 10*time.Second); !closed || err != nil {
		t.Fatalf("%v, %v", closed, err)
	}
}

func TestClosingUnderUsersClosesOnce(t *testing.T) {
	var table Table
	for range 200 {
		o := &object{}
		id := put(t, &table, o)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for range 50 {
					_, ref, err := Use[*object](&table, id)
					if err != nil {
						return
					}
					if o.closes.Load() != 0 {
						t.Error("used after Close")
					}
					ref.Release()
				}
				if i%3 == 0 {
					table.Abandon(id)
				} else if closed, _ := table.Close(id, 10*time.Second); !closed {
					t.Error("Close timed out")
				}
			})
		}
		wg.Wait()
		settle(t, &table)
		if o.closes.Load() != 1 {
			t.Fatalf("closed %d times", o.closes.Load())
		}
	}
	settle(t, &table)
	if table.Len() != 0 {
		t.Fatalf("Len = %d", table.Len())
	}
}

func TestAFullTableSaysSo(t *testing.T) {
	var table Table
	table.used = maxSlots
	if _, err := table.Reserve(); !errors.Is(err, errs.ErrFull) {
		t.Fatal(err)
	}
}

func TestJobsEndWithTheirResultErrorOrPanic(t *testing.T) {
	cases := []struct {
		name   string
		work   func(context.Context) (int64, error)
		cancel bool
		result int64
		want   error
	}{
		{"result", func(context.Context) (int64, error) { return 7, nil }, false, 7, nil},
		{"error", func(context.Context) (int64, error) { return 0, errs.ErrFull }, false, 0, errs.ErrFull},
		{"panic", func(context.Context) (int64, error) { panic("boom") }, false, 0, errs.ErrInternal},
		{"cancelled", func(ctx context.Context) (int64, error) { <-ctx.Done(); return 0, ctx.Err() }, true, 0, errs.ErrCancelled},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			job := StartJob(c.work)
			if c.cancel {
				if ended, _, _ := job.Wait(time.Millisecond); ended {
					t.Fatal("ended by itself")
				}
				job.Cancel()
			}
			ended, result, err := job.Wait(10 * time.Second)
			if !ended || result != c.result || !errors.Is(err, c.want) {
				t.Fatalf("%v, %d, %v", ended, result, err)
			}
			if c.want == nil && err != nil {
				t.Fatal(err)
			}
			_ = job.Close()
		})
	}
}

func TestTicketsGiveEachErrorToItsCaller(t *testing.T) {
	var tickets Tickets
	first := tickets.Put(errs.ErrIndex)
	if tickets.Get(first) != errs.ErrIndex || tickets.Get(first+1) != nil || tickets.Get(0) != nil || tickets.Get(-1) != nil {
		t.Fatal("wrong error for a ticket")
	}
	tickets.Drop(first)
	if tickets.Get(first) != nil {
		t.Fatal("dropped ticket still there")
	}
	for i := range 3 * len(tickets.ring) {
		ticket := tickets.Put(fmt.Errorf("error %d", i))
		if got := tickets.Get(ticket); got == nil || got.Error() != fmt.Sprintf("error %d", i) {
			t.Fatalf("ticket %d: %v", ticket, got)
		}
	}
	if tickets.Get(first) != nil {
		t.Fatal("an overwritten ticket gives a foreign error")
	}
}
