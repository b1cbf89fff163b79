package zrecord

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
)

// Verify reads and decodes every record that the store has when it begins, on
// all cores, and returns how many could not be read. report, unless nil, is
// told each of them and why, in no order but never by two goroutines at once;
// a bad record ends nothing. progress, unless nil, is told how many records are
// done, under the same lock. The error is about the call itself: a closed store,
// a cancelled ctx.
//
// Format 3 has no checksums: damage inside raw records is not seen.
func (s *Store) Verify(ctx context.Context, report func(index int64, err error), progress func(done, total int64)) (bad int64, err error) {
	if err := s.enter(); err != nil {
		return 0, fmt.Errorf("verify: %w", err)
	}
	defer s.life.Leave()
	n, err := s.records()
	if err != nil {
		return 0, fmt.Errorf("verify: %w", err)
	}
	s.files.remeasure()
	v := &verification{store: s, n: n, report: report, progress: progress}
	var wg sync.WaitGroup
	for range min(int64(runtime.GOMAXPROCS(0)), (n+maxBlock-1)/maxBlock) {
		wg.Go(func() {
			// The outer guard is for panics of report and progress.
			if err := mem.Guard(func() error { return v.work(ctx) }); err != nil {
				v.stop(err)
			}
		})
	}
	wg.Wait()
	if v.err != nil {
		return v.bad, fmt.Errorf("verify %s: %w", s.path, v.err)
	}
	return v.bad, nil
}

// verification is one running Verify.
type verification struct {
	store    *Store
	n        int64
	next     atomic.Int64
	report   func(int64, error)
	progress func(int64, int64)

	mu   sync.Mutex // guards the rest
	done int64
	bad  int64
	err  error
}

func (v *verification) stop(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.err == nil {
		v.err = err
	}
	v.next.Store(v.n)
}

func (v *verification) work(ctx context.Context) error {
	l := new(lane)
	var record []byte
	for {
		at := v.next.Add(maxBlock) - maxBlock
		if at >= v.n {
			return nil
		}
		end := min(at+maxBlock, v.n)
		for idx := at; idx < end; idx++ {
			if ctx.Err() != nil {
				return cancelled(ctx)
			}
			l.room[0] = idx
			if err := v.store.check(l, &record); err != nil {
				v.found(idx, err)
			}
		}
		v.count(end - at)
	}
}

func (v *verification) found(idx int64, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.bad++
	if v.report != nil {
		v.report(idx, err)
	}
}

func (v *verification) count(records int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.done += records
	if v.progress != nil {
		v.progress(v.done, v.n)
	}
}

// check reads the record whose index is l.room[0].
func (s *Store) check(l *lane, record *[]byte) error {
	err := mem.Guard(func() error {
		if err := s.files.locate(l.room[:1], l.locs[:1]); err != nil {
			return err
		}
		loc := &l.locs[0]
		if loc.tag == codec.Raw {
			// Copied, so that every page of it is read.
			l.buf = append(l.buf[:0], loc.data...)
			return nil
		}
		if cap(*record) < int(loc.size) {
			*record = make([]byte, loc.size)
		}
		if err := s.decode((*record)[:loc.size], loc, l); err != nil {
			return fmt.Errorf("store %s: record %d: %w", s.path, l.room[0], err)
		}
		return nil
	})
	if errors.Is(err, errs.ErrFault) {
		err = s.explainFault(l.room[:1], err)
	}
	return err
}
