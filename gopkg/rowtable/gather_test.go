package rowtable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"loaderx/gopkg/errs"
)

// want picks rows the plain way.
func want(rows []byte, rowBytes int, ids []int64) []byte {
	out := make([]byte, 0, len(ids)*rowBytes)
	for _, id := range ids {
		out = append(out, rows[int(id)*rowBytes:][:rowBytes]...)
	}
	return out
}

func someIDs(rng *rand.Rand, n, rows int) []int64 {
	ids := make([]int64, n)
	hot := 1 + rng.IntN(rows)
	for i := range ids {
		ids[i] = int64(rng.IntN(hot))
	}
	return ids
}

func someOptions(rng *rand.Rand, table int) Options {
	return Options{
		CacheBytes: []int64{0, int64(rng.IntN(max(table, 1))), 1 << 26}[rng.IntN(3)], CachePolicy: Policy(rng.IntN(2)),
		Threads: rng.IntN(4), ChunkRows: []int64{0, -1, 1 + rng.Int64N(100)}[rng.IntN(3)], Verify: rng.IntN(2) == 0,
	}
}

func TestGatherReturnsTheRowsOfAnyTable(t *testing.T) {
	rounds := 150
	if testing.Short() || raceEnabled {
		rounds = 40
	}
	for round := range rounds {
		rng := rand.New(rand.NewPCG(uint64(round), 1))
		n := 1 + rng.IntN(200)
		f := anyForge(rng, n)
		rows := someRows(rng, n, f.rowBytes)
		content := f.make(t, rng, rows)
		opt := someOptions(rng, len(rows)*2)
		t.Run(fmt.Sprintf("%d_%dx%d", round, n, f.rowBytes), func(t *testing.T) {
			table := opened(t, content, opt)
			for range 6 {
				ids := someIDs(rng, rng.IntN(2000), n)
				out := bytes.Repeat([]byte{0xEE}, len(ids)*f.rowBytes)
				next, err := 0, error(nil)
				for budget := time.Duration(rng.IntN(2)); next < len(ids) || len(ids) == 0; {
					if next, err = table.Gather(ids, false, out, next, budget); err != nil {
						t.Fatalf("%+v %+v: %v", f, opt, err)
					}
					if len(ids) == 0 {
						break
					}
				}
				if !bytes.Equal(out, want(rows, f.rowBytes, ids)) {
					t.Fatalf("wrong rows: %+v %+v", f, opt)
				}
				checkLocate(t, table, rows, ids)
			}
			st := table.Stats()
			if st.CacheBytes > opt.CacheBytes || st.CacheEntries > st.CacheCapacity {
				t.Fatalf("cache over its budget of %d: %+v", opt.CacheBytes, st)
			}
		})
	}
}

func checkLocate(t *testing.T, table *Table, rows []byte, ids []int64) {
	t.Helper()
	if len(ids) == 0 {
		return
	}
	q := table.newQuery(t.Context(), ids, false)
	defer q.release()
	defer table.counts.add(&q.counts, 0, true) // its next user counts from nothing
	from := len(ids) / 3
	base, places, err := q.locate(from, len(ids))
	sure(t, err)
	w := table.RowBytes()
	for i, p := range places {
		if id := ids[from+i]; !bytes.Equal(base[p:p+w], rows[id*w:][:w]) {
			t.Fatalf("row %d is not where locate says", id)
		}
	}
}

func TestIDsOutsideTheTableAreNamedAndNothingIsWritten(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, codecs := range [][]Codec{{Raw}, {Zstd}} {
		f := forge{rowBytes: 8, blockRows: 4, codecs: codecs, predictors: []Predictor{None}}
		table := opened(t, f.make(t, rng, make([]byte, 80)), Options{})
		for _, c := range []struct {
			id       int64
			unsigned bool
			shown    string
		}{
			{-1, false, "id -1 at position 1: want 0 to 9"},
			{-1, true, "id 18446744073709551615 at position 1"},
			{math.MinInt64, true, "id 9223372036854775808 at position 1"},
			{10, false, "id 10 at position 1"},
			{math.MaxInt64, false, "id 9223372036854775807 at position 1"},
		} {
			out := bytes.Repeat([]byte{7}, 24)
			_, err := table.Gather([]int64{0, c.id, 50}, c.unsigned, out, 0, 0)
			if !errors.Is(err, errs.ErrIndex) || !bytes.Contains([]byte(err.Error()), []byte(c.shown)) {
				t.Fatalf("%v", err)
			}
			if !bytes.Equal(out, bytes.Repeat([]byte{7}, 24)) {
				t.Fatal("wrote before the ids were checked")
			}
			if err := table.Prefetch([]int64{0, c.id}, c.unsigned); !errors.Is(err, errs.ErrIndex) {
				t.Fatalf("prefetch: %v", err)
			}
		}
		for _, size := range []int{0, 15, 17} {
			if _, err := table.Gather([]int64{1, 2}, false, make([]byte, size), 0, 0); !errors.Is(err, errs.ErrBuffer) {
				t.Fatalf("%d bytes for two rows: %v", size, err)
			}
		}
	}
}

// The ids of a long call are checked in parts.
func TestAnIDFarBehindIsNamedByItsPosition(t *testing.T) {
	for _, codecs := range [][]Codec{{Raw}, {Zstd}} {
		f := forge{rowBytes: 1, blockRows: 4, codecs: codecs, predictors: []Predictor{None}}
		table := opened(t, f.make(t, rand.New(rand.NewPCG(1, 2)), make([]byte, 10)), Options{})
		ids := make([]int64, untilEnded+9)
		ids[untilEnded+7] = 10
		_, err := table.Gather(ids, false, make([]byte, len(ids)), 0, 0)
		if shown := fmt.Sprintf("id 10 at position %d: ", untilEnded+7); !errors.Is(err, errs.ErrIndex) || !strings.Contains(err.Error(), shown) {
			t.Fatalf("%v, want %q", err, shown)
		}
	}
}

func TestAnEmptyTable(t *testing.T) {
	f := forge{rowBytes: 8, blockRows: 4}
	table := opened(t, f.make(t, nil, nil), Options{Verify: true, CacheBytes: 1 << 20, CachePolicy: Rows})
	if _, err := table.Gather(nil, false, nil, 0, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Gather([]int64{0}, false, make([]byte, 8), 0, 0); !errors.Is(err, errs.ErrIndex) {
		t.Fatal(err)
	}
}

func TestEachBlockIsDecodedOnceForAChunk(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	f := forge{rowBytes: 16, blockRows: 10, codecs: []Codec{Zstd}, predictors: []Predictor{None}}
	content := f.make(t, rng, make([]byte, 1000*16))
	ids := make([]int64, 4000)
	for i := range ids {
		ids[i] = int64(rng.IntN(1000))
	}
	ids[17] = 999
	out := make([]byte, len(ids)*16)
	gather := func(table *Table) Stats {
		_, err := table.Gather(ids, false, out, 0, 0)
		sure(t, err)
		return table.Stats()
	}
	st := gather(opened(t, content, Options{}))
	if st.LastBlocksDecoded != 100 || st.LastDecodedBytes != 16000 || st.CacheMisses != 0 {
		t.Fatalf("%+v", st)
	}
	if st = gather(opened(t, content, Options{ChunkRows: 2000})); st.LastBlocksDecoded != 200 {
		t.Fatalf("two chunks: %+v", st)
	}
	for chunk, decoded := range map[int64]int64{1000: 400, 0: 100, -1: 100} {
		table := opened(t, content, Options{})
		sure(t, table.GatherChunked(t.Context(), ids, false, out, chunk))
		if st = table.Stats(); st.LastBlocksDecoded != decoded || st.Queries != 1 {
			t.Fatalf("chunks of %d: %+v", chunk, st)
		}
	}
	for _, policy := range []Policy{Blocks, Rows} {
		table := opened(t, content, Options{CacheBytes: 1 << 20, CachePolicy: policy})
		if st = gather(table); st.LastCacheMisses != 4000 || st.LastBlocksDecoded != 100 {
			t.Fatalf("first: %+v", st)
		}
		if st = gather(table); st.LastCacheHits != 4000 || st.LastBlocksDecoded != 0 || st.LastCompressedBytes != 0 || st.BlocksDecoded != 100 {
			t.Fatalf("second: %+v", st)
		}
		sure(t, table.SetCache(0, Rows))
		if st = gather(table); st.LastBlocksDecoded != 100 || st.CacheBytes != 0 {
			t.Fatalf("without: %+v", st)
		}
		sure(t, table.SetCache(1<<20, policy))
		gather(table)
		if st = gather(table); st.LastCacheHits != 4000 {
			t.Fatalf("again: %+v", st)
		}
	}
}

func TestACancelledGatherEnds(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for _, codecs := range [][]Codec{{Raw}, {Zlib}} {
		f := forge{rowBytes: 16, blockRows: 10, codecs: codecs, predictors: []Predictor{None}}
		table := opened(t, f.make(t, rng, make([]byte, 1000*16)), Options{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		ids := make([]int64, 5000)
		if err := table.GatherAll(ctx, ids, false, make([]byte, 80000)); !errors.Is(err, errs.ErrCancelled) {
			t.Fatal(err)
		}
		sure(t, table.GatherAll(t.Context(), ids, false, make([]byte, 80000)))
	}
}

func TestManyGoroutinesOnOneTableWhileOthersOpenAndClose(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	f := forge{rowBytes: 64, blockRows: 16, codecs: []Codec{Raw, Zlib, Zstd, Zstd}, predictors: []Predictor{None, XOR, Shuffle}, element: 4}
	rows := someRows(rng, 3000, 64)
	content := f.make(t, rng, rows)
	path := keep(t, content)
	for _, policy := range []Policy{Blocks, Rows} {
		table, err := Open(path, Options{CacheBytes: 40 << 10, CachePolicy: policy})
		sure(t, err)
		rounds := 60
		if raceEnabled {
			rounds = 8
		}
		var wg sync.WaitGroup
		fail := make(chan error, 1000)
		for g := range 64 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(g), 5))
				for round := range rounds {
					ids := someIDs(rng, 1+rng.IntN(600), 3000)
					out := make([]byte, len(ids)*64)
					if _, err := table.Gather(ids, false, out, 0, 0); err != nil {
						fail <- err
						return
					}
					if !bytes.Equal(out, want(rows, 64, ids)) {
						fail <- errors.New("wrong rows")
						return
					}
					switch {
					case g == 0:
						if err := table.SetCache(rng.Int64N(80<<10), policy); err != nil {
							fail <- err
						}
					case g == 1:
						if err := table.Prefetch(ids, false); err != nil {
							fail <- err
						}
					case g < 8 && round%4 == 0:
						other, err := Open(path, Options{CacheBytes: 1 << 20, CachePolicy: policy})
						if err == nil {
							_, err = other.Gather(ids, false, out, 0, 0)
						}
						if err == nil {
							err = other.Close()
						}
						if err != nil {
							fail <- err
						}
					}
				}
			})
		}
		wg.Wait()
		close(fail)
		for err := range fail {
			t.Fatal(err)
		}
		sure(t, table.Close())
	}
}

func TestCloseWaitsForGathersAndRefusesLaterOnes(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	f := forge{rowBytes: 64, blockRows: 16, codecs: []Codec{Zstd}, predictors: []Predictor{None}}
	path := keep(t, f.make(t, rng, make([]byte, 3000*64)))
	for range 30 {
		table, err := Open(path, Options{CacheBytes: 1 << 14, CachePolicy: Rows})
		sure(t, err)
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(g), 7))
				ids := someIDs(rng, 500, 3000)
				out := make([]byte, len(ids)*64)
				for {
					if _, err := table.Gather(ids, false, out, 0, 0); err != nil {
						if !errors.Is(err, errs.ErrClosed) {
							t.Error(err)
						}
						return
					}
					_ = table.Prefetch(ids, false)
				}
			})
		}
		time.Sleep(time.Millisecond)
		sure(t, table.Close())
		sure(t, table.Close())
		wg.Wait()
		if err := table.SetCache(1, Rows); !errors.Is(err, errs.ErrClosed) {
			t.Fatal(err)
		}
		if _, err := table.Verify(t.Context(), nil, nil); !errors.Is(err, errs.ErrClosed) {
			t.Fatal(err)
		}
	}
}

func TestLargeResultsOfRawTablesAreTheRowsToo(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	for _, width := range []int{64, 192, 512, 520, 4096} {
		f := forge{rowBytes: width, blockRows: 16, codecs: []Codec{Raw}}
		rows := someRows(rng, 500, width)
		table := opened(t, f.make(t, rng, rows), Options{})
		ids := someIDs(rng, streamBytes/width+77, 500)
		for shift := range 2 { // memory of another alignment
			room := bytes.Repeat([]byte{0xEE}, len(ids)*width+33)
			out := room[shift:][:len(ids)*width]
			for next := 0; next < len(ids); {
				var err error
				next, err = table.Gather(ids, false, out, next, 1)
				sure(t, err)
			}
			if !bytes.Equal(out, want(rows, width, ids)) || !bytes.Equal(room[len(ids)*width+shift:], bytes.Repeat([]byte{0xEE}, 33-shift)) {
				t.Fatalf("rows of %d bytes", width)
			}
		}
	}
}

// Rows of a cache go to large results past the processor's caches; what it
// does not hold is decoded beside them.
func TestLargeResultsOfCachedTablesAreTheRowsToo(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 9))
	for _, width := range []int{64, 192, 512, 520, 4096} {
		f := forge{
			rowBytes: width, blockRows: 4, element: 4,
			codecs: []Codec{Zstd, Raw, Zlib}, predictors: []Predictor{None, Shuffle, XORShuffle},
		}
		rows := someRows(rng, 500, width)
		path := f.make(t, rng, rows)
		for _, policy := range []Policy{Rows, Blocks} {
			for _, budget := range []int64{1 << 30, int64(len(rows)) / 3} {
				table := opened(t, path, Options{CacheBytes: budget, CachePolicy: policy})
				for round := range 3 {
					ids := make([]int64, streamBytes/width+1500)
					for i := range ids {
						ids[i] = rng.Int64N(500)
					}
					room := bytes.Repeat([]byte{0xEE}, len(ids)*width+33)
					shift := 16 * round / 2 // 0, 8 and 16: memory of another alignment
					out := room[shift:][:len(ids)*width]
					sure(t, table.GatherAll(t.Context(), ids, false, out))
					if !bytes.Equal(out, want(rows, width, ids)) || !bytes.Equal(room[len(out)+shift:], bytes.Repeat([]byte{0xEE}, 33-shift)) {
						t.Fatalf("rows of %d bytes, policy %d, %d bytes of cache, round %d", width, policy, budget, round)
					}
					if st := table.Stats(); round > 0 && st.LastCacheHits == 0 {
						t.Fatalf("no row was cached: %+v", st)
					}
				}
			}
		}
	}
}

func TestWhatACacheHoldsIsReadBeforeItIsPushedOut(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 10))
	f := forge{rowBytes: 256, blockRows: 1, codecs: []Codec{Zstd}, predictors: []Predictor{None}}
	rows := make([]byte, 3000*256) // which compress
	for i := range rows {
		rows[i] = byte(i / 256 % 251)
	}
	path := f.make(t, rng, rows)
	for _, policy := range []Policy{Rows, Blocks} {
		table := opened(t, path, Options{CacheBytes: 64 * (256 + entryBytes), CachePolicy: policy})
		first := []int64{5, 6, 7, 8, 9, 10}
		out := make([]byte, len(first)*256)
		sure(t, table.GatherAll(t.Context(), first, false, out))
		ids := make([]int64, 0, 3000)
		for id := range int64(2000) {
			ids = append(ids, 1000+id) // many more than there is room for
		}
		ids = append(ids, first...)
		out = make([]byte, len(ids)*256)
		sure(t, table.GatherAll(t.Context(), ids, false, out))
		if st := table.Stats(); st.LastCacheHits != int64(len(first)) || st.CacheCapacity > 100 {
			t.Fatalf("policy %d: %+v", policy, st)
		}
		if !bytes.Equal(out, want(rows, 256, ids)) {
			t.Fatal("wrong rows")
		}
	}
}
