package zrecord

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
)

func TestGatherChecksItsArguments(t *testing.T) {
	s := openStore(t, closedStore(t, 5, codec.Raw), ReadOnly)
	sizes := []int64{int64(len(sample(0))), int64(len(sample(1)))}
	buffer := make([]byte, 8000)
	cases := []struct {
		name string
		req  Request
		from int
		want error
		text string
	}{
		{"index at the end", Request{Idxs: []int64{0, 5}, Dst: buffer, Offsets: []uint64{0, 4000}}, 0, errs.ErrIndex, "index 5 at position 1: want 0 to 4"},
		{"negative, unsigned", Request{Idxs: []int64{-1}, Dst: buffer, Offsets: []uint64{0}}, 0, errs.ErrIndex, "18446744073709551615"},
		{"too negative", Request{Idxs: []int64{-6}, Wrap: PresentLength, Dst: buffer, Offsets: []uint64{0}}, 0, errs.ErrIndex, "want -5 to 4"},
		{"smallest", Request{Idxs: []int64{math.MinInt64}, Wrap: PresentLength, Dst: buffer, Offsets: []uint64{0}}, 0, errs.ErrIndex, ""},
		{"offsets of another number", Request{Idxs: []int64{0, 1}, Dst: buffer, Offsets: []uint64{0}}, 0, errs.ErrArgument, "1 offsets for 2"},
		{"buffer too short", Request{Idxs: []int64{0}, Dst: buffer[:sizes[0]-1], Offsets: []uint64{0}}, 0, errs.ErrBuffer, "position 0"},
		{"offset near 2^64", Request{Idxs: []int64{0}, Dst: buffer, Offsets: []uint64{math.MaxUint64 - 10}}, 0, errs.ErrBuffer, ""},
		{"dense buffer too short", Request{Idxs: []int64{0, 0}, Dst: buffer[:2*sizes[0]-1], RowBytes: sizes[0]}, 0, errs.ErrBuffer, ""},
		{"dense of another length", Request{Idxs: []int64{0, 1}, Dst: buffer, RowBytes: sizes[0]}, 0, errs.ErrCorrupt, "record 1"},
		{"negative row", Request{Idxs: []int64{0}, Dst: buffer, RowBytes: -1}, 0, errs.ErrArgument, ""},
		{"huge row", Request{Idxs: []int64{0, 1}, Dst: buffer, RowBytes: math.MaxInt64}, 0, errs.ErrBuffer, ""},
		{"empty row", Request{Idxs: []int64{0}, Dst: nil, RowBytes: 0}, 0, errs.ErrCorrupt, ""},
		{"from behind the end", Request{Idxs: []int64{0}, Dst: buffer, Offsets: []uint64{0}}, 2, errs.ErrArgument, ""},
		{"negative from", Request{Idxs: []int64{0}, Dst: buffer, Offsets: []uint64{0}}, -1, errs.ErrArgument, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			next, err := s.Gather(&c.req, c.from, 0)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Fatalf("err = %v, want %v with %q", err, c.want, c.text)
			}
			if next != c.from {
				t.Errorf("next = %d after an error", next)
			}
		})
	}
	if next, err := s.Gather(&Request{}, 0, 0); next != 0 || err != nil {
		t.Errorf("no indices: %d, %v", next, err)
	}
	if _, err := s.Lengths([]int64{1, 9}, 0, make([]uint32, 2)); !errors.Is(err, errs.ErrIndex) {
		t.Errorf("lengths: %v", err)
	}
	if _, err := s.Lengths([]int64{1}, 0, nil); !errors.Is(err, errs.ErrBuffer) {
		t.Errorf("lengths without room: %v", err)
	}
	empty := openStore(t, closedStore(t, 0, codec.Raw), ReadOnly)
	if _, err := read(empty, []int64{0}); !errors.Is(err, errs.ErrIndex) || !strings.Contains(err.Error(), "empty") {
		t.Errorf("empty store: %v", err)
	}
}

// A bad index anywhere leaves the buffer untouched.
func TestFailingGatherWritesNothing(t *testing.T) {
	path := closedStore(t, 0, codec.Raw)
	s := openStore(t, path, Append)
	row := make([]byte, 1000)
	idxs := make([]int64, 3000)
	for i := range idxs {
		idxs[i] = int64(i % 3)
	}
	for range 3 {
		_, err := s.Append(t.Context(), row, []uint64{0}, codec.Raw)
		must(t, err)
	}
	idxs[len(idxs)-1] = 3
	dst := bytes.Repeat([]byte{0xAB}, len(idxs)*len(row))
	want := append([]byte(nil), dst...)
	if _, err := s.Gather(&Request{Idxs: idxs, Dst: dst, RowBytes: 1000}, 0, 0); !errors.Is(err, errs.ErrIndex) {
		t.Fatal(err)
	}
	if !bytes.Equal(dst, want) {
		t.Error("buffer was written to")
	}
}

// denseStore has n records of size bytes; byte 0 to 3 are the index.
func denseStore(t testing.TB, n, size int, tag codec.Tag) *Store {
	t.Helper()
	s := openStore(t, closedStore(t, 0, tag), Append)
	src, offsets := make([]byte, n*size), make([]uint64, n)
	for i := range offsets {
		offsets[i] = uint64(i * size)
		row := src[i*size : (i+1)*size]
		for j := range row {
			row[j] = byte(i >> (8 * (j % 4)))
		}
	}
	_, err := s.Append(t.Context(), src, offsets, tag)
	must(t, err)
	return s
}

func wantRows(t testing.TB, dst []byte, idxs []int64, size int) {
	t.Helper()
	for at, idx := range idxs {
		for j, b := range dst[at*size : (at+1)*size] {
			if b != byte(idx>>(8*(j%4))) {
				t.Fatalf("position %d, record %d, byte %d: %d", at, idx, j, b)
			}
		}
	}
}

func TestGatherOfManySizesAndBatches(t *testing.T) {
	for _, tag := range []codec.Tag{codec.Raw, codec.Zstd, codec.ZstdDict} {
		for _, size := range []int{1, 3, 64, 700, 12 << 10, 100_000} {
			n := min(2000, 20_000_000/size)
			if tag == codec.ZstdDict {
				n = min(n, 50)
			}
			s := denseStore(t, n, size, tag)
			rng := rand.New(rand.NewPCG(uint64(size), 1))
			for _, batch := range []int{1, 2, 255, 257, 3000} {
				if batch*size > 20<<20 {
					continue
				}
				idxs := make([]int64, batch)
				for i := range idxs {
					idxs[i] = rng.Int64N(int64(n))
				}
				dst := bytes.Repeat([]byte{0xAB}, batch*size+1)
				next, err := s.Gather(&Request{Idxs: idxs, Dst: dst, RowBytes: int64(size)}, 0, 0)
				if err != nil || next != batch {
					t.Fatalf("%s, %d x %d: %d, %v", tag, batch, size, next, err)
				}
				wantRows(t, dst, idxs, size)
				if dst[batch*size] != 0xAB {
					t.Fatalf("%s, %d x %d: wrote behind the batch", tag, batch, size)
				}
			}
		}
	}
}

// Whatever the budget, going on from next copies each position once.
func TestGatherInSteps(t *testing.T) {
	const n, size = 300, 12 << 10
	s := denseStore(t, n, size, codec.Zstd)
	idxs := make([]int64, 2000)
	for i := range idxs {
		idxs[i] = int64(i*7) % n
	}
	for _, budget := range []time.Duration{time.Nanosecond, 50 * time.Microsecond, time.Hour} {
		dst := make([]byte, len(idxs)*size)
		calls := 0
		for from := 0; from < len(idxs); calls++ {
			next, err := s.Gather(&Request{Idxs: idxs, Dst: dst, RowBytes: size}, from, budget)
			must(t, err)
			if next <= from {
				t.Fatalf("budget %v: no progress from %d", budget, from)
			}
			from = next
		}
		wantRows(t, dst, idxs, size)
		if budget == time.Nanosecond && calls < 2 || budget == time.Hour && calls != 1 {
			t.Errorf("budget %v took %d calls", budget, calls)
		}
	}
}

// Going on counts from the end that there was at first, whatever was appended
// meanwhile.
func TestGatherGoesOnFromOneLength(t *testing.T) {
	s := openStore(t, closedStore(t, 10, codec.Raw), Append)
	size := int64(len(sample(9)))
	idxs := make([]int64, 3*maxBlock)
	for i := range idxs {
		idxs[i] = -1
	}
	dst := make([]byte, int64(len(idxs))*size)
	offsets := make([]uint64, len(idxs))
	for i := range offsets {
		offsets[i] = uint64(int64(i) * size)
	}
	r := Request{Idxs: idxs, Wrap: PresentLength, Dst: dst, Offsets: offsets}
	calls := 0
	for from := 0; from < len(idxs); calls++ {
		next, err := s.Gather(&r, from, time.Nanosecond)
		must(t, err)
		from = next
		_, err = s.Append(t.Context(), bytes.Repeat([]byte{0xee}, int(size)), []uint64{0}, codec.Raw)
		must(t, err)
	}
	if calls < 2 {
		t.Fatal("it was one call")
	}
	for i := range idxs {
		if !bytes.Equal(dst[int64(i)*size:int64(i+1)*size], sample(9)) {
			t.Fatalf("position %d is another record", i)
		}
	}
	r.Wrap = s.Len() + 1
	if _, err := s.Gather(&r, 0, 0); !errors.Is(err, errs.ErrArgument) {
		t.Errorf("counting from behind the end: %v", err)
	}
}

// Records of a run are computed, not looked up: those of a page that is no run,
// behind the last whole page, and appended or moved later, are right, too.
func TestGatherOfRuns(t *testing.T) {
	const size = 16
	path := filepath.Join(t.TempDir(), "s")
	s := openStore(t, path, CreateNew)
	want := map[int64]byte{}
	add := func(n int) {
		first := s.Len()
		src, offsets := make([]byte, n*size), make([]uint64, n)
		for i := range n {
			offsets[i] = uint64(i * size)
			for k := range size {
				src[i*size+k] = byte(first+int64(i)) * 31
			}
			want[first+int64(i)] = byte(first+int64(i)) * 31
		}
		_, err := s.Append(t.Context(), src, offsets, codec.Raw)
		must(t, err)
	}
	all := func(from *Store) {
		t.Helper()
		n := from.Len()
		idxs := make([]int64, n)
		for i := range idxs {
			idxs[i] = (int64(i)*7919 + 3) % n
		}
		for round := range 2 { // the second time pages are known
			dst := make([]byte, n*size)
			_, err := from.Gather(&Request{Idxs: idxs, Dst: dst, RowBytes: size}, 0, 0)
			must(t, err)
			for i, idx := range idxs {
				if !bytes.Equal(dst[i*size:(i+1)*size], bytes.Repeat([]byte{want[idx]}, size)) {
					t.Fatalf("round %d: record %d of %d is wrong", round, idx, n)
				}
			}
		}
	}
	add(pageLen - 2)
	must(t, s.Sync())
	reader := openStore(t, path, ReadOnly)
	all(s)
	all(reader)
	for _, n := range []int{1, 1, 700, 5} { // up to the end of page 0, into page 1, on, on
		add(n)
		all(s)
		must(t, s.Sync())
		all(reader)
	}
	p := reader.files.(*files3).runs.pages.Load()
	if p == nil || p.at(0)&runFlag == 0 || p.at(3*pageLen)&runFlag != 0 {
		t.Fatal("page 0 is a run, and page 3 is not whole")
	}
	must(t, reader.Close())
	// A hole: its page is no run any more.
	n := s.Len()
	must(t, s.Delete(t.Context(), []int64{300}, false))
	want[300] = want[n-1]
	delete(want, n-1)
	all(s)
	must(t, s.Compact(t.Context(), nil))
	all(s)
	add(600)
	all(s)
}

func TestNegativeIndices(t *testing.T) {
	s := openStore(t, closedStore(t, 10, codec.Zstd), ReadOnly)
	got, err := read(s, []int64{-1, -10, 0, 9})
	must(t, err)
	for i, want := range []int{9, 0, 0, 9} {
		if !bytes.Equal(got[i], sample(want)) {
			t.Errorf("position %d is not record %d", i, want)
		}
	}
}

func TestGatherFromManyGoroutines(t *testing.T) {
	const n, size, batch = 400, 5000, 200
	stores := []*Store{denseStore(t, n, size, codec.Raw), denseStore(t, n, size, codec.Zstd)}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 5))
			idxs, dst := make([]int64, batch), make([]byte, batch*size)
			for range 30 {
				for i := range idxs {
					idxs[i] = rng.Int64N(n)
				}
				next, err := stores[g%2].Gather(&Request{Idxs: idxs, Dst: dst, RowBytes: size}, 0, 0)
				if err != nil || next != batch {
					t.Errorf("%d, %v", next, err)
					return
				}
				for at, idx := range idxs {
					if dst[at*size] != byte(idx) || dst[at*size+size-3] != byte(idx>>8) {
						t.Errorf("position %d is not record %d", at, idx)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

func TestGatherDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector drops pooled memory on purpose")
		return
	}
	for _, tag := range []codec.Tag{codec.Raw, codec.Zstd} {
		if tag == codec.Zstd && codec.Backend() != "libzstd" {
			continue
		}
		s := denseStore(t, 100, 12<<10, tag)
		idxs := make([]int64, 256)
		r := Request{Idxs: idxs, Dst: make([]byte, len(idxs)*12<<10), RowBytes: 12 << 10}
		if n := testing.AllocsPerRun(100, func() {
			if _, err := s.Gather(&r, 0, 0); err != nil {
				t.Fatal(err)
			}
		}); n >= 1 {
			t.Errorf("%s: %v allocations a batch", tag, n)
		}
	}
}
