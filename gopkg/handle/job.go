package handle

import (
	"context"
	"fmt"
	"sync"
	"time"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
)

// Job is work in the background for a caller that must not block for long: the
// caller waits for it piece by piece and may cancel it. Safe for concurrent use.
type Job struct {
	cancel context.CancelFunc
	done   chan struct{}
	result int64
	err    error
}

// StartJob runs work on its own goroutine. Memory that work uses must stay
// valid until Wait reports the end, also after Cancel.
func StartJob(work func(context.Context) (int64, error)) *Job {
	ctx, cancel := context.WithCancel(context.Background())
	j := &Job{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer cancel()
		defer close(j.done)
		j.err = mem.Guard(func() (err error) {
			j.result, err = work(ctx)
			return err
		})
		if j.err != nil && ctx.Err() != nil && errs.CodeOf(j.err) == errs.ErrInternal.Code() {
			j.err = fmt.Errorf("%w: %w", errs.ErrCancelled, j.err)
		}
	}()
	return j
}

// Cancel asks the work to stop; Wait tells when it has.
func (j *Job) Cancel() { j.cancel() }

// Wait waits up to d and reports whether the work has ended, with its result.
func (j *Job) Wait(d time.Duration) (done bool, result int64, err error) {
	select {
	case <-j.done:
		return true, j.result, j.err
	default:
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-j.done:
		return true, j.result, j.err
	case <-timer.C:
		return false, 0, nil
	}
}

// Close cancels the work and waits for its end.
func (j *Job) Close() error {
	j.cancel()
	<-j.done
	return nil
}

// Tickets keeps the errors of failed calls until their callers fetch them.
// Errors nobody fetches are overwritten after some thousand others, so that it
// never grows. Safe for concurrent use.
type Tickets struct {
	mu   sync.Mutex
	next int64
	ring [4096]error
}

// Put stores err and returns its ticket, a positive number.
func (t *Tickets) Put(err error) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next++
	t.ring[t.next%int64(len(t.ring))] = err
	return t.next
}

// Get returns the error of a ticket, nil when it is unknown or overwritten.
func (t *Tickets) Get(ticket int64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ticket <= 0 || ticket > t.next || t.next-ticket >= int64(len(t.ring)) {
		return nil
	}
	return t.ring[ticket%int64(len(t.ring))]
}

// Drop forgets a ticket's error.
func (t *Tickets) Drop(ticket int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ticket > 0 && ticket <= t.next && t.next-ticket < int64(len(t.ring)) {
		t.ring[ticket%int64(len(t.ring))] = nil
	}
}
