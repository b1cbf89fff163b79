package zrecord

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
)

func TestAppendRefusesBadRecords(t *testing.T) {
	big := make([]byte, MaxRecordLen+10)
	cases := []struct {
		name    string
		src     []byte
		offsets []uint64
		want    error
		text    string
	}{
		{"bytes without records", big[:5], nil, errs.ErrArgument, "no offsets"},
		{"offsets not from 0", big[:5], []uint64{1}, errs.ErrArgument, "start at 1"},
		{"offsets fall", big[:9], []uint64{0, 5, 3}, errs.ErrArgument, "record 1"},
		{"offset behind the end", big[:5], []uint64{0, 6}, errs.ErrArgument, "record 0"},
		{"offset near 2^64", big[:5], []uint64{0, 1<<64 - 1}, errs.ErrArgument, "record 0"},
		{"empty record first", big[:5], []uint64{0, 0}, errs.ErrRecordSize, "record 0 is empty: format 3"},
		{"empty record inside", big[:5], []uint64{0, 2, 2, 4}, errs.ErrRecordSize, "record 1 is empty"},
		{"empty record last", big[:5], []uint64{0, 5}, errs.ErrRecordSize, "record 1 is empty"},
		{"only an empty record", nil, []uint64{0}, errs.ErrRecordSize, "record 0 is empty"},
		{"too long", big, []uint64{0, 5}, errs.ErrRecordSize, "record 1 has 1048581 bytes, at most 1048576"},
	}
	s := openStore(t, closedStore(t, 3, codec.Raw), Append)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, tag := range []codec.Tag{codec.Raw, codec.Zstd} {
				_, err := s.Append(t.Context(), c.src, c.offsets, tag)
				if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
					t.Fatalf("%s: err = %v, want %v with %q", tag, err, c.want, c.text)
				}
			}
			wantSamples(t, s, 3)
		})
	}
	if _, err := s.Append(t.Context(), big[:1], []uint64{0}, 9); !errors.Is(err, errs.ErrArgument) {
		t.Errorf("unknown codec: %v", err)
	}
	if _, err := s.Append(t.Context(), big[:1], []uint64{0}, codec.ZstdDict); !errors.Is(err, errs.ErrDict) {
		t.Errorf("no dictionary: %v", err)
	}
	if first, err := s.Append(t.Context(), nil, nil, codec.Raw); err != nil || first != 3 {
		t.Errorf("no records: %d, %v", first, err)
	}
}

func TestRoundTripOfEveryCodecAndSize(t *testing.T) {
	for _, tag := range []codec.Tag{codec.Raw, codec.Zstd, codec.ZstdDict} {
		t.Run(tag.String(), func(t *testing.T) {
			path := closedStore(t, 0, tag)
			s := openStore(t, path, Append)
			// Single records, a small batch, and one that many workers share.
			appendSamples(t, s, 0, 1, tag)
			appendSamples(t, s, 1, 5, tag)
			appendSamples(t, s, 5, 900, tag)
			wantSamples(t, s, 900)
			must(t, s.Close())
			wantSamples(t, openStore(t, path, ReadOnly), 900)
		})
	}
}

func TestRecordsAtTheSizeLimit(t *testing.T) {
	s := openStore(t, closedStore(t, 0, codec.Raw), Append)
	src := make([]byte, 4*MaxRecordLen)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range src {
		src[i] = byte(rng.Uint32() & 7)
	}
	offsets := []uint64{0, MaxRecordLen, 2 * MaxRecordLen, 3 * MaxRecordLen}
	for _, tag := range []codec.Tag{codec.Raw, codec.Zstd} {
		first, err := s.Append(t.Context(), src, offsets, tag)
		must(t, err)
		got := make([]byte, len(src))
		_, err = s.Gather(&Request{Idxs: []int64{first, first + 1, first + 2, first + 3}, Dst: got, RowBytes: MaxRecordLen}, 0, 0)
		if err != nil || !bytes.Equal(got, src) {
			t.Fatalf("%s: %v", tag, err)
		}
	}
}

// A record that zstd does not make smaller is stored as it is.
func TestRawFallback(t *testing.T) {
	s := openStore(t, closedStore(t, 0, codec.Raw), Append)
	noise := make([]byte, 5000)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	src := append(append([]byte("ab"), noise...), make([]byte, 5000)...)
	if _, err := s.Append(t.Context(), src, []uint64{0, 2, 5002}, codec.Zstd); err != nil {
		t.Fatal(err)
	}
	files := s.files.(*files3)
	for i, want := range []entry3Fields{
		{offset: 0, phys: 2, size: 2, tag: codec.Raw},
		{offset: 2, phys: 5000, size: 5000, tag: codec.Raw},
		{offset: 5002, phys: files.entry(2).phys, size: 5000, tag: codec.Zstd},
	} {
		if got := files.entry(int64(i)); got != want {
			t.Errorf("record %d: %+v, want %+v", i, got, want)
		}
	}
	if files.entry(2).phys > 100 {
		t.Errorf("5000 zeros took %d bytes", files.entry(2).phys)
	}
}

// A record never straddles chunks, and none ends at 4 GiB exactly.
func TestChunkRollOver(t *testing.T) {
	for _, c := range []struct {
		name  string
		room  int64 // bytes left in chunk 0
		chunk uint16
	}{
		{"fits with a byte to spare", 101, 0},
		{"would end at 4 GiB", 100, 1},
		{"would straddle", 99, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := closedStore(t, 0, codec.Raw)
			patch(t, path, metaName, 0, tail3{offset: chunkSize - c.room}.header())
			s := openStore(t, path, Append)
			src := bytes.Repeat([]byte("0123456789"), 30)
			first, err := s.Append(t.Context(), src, []uint64{0, 100, 200}, codec.Raw)
			must(t, err)
			if got := s.files.(*files3).entry(first); got.chunk != c.chunk {
				t.Errorf("entry %+v, want chunk %d", got, c.chunk)
			}
			must(t, s.Close())
			r := openStore(t, path, ReadOnly)
			got, err := read(r, []int64{first, first + 1, first + 2})
			must(t, err)
			if !bytes.Equal(bytes.Join(got, nil), src) {
				t.Error("records differ")
			}
			info, err := os.Stat(chunkPath(path, 1))
			if err != nil || info.Size() != chunkSize {
				t.Errorf("chunk 1: %v, %v", info, err)
			}
		})
	}
}

func TestFullStores(t *testing.T) {
	cases := []struct {
		name string
		tail tail3
	}{
		{"no index left", tail3{length: MaxRecords - 2}},
		{"no chunk left", tail3{chunk: MaxChunks - 1, offset: chunkSize - 25}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			path := closedStore(t, 0, codec.Raw)
			patch(t, path, metaName, 0, c.tail.header())
			if c.tail.chunk > 0 {
				must(t, os.WriteFile(chunkPath(path, c.tail.chunk), nil, 0o666))
				must(t, os.Truncate(chunkPath(path, c.tail.chunk), chunkSize))
			}
			s := openStore(t, path, Append)
			if _, err := s.Append(t.Context(), make([]byte, 30), []uint64{0, 10, 20}, codec.Raw); !errors.Is(err, errs.ErrFull) {
				t.Fatalf("three records: %v", err)
			}
			if s.Len() != c.tail.length {
				t.Fatalf("len = %d after a refused append", s.Len())
			}
			if _, err := s.Append(t.Context(), make([]byte, 20), []uint64{0, 10}, codec.Raw); err != nil {
				t.Fatalf("two records: %v", err)
			}
		})
	}
}

// Many goroutines append at once: each batch is whole and contiguous.
func TestConcurrentAppends(t *testing.T) {
	path := closedStore(t, 0, codec.ZstdDict)
	s := openStore(t, path, Append)
	const each, per = 12, 40
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			tag := codec.Tag(g % 3)
			for round := range each {
				src, offsets := make([]byte, 0, per*1500), make([]uint64, 0, per)
				for i := range per {
					offsets = append(offsets, uint64(len(src)))
					src = binary.LittleEndian.AppendUint32(src, uint32(g*1_000_000+round*1000+i))
					src = append(src, make([]byte, 100+(i*37)%1300)...)
				}
				first, err := s.Append(t.Context(), src, offsets, tag)
				if err != nil {
					t.Error(err)
					return
				}
				got, err := read(s, []int64{first, first + per - 1})
				if err != nil || binary.LittleEndian.Uint32(got[1])-binary.LittleEndian.Uint32(got[0]) != per-1 {
					t.Errorf("batch at %d: %v", first, err)
					return
				}
				if round%5 == 0 {
					if err := s.Sync(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if s.Len() != 6*each*per {
		t.Fatalf("len = %d", s.Len())
	}
	must(t, s.Close())
	r := openStore(t, path, ReadOnly)
	for at := int64(0); at < r.Len(); at += per {
		got, err := read(r, []int64{at, at + per/2, at + per - 1})
		must(t, err)
		first := binary.LittleEndian.Uint32(got[0])
		if binary.LittleEndian.Uint32(got[1]) != first+per/2 || binary.LittleEndian.Uint32(got[2]) != first+per-1 {
			t.Fatalf("batch at %d is torn", at)
		}
	}
}

// A cancelled append adds nothing, whichever part of it was under way, and
// the store goes on.
func TestCancelledAppend(t *testing.T) {
	path := closedStore(t, 0, codec.ZstdDict)
	s := openStore(t, path, Append)
	appendSamples(t, s, 0, 3, codec.Raw)
	rng := rand.New(rand.NewPCG(1, 1))
	src := make([]byte, 24<<20)
	for i := range src {
		src[i] = byte(rng.Uint32() & 15)
	}
	var offsets []uint64
	for at := 0; at < len(src); at += MaxRecordLen {
		offsets = append(offsets, uint64(at))
	}
	for _, tag := range []codec.Tag{codec.Raw, codec.Zstd, codec.ZstdDict} {
		for _, after := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond} {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(after, cancel)
			if after == 0 {
				cancel()
			}
			_, err := s.Append(ctx, src, offsets, tag)
			cancel()
			if err == nil {
				// The machine was faster: nothing was cancelled.
				s.turnBack(3)
				continue
			}
			if !errors.Is(err, errs.ErrCancelled) {
				t.Fatalf("%s after %v: %v", tag, after, err)
			}
			wantSamples(t, s, 3)
		}
	}
	appendSamples(t, s, 3, 30, codec.Zstd)
	wantSamples(t, s, 30)
}

// turnBack forgets records that were not synced.
func (s *Store) turnBack(n int64) {
	w := s.writer.(*writer3)
	w.committed.length, w.placed.length = n, n
	s.length.Store(n)
}

func TestSourceThatFaultsIsAnError(t *testing.T) {
	name := filepath.Join(t.TempDir(), "source")
	must(t, os.WriteFile(name, make([]byte, 1<<20), 0o666))
	src := mapFile(t, name, 1<<20)
	must(t, os.Truncate(name, 4096))
	s := openStore(t, closedStore(t, 3, codec.Raw), Append)
	for _, tag := range []codec.Tag{codec.Raw, codec.Zstd} {
		if _, err := s.Append(t.Context(), src, []uint64{0, 1 << 19}, tag); err == nil {
			t.Errorf("%s: no error", tag)
		}
		if _, err := s.Append(t.Context(), src[1<<19:1<<19+100], []uint64{0}, tag); err == nil {
			t.Errorf("%s, small: no error", tag)
		}
		wantSamples(t, s, 3)
	}
}

func TestTrainDict(t *testing.T) {
	path := closedStore(t, 3, codec.Raw)
	s := openStore(t, path, Append)
	if s.HasDict() {
		t.Fatal("new store has a dictionary")
	}
	src, offsets := samples(0, 3)
	if _, err := s.TrainDict(t.Context(), src, []uint64{offsets[1], uint64(len(src)) - offsets[1]}, 4096); !errors.Is(err, errs.ErrDict) || !strings.Contains(err.Error(), "at least 7") {
		t.Fatalf("two records: %v", err)
	}
	if s.HasDict() {
		t.Fatal("failed training left a dictionary")
	}
	trainSamples(t, s)
	trainSamples(t, s) // no record needs the first one
	appendSamples(t, s, 3, 20, codec.ZstdDict)
	if s.files.(*files3).uses(codec.ZstdDict, s.Len()) != true {
		t.Fatal("nothing was compressed with the dictionary")
	}
	if _, err := s.TrainDict(t.Context(), src, offsets, 4096); !errors.Is(err, errs.ErrDict) {
		t.Fatalf("replacing a dictionary in use: %v", err)
	}
	must(t, s.Close())
	again := openStore(t, path, Append)
	if !again.HasDict() {
		t.Fatal("dictionary lost")
	}
	appendSamples(t, again, 20, 40, codec.ZstdDict)
	wantSamples(t, again, 40)
}
