package zrecord

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
)

func TestOpenModes(t *testing.T) {
	const missing, store, emptyDir, plainFile, chunksOnly = 0, 1, 2, 3, 4
	cases := []struct {
		name string
		at   int
		mode Mode
		want error
	}{
		{"read a missing store", missing, ReadOnly, errs.ErrNotFound},
		{"append to a missing store", missing, Append, errs.ErrNotFound},
		{"create or append makes it", missing, CreateOrAppend, nil},
		{"create makes it", missing, CreateNew, nil},
		{"read", store, ReadOnly, nil},
		{"append", store, Append, nil},
		{"create or append appends", store, CreateOrAppend, nil},
		{"create over a store", store, CreateNew, errs.ErrExists},
		{"read an empty directory", emptyDir, ReadOnly, errs.ErrNotFound},
		{"create in an empty directory", emptyDir, CreateNew, nil},
		{"read a file", plainFile, ReadOnly, errs.ErrFormat},
		{"read chunks without a table", chunksOnly, ReadOnly, errs.ErrFormat},
		{"create over chunks without a table", chunksOnly, CreateOrAppend, errs.ErrFormat},
		{"unknown mode", store, 7, errs.ErrArgument},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "deep", "store")
			switch c.at {
			case store:
				path = closedStore(t, 3, codec.Raw)
			case emptyDir, chunksOnly:
				if err := os.MkdirAll(path, 0o777); err != nil {
					t.Fatal(err)
				}
				if c.at == chunksOnly {
					if err := os.WriteFile(chunkPath(path, 0), []byte("records"), 0o666); err != nil {
						t.Fatal(err)
					}
				}
			case plainFile:
				path = filepath.Join(t.TempDir(), "file")
				if err := os.WriteFile(path, []byte("x"), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			s, err := Open(path, Options{Mode: c.mode})
			if !errors.Is(err, c.want) {
				t.Fatalf("err = %v, want %v", err, c.want)
			}
			if err == nil {
				s.Close()
			} else if !strings.Contains(err.Error(), path) && c.want != errs.ErrArgument {
				t.Errorf("message does not name the path: %v", err)
			}
			if c.at == missing && c.want != nil {
				if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
					t.Error("a refused open made something")
				}
			}
		})
	}
}

func TestOptionsAreChecked(t *testing.T) {
	path := closedStore(t, 1, codec.Raw)
	for name, opt := range map[string]Options{
		"level": {Level: 99}, "negative level": {Level: -5},
	} {
		if _, err := Open(path, opt); !errors.Is(err, errs.ErrArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Open("", Options{}); !errors.Is(err, errs.ErrArgument) {
		t.Errorf("empty path: %v", err)
	}
}

// The files are those of loaderx: their names, lengths and headers.
func TestFilesOfANewStore(t *testing.T) {
	path := closedStore(t, 0, codec.Raw)
	want := map[string]int64{metaName: 268435472, "0.zr": 1 << 32}
	entries, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if want[e.Name()] != info.Size() {
			t.Errorf("%s has %d bytes, want %d", e.Name(), info.Size(), want[e.Name()])
		}
		delete(want, e.Name())
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}

func TestBadTablesAreRefused(t *testing.T) {
	good := tail3{length: 3}.header()
	change := func(at int, b byte) []byte {
		h := append([]byte(nil), good...)
		h[at] = b
		return h
	}
	cases := map[string]func(t *testing.T, path string){
		"empty file":       func(t *testing.T, p string) { must(t, os.Truncate(filepath.Join(p, metaName), 0)) },
		"truncated":        func(t *testing.T, p string) { must(t, os.Truncate(filepath.Join(p, metaName), 4096)) },
		"too long":         func(t *testing.T, p string) { must(t, os.Truncate(filepath.Join(p, metaName), metaSize3+1)) },
		"other magic":      func(t *testing.T, p string) { patch(t, p, metaName, 0, change(0, 'X')) },
		"older version":    func(t *testing.T, p string) { patch(t, p, metaName, 0, change(4, 2)) },
		"newer version":    func(t *testing.T, p string) { patch(t, p, metaName, 0, change(4, 4)) },
		"too many records": func(t *testing.T, p string) { patch(t, p, metaName, 0, change(15, 2)) },
		"chunk too high":   func(t *testing.T, p string) { patch(t, p, metaName, 0, change(7, 0x10)) },
		"a directory": func(t *testing.T, p string) {
			must(t, os.Remove(filepath.Join(p, metaName)))
			must(t, os.Mkdir(filepath.Join(p, metaName), 0o777))
		},
	}
	for name, spoil := range cases {
		t.Run(name, func(t *testing.T) {
			path := closedStore(t, 3, codec.Raw)
			spoil(t, path)
			if s, err := Open(path, Options{}); !errors.Is(err, errs.ErrFormat) {
				t.Errorf("read: %v, %v", s, err)
			}
			if _, err := Open(path, Options{Mode: CreateOrAppend}); err == nil {
				t.Error("opened for appending")
			}
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestOneWriterAtATime(t *testing.T) {
	path := closedStore(t, 3, codec.Raw)
	first := openStore(t, path, Append)
	for _, mode := range []Mode{Append, CreateOrAppend} {
		_, err := Open(path, Options{Mode: mode})
		if !errors.Is(err, errs.ErrLocked) || !strings.Contains(err.Error(), metaName) {
			t.Fatalf("second writer: %v", err)
		}
	}
	reader := openStore(t, path, ReadOnly)
	wantSamples(t, reader, 3)
	must(t, first.Close())
	must(t, openStore(t, path, Append).Close())
}

func TestManyCreatorsMakeOneStore(t *testing.T) {
	for range 20 {
		path := filepath.Join(t.TempDir(), "store")
		var wg sync.WaitGroup
		var mu sync.Mutex
		opened := 0
		for range 8 {
			wg.Go(func() {
				s, err := Open(path, Options{Mode: CreateNew})
				if err == nil {
					mu.Lock()
					opened++
					mu.Unlock()
					time.Sleep(time.Millisecond)
					s.Close()
				} else if !errors.Is(err, errs.ErrLocked) && !errors.Is(err, errs.ErrExists) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if opened != 1 {
			t.Fatalf("%d creators got a new store", opened)
		}
	}
}

// A read-only store needs no permission to write and changes no file.
func TestReadOnlyNeedsNoWritePermission(t *testing.T) {
	path := closedStore(t, 5, codec.Zstd)
	for _, name := range []string{metaName, "0.zr"} {
		must(t, os.Chmod(filepath.Join(path, name), 0o444))
	}
	must(t, os.Chmod(path, 0o555))
	t.Cleanup(func() { os.Chmod(path, 0o777) })
	s := openStore(t, path, ReadOnly)
	wantSamples(t, s, 5)
	src, offsets := samples(0, 1)
	if _, err := s.Append(t.Context(), src, offsets, codec.Raw); !errors.Is(err, errs.ErrReadOnly) {
		t.Errorf("append: %v", err)
	}
	if _, err := s.TrainDict(t.Context(), src, offsets, 4096); !errors.Is(err, errs.ErrReadOnly) {
		t.Errorf("train: %v", err)
	}
	must(t, s.Sync())
}

func TestClosedStoreRefusesEverything(t *testing.T) {
	s := openStore(t, closedStore(t, 5, codec.Raw), Append)
	must(t, s.Close())
	must(t, s.Close())
	src, offsets := samples(0, 1)
	_, appendErr := s.Append(t.Context(), src, offsets, codec.Raw)
	_, gatherErr := s.Gather(&Request{}, 0, 0)
	_, lengthsErr := s.Lengths(nil, 0, nil)
	_, trainErr := s.TrainDict(t.Context(), nil, nil, 0)
	for name, err := range map[string]error{
		"append": appendErr, "gather": gatherErr, "lengths": lengthsErr, "train": trainErr, "sync": s.Sync(),
	} {
		if !errors.Is(err, errs.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s.Len() != 0 || s.HasDict() {
		t.Error("closed store shows content")
	}
}

func TestReadersSeeWhatIsSynced(t *testing.T) {
	path := closedStore(t, 0, codec.Raw)
	w, r := openStore(t, path, Append), openStore(t, path, ReadOnly)
	appendSamples(t, w, 0, 10, codec.Zstd)
	wantSamples(t, w, 10)
	if r.Len() != 0 {
		t.Fatalf("reader sees %d records before the sync", r.Len())
	}
	must(t, w.Sync())
	wantSamples(t, r, 10)
	trainSamples(t, w)
	appendSamples(t, w, 10, 20, codec.ZstdDict)
	must(t, w.Close())
	wantSamples(t, r, 20)
	if !r.HasDict() {
		t.Error("reader does not see the dictionary")
	}
}

func TestCloseWhileGathering(t *testing.T) {
	path := closedStore(t, 200, codec.Zstd)
	for range 20 {
		s := openStore(t, path, ReadOnly)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					_, err := read(s, []int64{0, 100, 199, 5, 6, 7, 8, 9})
					if errors.Is(err, errs.ErrClosed) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		time.Sleep(time.Millisecond)
		must(t, s.Close())
		wg.Wait()
	}
}

// Opening costs the same however many records there are.
func TestOpenOfAFullStoreReadsNoTable(t *testing.T) {
	path := closedStore(t, 1, codec.Raw)
	patch(t, path, metaName, 0, tail3{offset: 100, length: MaxRecords}.header())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, mode := range []Mode{ReadOnly, Append} {
		s := openStore(t, path, mode)
		if s.Len() != MaxRecords {
			t.Fatalf("len = %d", s.Len())
		}
		must(t, s.Close())
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("opening allocated %d bytes", n)
	}
}

// Opening maps files and reads one header: it holds one descriptor afterwards,
// for the lock that tells that the store is in use.
func TestOpenHoldsOneFile(t *testing.T) {
	const fds = "/proc/self/fd"
	before, err := os.ReadDir(fds)
	if err != nil {
		t.Log("no /proc here")
		return
	}
	path := closedStore(t, 5, codec.Raw)
	var stores []*Store
	for range 50 {
		s := openStore(t, path, ReadOnly)
		wantSamples(t, s, 5)
		stores = append(stores, s)
	}
	after, err := os.ReadDir(fds)
	must(t, err)
	if len(after) > len(before)+55 {
		t.Errorf("%d descriptors more for 50 open stores", len(after)-len(before))
	}
	for _, s := range stores {
		must(t, s.Close())
	}
	after, err = os.ReadDir(fds)
	must(t, err)
	if len(after) > len(before)+5 {
		t.Errorf("%d descriptors more after closing", len(after)-len(before))
	}
}
