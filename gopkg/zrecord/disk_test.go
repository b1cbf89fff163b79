package zrecord

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
)

// logDisk is the real file system; it notes what is done to it and fails the
// operations that fail returns an error for.
type logDisk struct {
	osDisk
	mu   sync.Mutex
	log  []string
	fail func(op string) error
}

func (d *logDisk) note(format string, args ...any) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	op := fmt.Sprintf(format, args...)
	d.log = append(d.log, op)
	if d.fail != nil {
		return d.fail(op)
	}
	return nil
}

func (d *logDisk) wrap(f file, err error) (file, error) {
	if err != nil {
		return nil, err
	}
	return &logFile{file: f, disk: d, name: filepath.Base(f.OS().Name())}, nil
}

func (d *logDisk) Mkdir(path string) error {
	if err := d.note("mkdir %s", filepath.Base(path)); err != nil {
		return err
	}
	return d.osDisk.Mkdir(path)
}

func (d *logDisk) Create(path string) (file, error) {
	if err := d.note("create %s", filepath.Base(path)); err != nil {
		return nil, err
	}
	return d.wrap(d.osDisk.Create(path))
}

func (d *logDisk) OpenWrite(path string) (file, error) { return d.wrap(d.osDisk.OpenWrite(path)) }

func (d *logDisk) Rename(from, to string) error {
	if err := d.note("rename %s %s", filepath.Base(from), filepath.Base(to)); err != nil {
		return err
	}
	return d.osDisk.Rename(from, to)
}

func (d *logDisk) SyncDir(path string) error {
	if err := d.note("syncdir %s", filepath.Base(path)); err != nil {
		return err
	}
	return d.osDisk.SyncDir(path)
}

type logFile struct {
	file
	disk *logDisk
	name string
}

func (f *logFile) WriteAt(p []byte, off int64) (int, error) {
	what := "write"
	if strings.HasPrefix(f.name, metaName) && off == 0 {
		what = "header"
	}
	if err := f.disk.note("%s %s", what, f.name); err != nil {
		return 0, &os.PathError{Op: "pwrite", Path: f.name, Err: err}
	}
	return f.file.WriteAt(p, off)
}

func (f *logFile) Truncate(size int64) error {
	if err := f.disk.note("truncate %s", f.name); err != nil {
		return err
	}
	return f.file.Truncate(size)
}

func (f *logFile) Datasync() error {
	if err := f.disk.note("datasync %s", f.name); err != nil {
		return err
	}
	return f.file.Datasync()
}

func (f *logFile) Sync() error {
	if err := f.disk.note("sync %s", f.name); err != nil {
		return err
	}
	return f.file.Sync()
}

// The order of FORMAT.md: what a header or a name promises is on disk first.
func TestOrderOfWritesAndSyncs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b", "store")
	d := &logDisk{}
	s, err := openOn(d, path, Options{Mode: CreateNew})
	must(t, err)
	defer s.Close()
	expect := func(what string, want ...string) {
		t.Helper()
		if !slices.Equal(d.log, want) {
			t.Fatalf("%s: %q, want %q", what, d.log, want)
		}
		d.log = nil
	}
	expect("create", "mkdir a", "syncdir "+filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(path)))),
		"mkdir b", "syncdir a", "mkdir store", "syncdir b", "create meta.zr.tmp", "truncate meta.zr.tmp", "truncate meta.zr.tmp",
		"header meta.zr.tmp", "sync meta.zr.tmp", "create 0.zr", "truncate 0.zr", "sync 0.zr", "syncdir store",
		"rename meta.zr.tmp meta.zr", "syncdir store")
	appendSamples(t, s, 0, 10, codec.Raw)
	expect("append", "write 0.zr", "write meta.zr.tmp")
	must(t, s.Sync())
	// The open file keeps the name it was made by.
	expect("sync", "datasync 0.zr", "datasync meta.zr.tmp", "header meta.zr.tmp", "datasync meta.zr.tmp")
}

func TestSyncWithoutNewsDoesNothing(t *testing.T) {
	d := &logDisk{}
	s, err := openOn(d, closedStore(t, 10, codec.Raw), Options{Mode: Append})
	must(t, err)
	must(t, s.Sync())
	must(t, s.Close())
	if len(d.log) > 0 {
		t.Errorf("opening, syncing and closing did %q", d.log)
	}
}

// A roll-over syncs the full chunk, too.
func TestSyncAfterRollOver(t *testing.T) {
	path := closedStore(t, 0, codec.Raw)
	patch(t, path, metaName, 0, tail3{offset: chunkSize - 15}.header())
	d := &logDisk{}
	s, err := openOn(d, path, Options{Mode: Append})
	must(t, err)
	defer s.Close()
	_, err = s.Append(t.Context(), make([]byte, 20), []uint64{0, 10}, codec.Raw)
	must(t, err)
	d.log = nil
	must(t, s.Sync())
	want := []string{"datasync 0.zr", "datasync 1.zr", "datasync meta.zr", "header meta.zr", "datasync meta.zr"}
	if !slices.Equal(d.log, want) {
		t.Errorf("%q, want %q", d.log, want)
	}
}

// Wherever creating a store fails, or the process dies, what is left is no
// store or an empty one, and creating it again works.
func TestCreationCutShort(t *testing.T) {
	for steps := range 12 {
		path := filepath.Join(t.TempDir(), "store")
		left := steps
		d := &logDisk{fail: func(string) error {
			if left--; left < 0 {
				return syscall.EIO
			}
			return nil
		}}
		_, err := openOn(d, path, Options{Mode: CreateNew})
		if err == nil {
			t.Fatalf("after %d steps: no error", steps)
		}
		if !errors.Is(err, syscall.EIO) {
			t.Fatalf("after %d steps: %v", steps, err)
		}
		if r, err := Open(path, Options{}); err == nil {
			wantSamples(t, r, 0)
			r.Close()
		} else if !errors.Is(err, errs.ErrNotFound) && !errors.Is(err, errs.ErrFormat) {
			t.Fatalf("after %d steps, read: %v", steps, err)
		}
		s, err := Open(path, Options{Mode: CreateOrAppend})
		if err != nil {
			t.Fatalf("after %d steps, again: %v", steps, err)
		}
		appendSamples(t, s, 0, 5, codec.Raw)
		must(t, s.Close())
	}
}

// A full disk is an error; nothing is added, and the store goes on when there
// is room again.
func TestFullDisk(t *testing.T) {
	for _, at := range []string{"write 0.zr", "write meta.zr"} {
		t.Run(at, func(t *testing.T) {
			path := closedStore(t, 3, codec.Raw)
			d := &logDisk{fail: func(op string) error {
				if op == at {
					return syscall.ENOSPC
				}
				return nil
			}}
			s, err := openOn(d, path, Options{Mode: Append})
			must(t, err)
			src, offsets := samples(3, 9)
			for _, tag := range []codec.Tag{codec.Raw, codec.Zstd} {
				if _, err := s.Append(t.Context(), src, offsets, tag); !errors.Is(err, syscall.ENOSPC) {
					t.Fatalf("%s: %v", tag, err)
				}
				wantSamples(t, s, 3)
			}
			d.fail = nil
			appendSamples(t, s, 3, 9, codec.Zstd)
			must(t, s.Close())
			wantSamples(t, openStore(t, path, ReadOnly), 9)
		})
	}
}

// After a failed sync nothing is published, and no later call pretends that
// the bytes are safe.
func TestFailedSyncIsFinal(t *testing.T) {
	for _, at := range []string{"datasync 0.zr", "datasync meta.zr", "header meta.zr"} {
		t.Run(at, func(t *testing.T) {
			path := closedStore(t, 3, codec.Raw)
			fail := true
			d := &logDisk{fail: func(op string) error {
				if fail && op == at {
					fail = false
					return syscall.EIO
				}
				return nil
			}}
			s, err := openOn(d, path, Options{Mode: Append})
			must(t, err)
			appendSamples(t, s, 3, 9, codec.Raw)
			if err := s.Sync(); !errors.Is(err, syscall.EIO) {
				t.Fatalf("sync: %v", err)
			}
			if err := s.Sync(); !errors.Is(err, syscall.EIO) {
				t.Errorf("second sync: %v", err)
			}
			src, offsets := samples(9, 10)
			if _, err := s.Append(t.Context(), src, offsets, codec.Raw); !errors.Is(err, syscall.EIO) {
				t.Errorf("append: %v", err)
			}
			wantSamples(t, s, 9)
			if err := s.Close(); !errors.Is(err, syscall.EIO) {
				t.Errorf("close: %v", err)
			}
			wantSamples(t, openStore(t, path, ReadOnly), 3)
			must(t, openStore(t, path, Append).Close())
		})
	}
}

// A dictionary is durable before a record can need it.
func TestOrderOfDictionaryWrites(t *testing.T) {
	d := &logDisk{}
	path := closedStore(t, 0, codec.Raw)
	s, err := openOn(d, path, Options{Mode: Append})
	must(t, err)
	defer s.Close()
	trainSamples(t, s)
	want := []string{"create dict.zr.tmp", "truncate dict.zr.tmp", "write dict.zr.tmp", "datasync dict.zr.tmp", "rename dict.zr.tmp dict.zr", "syncdir " + filepath.Base(path)}
	if !slices.Equal(d.log, want) {
		t.Errorf("%q, want %q", d.log, want)
	}
}
