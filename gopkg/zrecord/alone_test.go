package zrecord

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
)

// Delete and Compact need the store alone, whoever else has it open and how.
func TestDeleteAndCompactRefuseWhileOthersHaveTheStoreOpen(t *testing.T) {
	path := closedStore(t, 20, codec.Zstd)
	s := openStore(t, path, Append)
	readers := []*Store{openStore(t, path, ReadOnly), openStore(t, path, ReadOnly)}
	for _, r := range readers {
		for range 2 {
			if err := s.Delete(t.Context(), []int64{0}, false); !errors.Is(err, errs.ErrInUse) {
				t.Fatalf("delete: %v", err)
			}
			if err := s.Compact(t.Context(), nil); !errors.Is(err, errs.ErrInUse) {
				t.Fatalf("compact: %v", err)
			}
		}
		wantSamples(t, s, 20)
		must(t, r.Close())
	}
	// A refused attempt must not lose the handle's own part in the lock.
	must(t, s.Delete(t.Context(), []int64{0}, false))
	must(t, s.Compact(t.Context(), nil))
	wantNumbers(t, openStore(t, path, ReadOnly), deleteNumbers(count(20), []int64{0}))
}

func TestARefusedDeleteKeepsTheLock(t *testing.T) {
	path := closedStore(t, 5, codec.Raw)
	s := openStore(t, path, Append)
	r := openStore(t, path, ReadOnly)
	if err := s.Delete(t.Context(), []int64{0}, false); !errors.Is(err, errs.ErrInUse) {
		t.Fatal(err)
	}
	must(t, r.Close())
	other, err := joinUsers(path, os.O_RDWR)
	must(t, err)
	defer other.leave()
	if err := other.alone(); !errors.Is(err, errs.ErrInUse) {
		t.Errorf("somebody else got the store alone: %v", err)
	}
}

// While a compact runs, calls on the same handle are refused, new handles too,
// and Len still answers; Close waits.
func TestCallsDuringACompact(t *testing.T) {
	path := closedStore(t, 60, codec.Zstd)
	s := openStore(t, path, Append)
	must(t, s.Delete(t.Context(), []int64{3}, false))
	small(s, 5000, 1)
	want := deleteNumbers(count(60), []int64{3})
	calls := 0
	must(t, s.Compact(t.Context(), func(int64, int64) {
		if calls++; calls > 1 {
			return
		}
		if _, err := read(s, []int64{0}); !errors.Is(err, errs.ErrInUse) {
			t.Errorf("gather: %v", err)
		}
		if err := s.Delete(t.Context(), []int64{0}, false); !errors.Is(err, errs.ErrInUse) {
			t.Errorf("delete: %v", err)
		}
		if _, err := Open(path, Options{}); !errors.Is(err, errs.ErrInUse) {
			t.Errorf("open: %v", err)
		}
		if s.Len() != 59 {
			t.Errorf("len = %d", s.Len())
		}
	}))
	wantNumbers(t, s, want)

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	must(t, s.Delete(t.Context(), []int64{0}, false))
	small(s, 5000, 1)
	err := s.Compact(ctx, func(int64, int64) {
		if calls++; calls > 0 {
			calls = -1 << 40
			wg.Go(func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
			cancel()
		}
	})
	if !errors.Is(err, errs.ErrCancelled) {
		t.Errorf("compact: %v", err)
	}
	wg.Wait()
	if err := s.Delete(t.Context(), nil, false); !errors.Is(err, errs.ErrClosed) {
		t.Errorf("after close: %v", err)
	}
}

// Calls that run on the handle itself make delete refuse, and both end well.
func TestDeleteWhileTheHandleIsUsed(t *testing.T) {
	s := openStore(t, closedStore(t, 200, codec.Zstd), Append)
	if !s.life.Enter() {
		t.Fatal("not open")
	}
	if err := s.Delete(t.Context(), []int64{0}, false); !errors.Is(err, errs.ErrInUse) {
		t.Errorf("delete: %v", err)
	}
	s.life.Leave()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := read(s, []int64{0, 5, 7}); err != nil && !errors.Is(err, errs.ErrInUse) {
					t.Error(err)
					return
				}
			}
		})
	}
	deleted := 0
	for deleted < 10 {
		err := s.Delete(t.Context(), []int64{50}, false)
		if err == nil {
			deleted++
		} else if !errors.Is(err, errs.ErrInUse) {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
	if s.Len() != 190 {
		t.Errorf("len = %d", s.Len())
	}
}

// A store whose first chunk file is missing opens as before, but can't say who
// else uses it.
func TestNoLockFile(t *testing.T) {
	path := closedStore(t, 5, codec.Raw)
	must(t, os.Rename(chunkPath(path, 0), filepath.Join(path, "gone")))
	r := openStore(t, path, ReadOnly)
	if _, err := read(r, []int64{0}); !errors.Is(err, errs.ErrCorrupt) {
		t.Errorf("read: %v", err)
	}
}
