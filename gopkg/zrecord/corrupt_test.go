package zrecord

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
)

// damaged reads everything of a store that may be damaged: errors of the right
// kind only, and no more memory than the store is worth.
func damaged(t *testing.T, path, what string) (bad int64) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	allow := func(err error) {
		t.Helper()
		for _, kind := range []error{errs.ErrCorrupt, errs.ErrFormat, errs.ErrFault, errs.ErrIndex} {
			if errors.Is(err, kind) {
				bad++
				return
			}
		}
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	s, err := Open(path, Options{})
	allow(err)
	if err == nil {
		// A header may say that there are millions of records, all of them bad.
		n := min(s.Len(), 50)
		var sizes [1]uint32
		for idx := range n {
			total, err := s.Lengths([]int64{idx}, 0, sizes[:])
			allow(err)
			if err != nil {
				continue
			}
			_, err = s.Gather(&Request{Idxs: []int64{idx}, Dst: make([]byte, total), Offsets: []uint64{0}}, 0, 0)
			allow(err)
		}
		if _, err := s.Stats(); err != nil {
			allow(err)
		}
		if s.Len() < 1000 {
			found, err := s.Verify(t.Context(), nil, nil)
			must(t, err)
			bad += found
		}
		must(t, s.Close())
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 64<<20 {
		t.Errorf("%s: %d bytes allocated", what, used)
	}
	return bad
}

// Flipped bits in every region of every file of a store.
func TestFlippedBits(t *testing.T) {
	path := closedStore(t, 20, codec.ZstdDict)
	r := openStore(t, path, ReadOnly)
	st, err := r.Stats()
	must(t, err)
	must(t, r.Close())
	regions := []struct {
		name   string
		size   int64
		stride int64
		seen   bool // the damage is noticed in most places
	}{
		{metaName, header3 + 20*entry3, 1, true},
		{"0.zr", st.ChunkBytes, 3, true},
		{dictName, fileSize(t, filepath.Join(path, dictName)), 31, false},
	}
	for _, region := range regions {
		name := filepath.Join(path, region.name)
		flips, noticed := 0, 0
		for at := int64(0); at < region.size; at += region.stride {
			var good [1]byte
			f, err := os.OpenFile(name, os.O_RDWR, 0)
			must(t, err)
			_, err = f.ReadAt(good[:], at)
			must(t, err)
			_, err = f.WriteAt([]byte{good[0] ^ 1<<(at%8)}, at)
			must(t, err)
			flips++
			if damaged(t, path, region.name) > 0 {
				noticed++
			}
			_, err = f.WriteAt(good[:], at)
			must(t, err)
			must(t, f.Close())
		}
		t.Logf("%s: %d of %d flips were noticed", region.name, noticed, flips)
		if region.seen && noticed < flips/3 {
			t.Errorf("%s: only %d of %d flips were noticed", region.name, noticed, flips)
		}
	}
	if n := damaged(t, path, "restored"); n > 0 {
		t.Errorf("%d errors in the restored store", n)
	}
}

func fileSize(t *testing.T, name string) int64 {
	t.Helper()
	info, err := os.Stat(name)
	must(t, err)
	return info.Size()
}

// Every file cut off at many places, and missing.
func TestTruncatedFiles(t *testing.T) {
	for _, name := range []string{metaName, "0.zr", dictName} {
		path := closedStore(t, 20, codec.ZstdDict)
		file := filepath.Join(path, name)
		good, err := os.Open(file)
		must(t, err)
		head := make([]byte, 64<<10)
		n, _ := good.ReadAt(head, 0)
		size := fileSize(t, file)
		must(t, good.Close())
		for cut := int64(0); cut < int64(n); cut = cut*5/4 + 1 {
			must(t, os.WriteFile(file, bytes.Clone(head[:n]), 0o666))
			must(t, os.Truncate(file, size))
			must(t, os.Truncate(file, cut))
			bad := damaged(t, path, name)
			if bad == 0 && (name != "0.zr" || cut < 1000) && (name != dictName || cut < 100) {
				t.Errorf("%s of %d bytes: nothing noticed", name, cut)
			}
		}
		must(t, os.Remove(file))
		if _, err := Open(path, Options{}); name == metaName && !errors.Is(err, errs.ErrFormat) {
			t.Errorf("no %s: %v", name, err)
		} else if name != metaName && damaged(t, path, name) == 0 {
			t.Errorf("no %s: nothing noticed", name)
		}
	}
}
