package zrecord

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"loaderx/gopkg/codec"
)

var writeGolden = flag.Bool("write-golden", false, "write the golden stores that are missing")

// goldenRecords are the records of testdata/golden/README.md.
func goldenRecords() (src []byte, offsets, sizes []uint64) {
	for i := range 40 {
		n := 1 + i*i*31%500
		offsets, sizes = append(offsets, uint64(len(src))), append(sizes, uint64(n))
		for j := range n {
			b := byte(j % 61)
			if j%10 == 0 {
				b ^= byte(i)
			}
			src = append(src, b)
		}
	}
	return src, offsets, sizes
}

// goldenCopy lengthens a copy of a golden store to the format's file lengths.
func goldenCopy(t testing.TB, name string) string {
	t.Helper()
	path := t.TempDir()
	for file, size := range map[string]int64{metaName: metaSize3, "0.zr": chunkSize, dictName: 0} {
		content, err := os.ReadFile(filepath.Join("testdata", "golden", name, file))
		if file == dictName && os.IsNotExist(err) {
			continue
		}
		must(t, err)
		must(t, os.WriteFile(filepath.Join(path, file), content, 0o666))
		if size > 0 {
			must(t, os.Truncate(filepath.Join(path, file), size))
		}
	}
	return path
}

func TestGoldenStoresRead(t *testing.T) {
	src, offsets, sizes := goldenRecords()
	for _, by := range []string{"", "_loaderx"} {
		for _, tag := range []codec.Tag{codec.Raw, codec.Zstd, codec.ZstdDict} {
			name := "3_" + tag.String() + by
			t.Run(name, func(t *testing.T) {
				path := goldenCopy(t, name)
				s := openStore(t, path, Append)
				if s.Len() != 40 || s.HasDict() != (tag == codec.ZstdDict) {
					t.Fatalf("%d records, dictionary %v", s.Len(), s.HasDict())
				}
				idxs, lengths := make([]int64, 40), make([]uint32, 40)
				for i := range idxs {
					idxs[i] = int64(i)
				}
				total, err := s.Lengths(idxs, 0, lengths)
				must(t, err)
				if total != int64(len(src)) || uint64(lengths[39]) != sizes[39] {
					t.Fatalf("%d bytes, the last record %d", total, lengths[39])
				}
				dst := make([]byte, total)
				_, err = s.Gather(&Request{Idxs: idxs, Dst: dst, Offsets: offsets}, 0, 0)
				if err != nil || !bytes.Equal(dst, src) {
					t.Fatalf("content differs, %v", err)
				}
				// Records go on behind the old ones.
				_, err = s.Append(t.Context(), src, offsets, tag)
				must(t, err)
				clear(dst)
				for i := range idxs {
					idxs[i] += 40
				}
				_, err = s.Gather(&Request{Idxs: idxs, Dst: dst, Offsets: offsets}, 0, 0)
				if err != nil || !bytes.Equal(dst, src) {
					t.Fatalf("appended content differs, %v", err)
				}
			})
		}
	}
}

// Raw stores of both packages are the same bytes.
func TestGoldenRawStoresAreEqual(t *testing.T) {
	for _, file := range []string{metaName, "0.zr"} {
		ours, err := os.ReadFile(filepath.Join("testdata", "golden", "3_raw", file))
		must(t, err)
		theirs, err := os.ReadFile(filepath.Join("testdata", "golden", "3_raw_loaderx", file))
		must(t, err)
		if !bytes.Equal(ours, theirs) {
			t.Errorf("%s differs", file)
		}
	}
}

// What is written today is what was written when the golden stores were made,
// compressed bytes aside: those may change with zstd.
func TestGoldenRawStoreIsWrittenAgain(t *testing.T) {
	path := closedStore(t, 0, codec.Raw)
	s := openStore(t, path, Append)
	src, offsets, _ := goldenRecords()
	_, err := s.Append(t.Context(), src, offsets, codec.Raw)
	must(t, err)
	must(t, s.Close())
	for _, file := range []string{metaName, "0.zr"} {
		want, err := os.ReadFile(filepath.Join("testdata", "golden", "3_raw", file))
		must(t, err)
		if !bytes.Equal(leading(t, filepath.Join(path, file)), want) {
			t.Errorf("%s differs", file)
		}
	}
}

// leading returns a sparse file's bytes up to the last one that is not zero.
func leading(t testing.TB, name string) []byte {
	t.Helper()
	f, err := os.Open(name)
	must(t, err)
	defer f.Close()
	info, err := f.Stat()
	must(t, err)
	b := make([]byte, min(info.Size(), 1<<20))
	_, err = f.ReadAt(b, 0)
	must(t, err)
	return bytes.TrimRight(b, "\x00")
}

func TestWriteGolden(t *testing.T) {
	if !*writeGolden {
		return
	}
	src, offsets, sizes := goldenRecords()
	for _, tag := range []codec.Tag{codec.Raw, codec.Zstd, codec.ZstdDict} {
		target := filepath.Join("testdata", "golden", "3_"+tag.String())
		if exists(target) {
			continue
		}
		path := closedStore(t, 0, codec.Raw)
		s := openStore(t, path, Append)
		if tag == codec.ZstdDict {
			_, err := s.TrainDict(t.Context(), src, sizes, 1024)
			must(t, err)
		}
		_, err := s.Append(t.Context(), src, offsets, tag)
		must(t, err)
		must(t, s.Close())
		must(t, os.MkdirAll(target, 0o777))
		for _, file := range []string{metaName, "0.zr", dictName} {
			if exists(filepath.Join(path, file)) {
				must(t, os.WriteFile(filepath.Join(target, file), leading(t, filepath.Join(path, file)), 0o666))
			}
		}
	}
}
