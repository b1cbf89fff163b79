package zrecord

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
)

// hastyDisk does not wait for the drive.
type hastyDisk struct{ osDisk }

type hastyFile struct{ file }

func (hastyFile) Datasync() error { return nil }
func (hastyFile) Sync() error     { return nil }

func (hastyDisk) SyncDir(string) error { return nil }

func (d hastyDisk) Create(path string) (file, error) {
	f, err := d.osDisk.Create(path)
	if err != nil {
		return nil, err
	}
	return hastyFile{f}, nil
}

func (d hastyDisk) OpenWrite(path string) (file, error) {
	f, err := d.osDisk.OpenWrite(path)
	if err != nil {
		return nil, err
	}
	return hastyFile{f}, nil
}

// Any header and table over any chunk: errors of the right kind, never a
// crash, a hang or a write outside the buffer.
func FuzzStore(f *testing.F) {
	for _, name := range []string{"3_raw", "3_zstd", "3_zstd_dict"} {
		meta, err := os.ReadFile(filepath.Join("testdata", "golden", name, metaName))
		if err != nil {
			f.Fatal(err)
		}
		chunk, err := os.ReadFile(filepath.Join("testdata", "golden", name, "0.zr"))
		if err != nil {
			f.Fatal(err)
		}
		dict, _ := os.ReadFile(filepath.Join("testdata", "golden", name, dictName))
		f.Add(meta, chunk, dict)
	}
	known := []error{errs.ErrCorrupt, errs.ErrFormat, errs.ErrIndex, errs.ErrFault}
	allowed := func(err error) bool {
		for _, k := range known {
			if errors.Is(err, k) {
				return true
			}
		}
		return err == nil
	}
	f.Fuzz(func(t *testing.T, meta, chunk, dict []byte) {
		path := t.TempDir()
		must(t, os.WriteFile(filepath.Join(path, metaName), meta[:min(len(meta), metaSize3)], 0o666))
		must(t, os.Truncate(filepath.Join(path, metaName), metaSize3))
		must(t, os.WriteFile(chunkPath(path, 0), chunk, 0o666))
		if len(dict) > 0 {
			must(t, os.WriteFile(filepath.Join(path, dictName), dict, 0o666))
		}
		s, err := Open(path, Options{})
		if err != nil {
			if !errors.Is(err, errs.ErrFormat) {
				t.Fatal(err)
			}
			return
		}
		defer s.Close()
		n := min(s.Len(), 100)
		for idx := range n {
			var size [1]uint32
			total, err := s.Lengths([]int64{idx}, 0, size[:])
			if !allowed(err) {
				t.Fatal(err)
			}
			if err != nil {
				continue
			}
			if total < 1 || total > MaxRecordLen {
				t.Fatalf("record %d has length %d", idx, total)
			}
			dst := make([]byte, total+1)
			dst[total] = 0xAB
			if _, err := s.Gather(&Request{Idxs: []int64{idx}, Dst: dst, Offsets: []uint64{0}}, 0, 0); !allowed(err) {
				t.Fatal(err)
			}
			if dst[total] != 0xAB {
				t.Fatal("wrote behind the record")
			}
		}
		if w, err := openOn(hastyDisk{}, path, Options{Mode: Append}); err == nil {
			_, err = w.Append(t.Context(), []byte("abc"), []uint64{0}, codec.Raw)
			if err != nil && !errors.Is(err, errs.ErrFull) && !allowed(err) {
				t.Fatal(err)
			}
			w.Close()
		}
	})
}
