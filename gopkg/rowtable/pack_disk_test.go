package rowtable

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
)

// failing is a disk on which the nth operation fails.
type failing struct {
	disk
	left int
}

func (f *failing) step() error {
	if f.left--; f.left < 0 {
		return syscall.ENOSPC
	}
	return nil
}

func (f *failing) WriteAt(b []byte, at int64) (int, error) {
	if err := f.step(); err != nil {
		return 0, err
	}
	return f.disk.WriteAt(b, at)
}

func (f *failing) ReadAt(b []byte, at int64) (int, error) {
	if err := f.step(); err != nil {
		return 0, err
	}
	return f.disk.ReadAt(b, at)
}

func (f *failing) Truncate(size int64) error {
	if err := f.step(); err != nil {
		return err
	}
	return f.disk.Truncate(size)
}

// A disk that is full at whatever point leaves the old table, and no other file.
func TestAFullDiskLeavesTheOldTable(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "table")
	nofail(t, os.WriteFile(path, []byte("old"), 0o600))
	src := packedRows(rand.New(rand.NewPCG(3, 3)), 30_000, 64)
	for _, chunks := range []bool{false, true} {
		opt := PackOptions{RowBytes: 64, BlockRows: 2, Codec: Raw, SHA256: true}
		for n := 0; ; n++ {
			w, err := NewWriter(path, opt)
			nofail(t, err)
			disk := &failing{w.file, n}
			w.file = disk
			if chunks {
				err = w.Write(t.Context(), src)
			} else {
				err = w.WriteFrom(t.Context(), bytes.NewReader(src), int64(len(src)), nil, nil)
			}
			if err == nil {
				_, err = w.Finish(t.Context())
			} else {
				w.Abort()
			}
			if disk.left >= 0 {
				nofail(t, err)
				if n < 6 || !bytes.Equal(reading(t, path).all(), src) {
					t.Fatalf("%d operations", n)
				}
				nofail(t, os.WriteFile(path, []byte("old"), 0o600))
				break
			}
			if !errors.Is(err, syscall.ENOSPC) || errs.CodeOf(err) != errs.ErrIO.Code() {
				t.Fatalf("operation %d: %v", n, err)
			}
			only(t, dir, "table", "old")
		}
	}
}

func TestPlacesWhereNoTableCanBe(t *testing.T) {
	dir := t.TempDir()
	if _, err := Pack(t.Context(), nil, dir, PackOptions{RowBytes: 1}, nil, nil); !errors.Is(err, unix.EISDIR) {
		t.Errorf("directory: %v", err)
	}
	if _, err := Pack(t.Context(), nil, filepath.Join(dir, "a", "b"), PackOptions{RowBytes: 1}, nil, nil); errs.CodeOf(err) != errs.ErrNotFound.Code() {
		t.Errorf("missing directory: %v", err)
	}
	if os.Geteuid() != 0 {
		nofail(t, os.Chmod(dir, 0o500))
		if _, err := Pack(t.Context(), nil, filepath.Join(dir, "x"), PackOptions{RowBytes: 1}, nil, nil); !errors.Is(err, unix.EACCES) {
			t.Errorf("read-only directory: %v", err)
		}
	}
}

// Who has a table open keeps its bytes; permissions stay.
func TestATableIsReplacedUnderItsReaders(t *testing.T) {
	path := filepath.Join(t.TempDir(), "table")
	opt := PackOptions{RowBytes: 8, Codec: Zlib}
	_, err := Pack(t.Context(), make([]byte, 800), path, opt, nil, nil)
	nofail(t, err)
	info, err := os.Stat(path)
	nofail(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Fatalf("a new table has permissions %v", info.Mode())
	}
	nofail(t, os.Chmod(path, 0o644))
	old, err := os.ReadFile(path)
	nofail(t, err)
	f, err := os.Open(path)
	nofail(t, err)
	defer f.Close()
	_, err = Pack(t.Context(), bytes.Repeat([]byte{7}, 1600), path, opt, nil, nil)
	nofail(t, err)
	kept := make([]byte, len(old))
	if _, err := f.ReadAt(kept, 0); err != nil || !bytes.Equal(kept, old) {
		t.Fatal("the open file changed")
	}
	if info, err = os.Stat(path); err != nil || info.Mode().Perm() != 0o644 || reading(t, path).rows != 200 {
		t.Fatalf("%v, %v", info.Mode(), err)
	}
}

func TestRawFilesAreSources(t *testing.T) {
	dir := t.TempDir()
	source, path := filepath.Join(dir, "rows"), filepath.Join(dir, "table")
	src := packedRows(rand.New(rand.NewPCG(9, 9)), 5000, 96)
	nofail(t, os.WriteFile(source, src, 0o600))
	for _, dedup := range []bool{false, true} {
		for _, order := range [][]int64{nil, reversed(5000)} {
			opt := PackOptions{RowBytes: 96, Codec: Zlib, Deduplicate: dedup}
			_, err := PackFile(t.Context(), source, path, opt, order, nil)
			nofail(t, err)
			if !bytes.Equal(reading(t, path).all(), src) {
				t.Fatalf("dedup %v, order %v", dedup, order != nil)
			}
		}
	}
	if _, err := PackFile(t.Context(), source, source, PackOptions{RowBytes: 96}, nil, nil); !errors.Is(err, errs.ErrArgument) {
		t.Errorf("a file packed over itself: %v", err)
	}
	if _, err := PackFile(t.Context(), dir, path, PackOptions{RowBytes: 96}, nil, nil); !errors.Is(err, errs.ErrFormat) {
		t.Errorf("a directory as a source: %v", err)
	}
	if _, err := PackFile(t.Context(), source+"x", path, PackOptions{RowBytes: 96}, nil, nil); errs.CodeOf(err) != errs.ErrNotFound.Code() {
		t.Errorf("a missing source: %v", err)
	}
	// A source that is cut short while it is read.
	w, err := NewWriter(path, PackOptions{RowBytes: 96})
	nofail(t, err)
	defer w.Abort()
	if err := w.WriteFrom(t.Context(), bytes.NewReader(src[:96*100]), 96*5000, nil, nil); !errors.Is(err, errs.ErrFault) {
		t.Errorf("a source cut short: %v", err)
	}
}

// A mapped source that shrinks under the writer is an error, not a crash.
func TestAMappedSourceThatShrinks(t *testing.T) {
	dir := t.TempDir()
	source, path := filepath.Join(dir, "rows"), filepath.Join(dir, "table")
	for _, dedup := range []bool{false, true} {
		for _, chunks := range []bool{false, true} {
			nofail(t, os.WriteFile(source, make([]byte, 1<<20), 0o600))
			f, err := os.Open(source)
			nofail(t, err)
			m, err := mem.Map(f, 1<<20)
			nofail(t, err)
			nofail(t, os.Truncate(source, 8192))
			opt := PackOptions{RowBytes: 64, Deduplicate: dedup}
			if chunks {
				w, werr := NewWriter(path, opt)
				nofail(t, werr)
				err = w.Write(t.Context(), m.Bytes())
				w.Abort()
			} else {
				_, err = Pack(t.Context(), m.Bytes(), path, opt, nil, nil)
			}
			if !errors.Is(err, errs.ErrFault) {
				t.Errorf("dedup %v, chunks %v: %v", dedup, chunks, err)
			}
			nofail(t, m.Close())
			nofail(t, f.Close())
		}
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Error("a table is there")
	}
}

func reversed(n int64) []int64 {
	order := make([]int64, n)
	for i := range order {
		order[i] = n - 1 - int64(i)
	}
	return order
}

// What many goroutines and threads of compression do at once stays apart.
func TestWritersSideBySide(t *testing.T) {
	dir := t.TempDir()
	results := make(chan error, 8)
	for i := range 8 {
		go func() {
			rng := rand.New(rand.NewPCG(uint64(i), 4))
			src := packedRows(rng, 4000, 64)
			name := filepath.Join(dir, fmt.Sprint("table", i%4)) // two at a time for each
			opt := PackOptions{RowBytes: 64, Codec: Codec(i % 3), Predictor: Auto}
			_, err := Pack(t.Context(), src, name, opt, nil, nil)
			results <- err
		}()
	}
	for range 8 {
		nofail(t, <-results)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 4 {
		t.Fatalf("%v, %v", entries, err)
	}
	for _, e := range entries {
		if reading(t, filepath.Join(dir, e.Name())).rows != 4000 {
			t.Error(e.Name())
		}
	}
}
