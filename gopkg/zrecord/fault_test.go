package zrecord

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
)

func mapFile(t *testing.T, name string, size int64) []byte {
	t.Helper()
	f, err := os.Open(name)
	must(t, err)
	defer f.Close()
	m, err := mem.Map(f, size)
	must(t, err)
	t.Cleanup(func() { m.Close() })
	return m.Bytes()
}

// Every impossible table entry is an error that names the record.
func TestBadEntries(t *testing.T) {
	good := entry3Fields{offset: 10, phys: 100, size: 100}
	cases := map[string]func(e *entry3Fields){
		"unknown codec":           func(e *entry3Fields) { e.tag = 3 },
		"empty":                   func(e *entry3Fields) { e.size, e.phys = 0, 0 },
		"nothing stored":          func(e *entry3Fields) { e.phys, e.tag = 0, codec.Zstd },
		"too long":                func(e *entry3Fields) { e.size, e.tag = MaxRecordLen+1, codec.Zstd },
		"length of 2^32-1":        func(e *entry3Fields) { e.size, e.tag = math.MaxUint32, codec.Zstd },
		"stored too long":         func(e *entry3Fields) { e.phys, e.tag = MaxRecordLen+1, codec.Zstd },
		"raw of another length":   func(e *entry3Fields) { e.size = 99 },
		"chunk beyond the format": func(e *entry3Fields) { e.chunk = MaxChunks },
		"chunk that is missing":   func(e *entry3Fields) { e.chunk = 7 },
		"behind the chunk's end":  func(e *entry3Fields) { e.offset = math.MaxUint32 - 50 },
		"not a frame":             func(e *entry3Fields) { e.tag = codec.Zstd },
		"no dictionary":           func(e *entry3Fields) { e.tag = codec.ZstdDict },
		"zeros":                   func(e *entry3Fields) { *e = entry3Fields{} },
	}
	for name, spoil := range cases {
		t.Run(name, func(t *testing.T) {
			path := closedStore(t, 5, codec.Raw)
			e := good
			spoil(&e)
			patch(t, path, metaName, header3+2*entry3, appendEntry3(nil, e))
			s := openStore(t, path, ReadOnly)
			_, err := s.Gather(&Request{Idxs: []int64{2}, Dst: make([]byte, MaxRecordLen), Offsets: []uint64{0}}, 0, 0)
			if !errors.Is(err, errs.ErrCorrupt) || !strings.Contains(err.Error(), "record 2") {
				t.Fatalf("err = %v, want ErrCorrupt for record 2", err)
			}
			if got, err := read(s, []int64{0, 1, 3, 4}); err != nil || len(got) != 4 {
				t.Errorf("the other records: %v", err)
			}
		})
	}
}

func TestMissingAndShortChunkFiles(t *testing.T) {
	t.Run("missing", func(t *testing.T) {
		path := closedStore(t, 5, codec.Raw)
		must(t, os.Remove(chunkPath(path, 0)))
		s := openStore(t, path, ReadOnly)
		if _, err := read(s, []int64{1}); !errors.Is(err, errs.ErrCorrupt) || !strings.Contains(err.Error(), "0.zr is missing") {
			t.Errorf("read: %v", err)
		}
		if _, err := Open(path, Options{Mode: Append}); !errors.Is(err, errs.ErrCorrupt) {
			t.Errorf("append: %v", err)
		}
		if exists(chunkPath(path, 0)) {
			t.Error("the chunk file was made again")
		}
	})
	t.Run("shortened before", func(t *testing.T) {
		path := closedStore(t, 5, codec.Raw)
		must(t, os.Truncate(chunkPath(path, 0), int64(len(sample(0)))))
		s := openStore(t, path, ReadOnly)
		if _, err := read(s, []int64{0}); err != nil {
			t.Errorf("record before the end: %v", err)
		}
		if _, err := read(s, []int64{1}); !errors.Is(err, errs.ErrCorrupt) || !strings.Contains(err.Error(), "0.zr") {
			t.Errorf("record behind the end: %v", err)
		}
		if _, err := Open(path, Options{Mode: Append}); !errors.Is(err, errs.ErrCorrupt) {
			t.Errorf("append: %v", err)
		}
	})
	t.Run("shortened to its content grows again", func(t *testing.T) {
		path := closedStore(t, 5, codec.Raw)
		src, _ := samples(0, 5)
		must(t, os.Truncate(chunkPath(path, 0), int64(len(src))))
		r := openStore(t, path, ReadOnly)
		wantSamples(t, r, 5)
		w := openStore(t, path, Append)
		appendSamples(t, w, 5, 30, codec.Raw)
		must(t, w.Close())
		wantSamples(t, r, 30)
	})
}

// A file that shrinks under an open store is an error and not a crash, also
// when its bytes go into libzstd.
func TestFilesThatShrinkUnderAReader(t *testing.T) {
	for _, tag := range []codec.Tag{codec.Raw, codec.Zstd, codec.ZstdDict} {
		t.Run("chunk, "+tag.String(), func(t *testing.T) {
			path := closedStore(t, 400, tag)
			s := openStore(t, path, ReadOnly)
			wantSamples(t, s, 400)
			must(t, os.Truncate(chunkPath(path, 0), 0))
			idxs := make([]int64, 400)
			for i := range idxs {
				idxs[i] = int64(i)
			}
			if _, err := read(s, idxs); !errors.Is(err, errs.ErrFault) || !strings.Contains(err.Error(), "0.zr") {
				t.Fatalf("err = %v, want ErrFault for 0.zr", err)
			}
		})
	}
	t.Run("table", func(t *testing.T) {
		path := closedStore(t, 400, codec.Raw)
		s := openStore(t, path, ReadOnly)
		wantSamples(t, s, 400)
		must(t, os.Truncate(filepath.Join(path, metaName), 0))
		if _, err := read(s, []int64{3}); !errors.Is(err, errs.ErrFault) {
			t.Fatalf("err = %v, want ErrFault", err)
		}
		if s.Len() != 400 {
			t.Errorf("len = %d, want the last one known", s.Len())
		}
	})
}

func TestDamagedFramesAndDictionaries(t *testing.T) {
	for _, tag := range []codec.Tag{codec.Zstd, codec.ZstdDict} {
		path := closedStore(t, 50, tag)
		patch(t, path, "0.zr", 0, []byte{1, 2, 3, 4, 5})
		if _, err := read(openStore(t, path, ReadOnly), []int64{0}); !errors.Is(err, errs.ErrCorrupt) || !strings.Contains(err.Error(), "record 0") {
			t.Errorf("%s: %v", tag, err)
		}
	}
	damage := map[string]func(t *testing.T, name string){
		"missing":   func(t *testing.T, name string) { must(t, os.Remove(name)) },
		"truncated": func(t *testing.T, name string) { must(t, os.Truncate(name, 10)) },
		"empty":     func(t *testing.T, name string) { must(t, os.Truncate(name, 0)) },
		"huge":      func(t *testing.T, name string) { must(t, os.Truncate(name, 1<<40)) },
		"another":   func(t *testing.T, name string) { patch(t, filepath.Dir(name), dictName, 4, []byte{9, 9, 9, 9}) },
	}
	for name, spoil := range damage {
		t.Run("dictionary "+name, func(t *testing.T) {
			path := closedStore(t, 50, codec.ZstdDict)
			spoil(t, filepath.Join(path, dictName))
			if _, err := read(openStore(t, path, ReadOnly), []int64{20}); !errors.Is(err, errs.ErrCorrupt) {
				t.Errorf("err = %v", err)
			}
		})
	}
}
