package zrecord

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
)

func verify(t *testing.T, s *Store) (bad []int64, texts []string) {
	t.Helper()
	last := int64(0)
	n, err := s.Verify(t.Context(), func(idx int64, err error) {
		if !errors.Is(err, errs.ErrCorrupt) && !errors.Is(err, errs.ErrFault) {
			t.Errorf("record %d: %v", idx, err)
		}
		bad, texts = append(bad, idx), append(texts, err.Error())
	}, func(done, total int64) { last = done })
	must(t, err)
	if n != int64(len(bad)) || last != s.Len() {
		t.Errorf("%d bad, %d reported; progress ended at %d of %d", n, len(bad), last, s.Len())
	}
	slices.Sort(bad)
	return bad, texts
}

func TestVerifyFindsEveryBadRecord(t *testing.T) {
	for _, tag := range []codec.Tag{codec.Zstd, codec.ZstdDict} {
		path := closedStore(t, 600, tag)
		s := openStore(t, path, ReadOnly)
		if bad, _ := verify(t, s); len(bad) > 0 {
			t.Fatalf("good store: %v", bad)
		}
		var want []int64
		for _, idx := range []int64{0, 17, 255, 256, 500, 599} {
			e := s.files.(*files3).entry(idx)
			if e.tag == codec.Raw {
				continue
			}
			patch(t, path, "0.zr", int64(e.offset), []byte{0, 0, 0, 0})
			want = append(want, idx)
		}
		patch(t, path, metaName, header3+30*entry3, make([]byte, entry3))
		want = append(want, 30)
		slices.Sort(want)
		bad, texts := verify(t, s)
		if !slices.Equal(bad, want) {
			t.Errorf("%s: bad records %v, want %v", tag, bad, want)
		}
		for _, text := range texts {
			if !strings.Contains(text, "record ") || !strings.Contains(text, path) {
				t.Errorf("%q does not name the record and the store", text)
			}
		}
	}
}

func TestVerifyOfAShortenedChunk(t *testing.T) {
	path := closedStore(t, 600, codec.Raw)
	s := openStore(t, path, ReadOnly)
	wantSamples(t, s, 600)
	cut := s.files.(*files3).entry(590)
	must(t, os.Truncate(chunkPath(path, 0), int64(cut.offset)))
	bad, _ := verify(t, s)
	if !slices.Equal(bad, []int64{590, 591, 592, 593, 594, 595, 596, 597, 598, 599}) {
		t.Errorf("bad records %v", bad)
	}
	must(t, os.Remove(chunkPath(path, 0)))
	bad, _ = verify(t, openStore(t, path, ReadOnly))
	if len(bad) != 600 {
		t.Errorf("%d bad records of 600 in a store without chunks", len(bad))
	}
}

func TestVerifyCanBeCancelled(t *testing.T) {
	s := openStore(t, closedStore(t, 2000, codec.Zstd), ReadOnly)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := s.Verify(ctx, nil, func(int64, int64) { cancel() })
	if !errors.Is(err, errs.ErrCancelled) {
		t.Errorf("%v", err)
	}
	must(t, s.Close())
	if _, err := s.Verify(t.Context(), nil, nil); !errors.Is(err, errs.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

func TestPanicOfTheCallersReportIsAnError(t *testing.T) {
	path := closedStore(t, 10, codec.Raw)
	patch(t, path, metaName, header3, make([]byte, entry3))
	_, err := openStore(t, path, ReadOnly).Verify(t.Context(), func(int64, error) { panic("boom") }, nil)
	if !errors.Is(err, errs.ErrInternal) {
		t.Errorf("%v", err)
	}
}

func TestStatsCountsRecordsThatTheChunksCannotHold(t *testing.T) {
	path := closedStore(t, 10, codec.Raw)
	lost := func() int64 {
		t.Helper()
		r := openStore(t, path, ReadOnly)
		defer func() { must(t, r.Close()) }()
		st, err := r.Stats()
		must(t, err)
		return st.Lost
	}
	if n := lost(); n != 0 {
		t.Errorf("%d lost of a sound store", n)
	}
	r := openStore(t, path, ReadOnly)
	st, err := r.Stats()
	must(t, err)
	must(t, r.Close())
	chunk := filepath.Join(path, chunkName(0))
	must(t, os.Truncate(chunk, st.ChunkBytes))
	if n := lost(); n != 0 {
		t.Errorf("%d lost where the file ends with the last record", n)
	}
	must(t, os.Truncate(chunk, st.ChunkBytes-1))
	if n := lost(); n != 1 {
		t.Errorf("%d lost where the last record lacks a byte", n)
	}
	must(t, os.Remove(chunk))
	if n := lost(); n != 10 {
		t.Errorf("%d lost without the file", n)
	}
}

func TestStats(t *testing.T) {
	path := closedStore(t, 0, codec.Raw)
	s := openStore(t, path, Append)
	_, err := s.Append(t.Context(), make([]byte, 1000), []uint64{0, 100, 200, 300}, codec.Raw)
	must(t, err)
	check := func(s *Store, want Stats) {
		t.Helper()
		if got, err := s.Stats(); err != nil || got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
	}
	check(s, Stats{Records: 4, LiveBytes: 1000, ChunkBytes: 1000, ByCodec: [codec.NumTags]int64{codec.Raw: 4}})
	r := openStore(t, path, ReadOnly)
	check(r, Stats{})
	must(t, r.Close())
	must(t, s.Close())
	s = openStore(t, path, Append)
	must(t, s.Delete(t.Context(), []int64{3, 0}, false))
	raw := [codec.NumTags]int64{codec.Raw: 2}
	check(s, Stats{Records: 2, LiveBytes: 200, ChunkBytes: 1000, Reclaimable: 800, ByCodec: raw})
	check(openStore(t, path, ReadOnly), Stats{Records: 2, LiveBytes: 200, ChunkBytes: 1000, Reclaimable: 800, ByCodec: raw})
	must(t, s.Close())
	// Whole chunks before the last count in full, as in loaderx.
	patch(t, path, metaName, 0, tail3{chunk: 1, offset: 100, length: 2}.header())
	check(openStore(t, path, ReadOnly), Stats{Records: 2, LiveBytes: 200, ChunkBytes: chunkSize + 100, Reclaimable: chunkSize - 100, ByCodec: raw})
	must(t, os.Truncate(filepath.Join(path, metaName), 8))
}

func TestStatsCountTheRecordsOfEachCodec(t *testing.T) {
	s := openStore(t, closedStore(t, 0, codec.Raw), Append)
	trainSamples(t, s)
	for _, tag := range []codec.Tag{codec.Raw, codec.Zstd, codec.Zstd, codec.ZstdDict, codec.ZstdDict, codec.ZstdDict} {
		_, err := s.Append(t.Context(), make([]byte, 1000), []uint64{0, 500}, tag)
		must(t, err)
	}
	// What does not shrink is raw.
	_, err := s.Append(t.Context(), []byte{1, 2, 3}, []uint64{0}, codec.Zstd)
	must(t, err)
	st, err := s.Stats()
	must(t, err)
	if want := [codec.NumTags]int64{codec.Raw: 3, codec.Zstd: 4, codec.ZstdDict: 6}; st.ByCodec != want {
		t.Errorf("%v, want %v", st.ByCodec, want)
	}
	patch(t, s.Path(), metaName, header3, bytes.Repeat([]byte{0xff}, entry3))
	st, err = s.Stats()
	must(t, err)
	if n := st.ByCodec[codec.Raw] + st.ByCodec[codec.Zstd] + st.ByCodec[codec.ZstdDict]; n != 12 {
		t.Errorf("%d sound records, want 12", n)
	}
}
