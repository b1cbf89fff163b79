package zrecord

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
)

// small makes compact work in many small batches.
func small(s *Store, batchBytes, plainBytes int64) {
	w := s.writer.(*writer3)
	w.batchBytes, w.plainBytes = batchBytes, plainBytes
}

func TestCompactKeepsEveryRecord(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for round := range 30 {
		n := rng.IntN(200)
		tag := codec.Tag(round % 3)
		path := closedStore(t, 0, tag)
		s := openStore(t, path, Append)
		appendSamples(t, s, 0, n, tag)
		numbers := count(n)
		for range rng.IntN(4) {
			var idxs []int64
			for range rng.IntN(n/2 + 1) {
				idxs = append(idxs, int64(rng.IntN(len(numbers))))
			}
			must(t, s.Delete(t.Context(), idxs, false))
			numbers = deleteNumbers(numbers, idxs)
			if len(numbers) == 0 {
				break
			}
		}
		small(s, int64(1+rng.IntN(20000)), int64(1+rng.IntN(20000)))
		last := int64(-1)
		must(t, s.Compact(t.Context(), func(done, total int64) {
			if done < last || done > total {
				t.Errorf("progress %d of %d after %d", done, total, last)
			}
			last = done
		}))
		wantNumbers(t, s, numbers)
		st, err := s.Stats()
		must(t, err)
		if st.Records != int64(len(numbers)) || st.Reclaimable != 0 || st.LiveBytes != st.ChunkBytes || last != st.LiveBytes {
			t.Fatalf("%+v, progress ended at %d", st, last)
		}
		src, offsets := samples(n, n+2)
		_, err = s.Append(t.Context(), src, offsets, tag)
		must(t, err)
		numbers = append(numbers, n, n+1)
		wantNumbers(t, s, numbers)
		must(t, s.Close())
		wantNumbers(t, openStore(t, path, ReadOnly), numbers)
		if exists(filepath.Join(path, redoName)) {
			t.Error("the journal was left")
		}
	}
}

// highStore makes a store whose records lie in chunks 0, 1 and 2.
func highStore(t *testing.T) string {
	path := closedStore(t, 4, codec.Raw)
	for chunk := range 2 {
		s := openStore(t, path, Append)
		n := int(s.Len())
		patch(t, path, metaName, 0, tail3{chunk: chunk, offset: chunkSize - 4000, length: int64(n)}.header())
		must(t, s.Close())
		s = openStore(t, path, Append)
		appendSamples(t, s, n, n+8, codec.Raw)
		must(t, s.Close())
	}
	return path
}

func TestCompactOverSeveralChunks(t *testing.T) {
	path := highStore(t)
	s := openStore(t, path, Append)
	wantSamples(t, s, 20)
	if !exists(chunkPath(path, 2)) {
		t.Fatal("the store has no chunk 2")
	}
	must(t, s.Delete(t.Context(), []int64{1, 9}, false))
	small(s, 5000, 3000)
	must(t, s.Compact(t.Context(), nil))
	want := deleteNumbers(count(20), []int64{1, 9})
	wantNumbers(t, s, want)
	for id := range 3 {
		if exists(chunkPath(path, id)) != (id == 0) {
			t.Errorf("chunk file %d: exists = %v", id, id != 0)
		}
	}
	// The next roll-over makes chunk 1 anew; nothing may still look at the old one.
	w := s.writer.(*writer3)
	w.adopt(tail3{offset: chunkSize - 100, length: w.committed.length})
	src, offsets := samples(20, 24)
	_, err := s.Append(t.Context(), src, offsets, codec.Raw)
	must(t, err)
	wantNumbers(t, s, append(want, 20, 21, 22, 23))
}

// A missing chunk file below the records is made again.
func TestCompactIntoAMissingChunk(t *testing.T) {
	path := highStore(t)
	s := openStore(t, path, Append)
	var idxs []int64
	for i := range s.Len() {
		if s.files.(*files3).entry(i).chunk == 1 {
			idxs = append(idxs, i)
		}
	}
	must(t, s.Delete(t.Context(), idxs, false))
	must(t, s.Close())
	must(t, os.Remove(chunkPath(path, 1)))
	s = openStore(t, path, Append)
	must(t, s.Compact(t.Context(), nil))
	wantNumbers(t, s, deleteNumbers(count(20), idxs))
}

// Space that a cancelled append took is given back, too.
func TestCompactFreesDiskSpace(t *testing.T) {
	path := closedStore(t, 4, codec.Raw)
	s := openStore(t, path, Append)
	src := make([]byte, 8<<20)
	for i := range src {
		src[i] = byte(i * 7)
	}
	offsets := make([]uint64, 16)
	for i := range offsets {
		offsets[i] = uint64(i) << 19
	}
	_, err := s.Append(t.Context(), src, offsets, codec.Raw)
	must(t, err)
	s.turnBack(4)
	must(t, s.Sync())
	blocks := func() int64 {
		var st syscall.Stat_t
		must(t, syscall.Stat(chunkPath(path, 0), &st))
		return st.Blocks * 512
	}
	if blocks() < 8<<20 {
		t.Fatalf("chunk 0 takes %d bytes", blocks())
	}
	must(t, s.Compact(t.Context(), nil))
	wantSamples(t, s, 4)
	if blocks() > 1<<20 {
		t.Errorf("chunk 0 still takes %d bytes", blocks())
	}
	info, err := os.Stat(chunkPath(path, 0))
	must(t, err)
	if info.Size() != chunkSize {
		t.Errorf("chunk 0 is %d bytes long", info.Size())
	}
}

func TestCompactRefusesOverlappingRecords(t *testing.T) {
	path := closedStore(t, 4, codec.Raw)
	files := openStore(t, path, ReadOnly)
	e := files.files.(*files3).entry(1)
	must(t, files.Close())
	// The same bytes twice, as an interrupted delete of another program leaves them.
	patch(t, path, metaName, header3+2*entry3, appendEntry3(nil, e))
	s := openStore(t, path, Append)
	must(t, s.Delete(t.Context(), []int64{0}, false))
	must(t, s.Compact(t.Context(), nil))
	wantNumbers(t, s, []int{3, 1, 1})
	must(t, s.Close())
	e.offset--
	patch(t, path, metaName, header3+2*entry3, appendEntry3(nil, e))
	s = openStore(t, path, Append)
	if err := s.Compact(t.Context(), nil); !errors.Is(err, errs.ErrCorrupt) {
		t.Fatalf("overlap: %v", err)
	}
	if _, err := read(s, []int64{0}); err != nil {
		t.Errorf("a refused compact ended the handle: %v", err)
	}
}

func TestCancelledCompactGoesOnLater(t *testing.T) {
	path := closedStore(t, 100, codec.Zstd)
	s := openStore(t, path, Append)
	must(t, s.Delete(t.Context(), []int64{0, 50, 51, 52}, false))
	want := deleteNumbers(count(100), []int64{0, 50, 51, 52})
	rounds := 0
	for ; ; rounds++ {
		small(s, 8000, 4000)
		ctx, cancel := context.WithCancel(t.Context())
		moved := 0
		err := s.Compact(ctx, func(done, total int64) {
			if moved++; moved > 2+rounds {
				cancel()
			}
		})
		cancel()
		wantNumbers(t, s, want)
		if err == nil {
			break
		}
		if !errors.Is(err, errs.ErrCancelled) {
			t.Fatal(err)
		}
	}
	if rounds == 0 {
		t.Fatal("nothing was cancelled")
	}
}

// looks is a context that is cancelled from the n-th look at it on.
type looks struct {
	context.Context
	left int
}

func (l *looks) Err() error {
	if l.left--; l.left < 0 {
		return context.Canceled
	}
	return nil
}

// Planning listens to cancelling, too: it takes seconds for millions of records.
func TestCompactAndDeleteCancelledAtAnyLook(t *testing.T) {
	for _, work := range []struct {
		name string
		run  func(s *Store, ctx context.Context) error
		want []int
		min  int
	}{
		{"compact", func(s *Store, ctx context.Context) error { return s.Compact(ctx, nil) }, count(30), 3},
		{"delete", func(s *Store, ctx context.Context) error { return s.Delete(ctx, []int64{3, 29}, false) }, deleteNumbers(count(30), []int64{3, 29}), 2},
	} {
		n := 0
		for ; ; n++ {
			s := openStore(t, closedStore(t, 30, codec.Zstd), Append)
			err := work.run(s, &looks{t.Context(), n})
			if err == nil {
				wantNumbers(t, s, work.want)
				break
			}
			if !errors.Is(err, errs.ErrCancelled) {
				t.Fatalf("%s, look %d: %v", work.name, n, err)
			}
			wantSamples(t, s, 30)
			must(t, work.run(s, t.Context()))
			wantNumbers(t, s, work.want)
			must(t, s.Close())
		}
		if n < work.min {
			t.Errorf("%s looked %d times", work.name, n)
		}
	}
}

// An error at any step of a compact changes no record, and the next one
// finishes it.
func TestCompactFailingAtAnyStep(t *testing.T) {
	for _, plain := range []int64{1, 1 << 40} {
		for step := 0; ; step++ {
			path := closedStore(t, 12, codec.Zstd)
			s := openStore(t, path, Append)
			must(t, s.Delete(t.Context(), []int64{0, 5}, false))
			must(t, s.Close())
			want := deleteNumbers(count(12), []int64{0, 5})
			left := step
			d := &logDisk{fail: func(string) error {
				if left--; left < 0 {
					return syscall.EIO
				}
				return nil
			}}
			s, err := openOn(d, path, Options{Mode: Append})
			must(t, err)
			small(s, 2500, plain)
			err = s.Compact(t.Context(), nil)
			if _, readErr := read(s, []int64{0}); readErr == nil {
				wantNumbers(t, s, want)
			}
			s.Close()
			wantNumbers(t, openStore(t, path, ReadOnly), want)
			if err == nil {
				if step < 20 {
					t.Fatalf("only %d steps", step)
				}
				break
			}
			if !errors.Is(err, syscall.EIO) {
				t.Fatalf("step %d: %v", step, err)
			}
		}
	}
}

// On a full disk smaller journals are tried; if none fits, nothing happened.
func TestCompactOnAFullDisk(t *testing.T) {
	path := closedStore(t, 12, codec.Raw)
	d := &logDisk{}
	s, err := openOn(d, path, Options{Mode: Append})
	must(t, err)
	defer s.Close()
	must(t, s.Delete(t.Context(), []int64{0}, false))
	want := deleteNumbers(count(12), []int64{0})
	tries := 0
	d.fail = func(op string) error {
		if op == "write "+redoName {
			tries++
			return syscall.ENOSPC
		}
		return nil
	}
	if err := s.Compact(t.Context(), nil); !errors.Is(err, syscall.ENOSPC) || tries < 3 {
		t.Fatalf("%v after %d tries", err, tries)
	}
	wantNumbers(t, s, want)
	d.fail = nil
	must(t, s.Compact(t.Context(), nil))
	wantNumbers(t, s, want)
}
