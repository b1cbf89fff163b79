package zrecord

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
)

func count(n int) []int {
	numbers := make([]int, n)
	for i := range numbers {
		numbers[i] = i
	}
	return numbers
}

func TestDeleteMovesTheLastRecordIntoTheHole(t *testing.T) {
	cases := []struct {
		name string
		idxs []int64
		want []int
	}{
		{"nothing", nil, []int{0, 1, 2, 3, 4, 5}},
		{"the first", []int64{0}, []int{5, 1, 2, 3, 4}},
		{"the last", []int64{5}, []int{0, 1, 2, 3, 4}},
		{"the last two", []int64{4, 5}, []int{0, 1, 2, 3}},
		{"neighbours near the end", []int64{3, 4}, []int{0, 1, 2, 5}},
		{"a moved record moves again", []int64{4, 3, 2}, []int{0, 1, 5}},
		{"twice the same", []int64{1, 1, 1}, []int{0, 5, 2, 3, 4}},
		{"from the end", []int64{-1, 5, -6}, []int{4, 1, 2, 3}},
		{"any order", []int64{0, 5, 2}, []int{3, 1, 4}},
		{"all", []int64{0, 1, 2, 3, 4, 5}, []int{}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			path := closedStore(t, 6, codec.Zstd)
			s := openStore(t, path, Append)
			must(t, s.Delete(t.Context(), c.idxs, true))
			wantNumbers(t, s, c.want)
			must(t, s.Close())
			wantNumbers(t, openStore(t, path, ReadOnly), c.want)
			if exists(filepath.Join(path, redoName)) {
				t.Error("the journal was left")
			}
		})
	}
}

func TestDeletesOfAnySizeFollowTheRule(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 40 {
		n := 1 + rng.IntN(300)
		path := closedStore(t, n, codec.Raw)
		s := openStore(t, path, Append)
		numbers := count(n)
		for len(numbers) > 0 && rng.IntN(5) > 0 {
			idxs := make([]int64, rng.IntN(2*len(numbers)+1))
			for i := range idxs {
				idxs[i] = int64(rng.IntN(len(numbers)))
			}
			numbers = deleteNumbers(numbers, idxs)
			must(t, s.Delete(t.Context(), idxs, false))
			wantNumbers(t, s, numbers)
		}
		must(t, s.Close())
		s = openStore(t, path, Append)
		wantNumbers(t, s, numbers)
		src, offsets := samples(n, n+3)
		first, err := s.Append(t.Context(), src, offsets, codec.Zstd)
		if err != nil || first != int64(len(numbers)) {
			t.Fatalf("append: %d, %v", first, err)
		}
		wantNumbers(t, s, append(numbers, n, n+1, n+2))
	}
}

func TestDeleteRefusesBadIndicesAndDoesNothing(t *testing.T) {
	s := openStore(t, closedStore(t, 5, codec.Raw), Append)
	for _, c := range []struct {
		idxs   []int64
		signed bool
	}{{[]int64{0, 5}, true}, {[]int64{0, -6}, true}, {[]int64{-1}, false}, {[]int64{1 << 62}, false}} {
		if err := s.Delete(t.Context(), c.idxs, c.signed); !errors.Is(err, errs.ErrIndex) {
			t.Errorf("%v: %v", c.idxs, err)
		}
	}
	wantSamples(t, s, 5)
	if err := openStore(t, closedStore(t, 5, codec.Raw), ReadOnly).Delete(t.Context(), []int64{0}, false); !errors.Is(err, errs.ErrReadOnly) {
		t.Errorf("read-only: %v", err)
	}
}

// What was appended is synced first: the journal knows the header on disk.
func TestDeleteOfUnsyncedRecords(t *testing.T) {
	path := closedStore(t, 3, codec.Raw)
	s := openStore(t, path, Append)
	appendSamples(t, s, 3, 8, codec.Raw)
	must(t, s.Delete(t.Context(), []int64{1, 6}, false))
	wantNumbers(t, s, []int{0, 7, 2, 3, 4, 5})
	must(t, s.Close())
	wantNumbers(t, openStore(t, path, ReadOnly), []int{0, 7, 2, 3, 4, 5})
}

// A damaged record can be deleted, and one whose chunk is gone.
func TestDeleteOfDamagedRecords(t *testing.T) {
	path := closedStore(t, 4, codec.Raw)
	patch(t, path, metaName, header3+entry3, appendEntry3(nil, entry3Fields{tag: 200, phys: 1 << 31, chunk: 4000}))
	s := openStore(t, path, Append)
	must(t, s.Delete(t.Context(), []int64{1}, false))
	wantNumbers(t, s, []int{0, 3, 2})
	must(t, s.Compact(t.Context(), nil))
	wantNumbers(t, s, []int{0, 3, 2})
}

// An error at any step of a delete leaves everything or nothing deleted, for
// the next opening for reading and for the one for writing; and if the
// handle goes on, it is right.
func TestDeleteFailingAtAnyStep(t *testing.T) {
	deleted := deleteNumbers(count(9), []int64{1, 2, 7})
	for step := 0; ; step++ {
		path := closedStore(t, 9, codec.Zstd)
		left := step
		d := &logDisk{fail: func(string) error {
			if left--; left < 0 {
				return syscall.EIO
			}
			return nil
		}}
		s, err := openOn(d, path, Options{Mode: Append})
		must(t, err)
		err = s.Delete(t.Context(), []int64{1, 2, 7}, false)
		if err == nil {
			if step < 8 {
				t.Fatalf("only %d steps: %q", step, d.log)
			}
			s.Close()
			return
		}
		if !errors.Is(err, syscall.EIO) {
			t.Fatalf("step %d: %v", step, err)
		}
		want := count(9)
		if _, readErr := read(s, []int64{0}); readErr == nil {
			wantNumbers(t, s, want)
		} else if !errors.Is(readErr, syscall.EIO) || !strings.Contains(readErr.Error(), "next opening") {
			t.Errorf("step %d, read: %v", step, readErr)
		}
		s.Close()
		r := openStore(t, path, ReadOnly)
		if r.Len() == int64(len(deleted)) {
			want = deleted
		}
		wantNumbers(t, r, want)
		w := openStore(t, path, Append)
		wantNumbers(t, w, want)
		src, offsets := samples(20, 21)
		_, err = w.Append(t.Context(), src, offsets, codec.Raw)
		must(t, err)
		must(t, w.Close())
		wantNumbers(t, r, append(slices.Clone(want), 20))
		if exists(filepath.Join(path, redoName)) {
			t.Errorf("step %d: the journal was left", step)
		}
	}
}

// A reader can't change the files, and shows what a writer will make of them.
func TestReadOnlyStoreWithAPendingJournal(t *testing.T) {
	path := closedStore(t, 9, codec.Zstd)
	w := openStore(t, path, Append)
	f := w.writer.(*writer3)
	j := &journal3{before: f.committed, after: f.committed}
	j.after.length = 7
	j.changes = append(appendIndex3(nil, 3), f.files.table[8*entry3:9*entry3]...)
	j.changes = append(appendIndex3(j.changes, 2), f.files.table[7*entry3:8*entry3]...)
	file, err := j.write(osDisk{}, path)
	must(t, err)
	must(t, file.Close())
	must(t, w.Close())
	must(t, os.Chmod(path, 0o555))
	t.Cleanup(func() { os.Chmod(path, 0o777) })
	want := []int{0, 1, 7, 8, 4, 5, 6}
	wantNumbers(t, openStore(t, path, ReadOnly), want)

	must(t, os.Chmod(path, 0o777))
	patch(t, path, metaName, 0, tail3{length: 5}.header())
	for _, mode := range []Mode{ReadOnly, Append} {
		if _, err := Open(path, Options{Mode: mode}); !errors.Is(err, errs.ErrCorrupt) || !strings.Contains(err.Error(), "another program") {
			t.Errorf("mode %d, header of somebody else: %v", mode, err)
		}
	}
}
