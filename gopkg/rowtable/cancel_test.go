package rowtable

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"loaderx/gopkg/errs"
)

// countdown is a context that ends once it was looked at so many times.
type countdown struct {
	context.Context
	left, looks atomic.Int64
}

func looksAt(t *testing.T, n int64) *countdown {
	c := &countdown{Context: t.Context()}
	c.left.Store(n)
	return c
}

func (c *countdown) Err() error {
	c.looks.Add(1)
	if c.left.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}

func TestASortLooksWhetherToEndAgainAndAgain(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	keys := make([]uint64, 3*untilEnded+5)
	for i := range keys {
		keys[i] = rng.Uint64N(1 << 30)
	}
	sorted := slices.Clone(keys)
	slices.Sort(sorted)
	all := looksAt(t, 1<<40)
	got, err := sortRows(all, slices.Clone(keys), make([]uint64, len(keys)), 0)
	sure(t, err)
	if !slices.Equal(got, sorted) {
		t.Fatal("not sorted")
	}
	// Once for what differs, and twice for each of three digits.
	if looks := all.looks.Load(); looks != 7*4 {
		t.Fatalf("%d looks", looks)
	}
	for n := range all.looks.Load() {
		if _, err := sortRows(looksAt(t, n), slices.Clone(keys), make([]uint64, len(keys)), 0); !errors.Is(err, errs.ErrCancelled) {
			t.Fatalf("after %d looks: %v", n, err)
		}
	}
}

func TestAGatherThatIsOneChunkEndsWherever(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	rows := someRows(rng, 3000, 64)
	for _, blockRows := range []int{16, 4096} {
		f := forge{rowBytes: 64, blockRows: blockRows, codecs: []Codec{Zstd}, predictors: []Predictor{None}}
		table := opened(t, f.make(t, rng, rows), Options{Threads: 1, ChunkRows: -1})
		ids := someIDs(rng, 2*untilEnded, 3000)
		out := make([]byte, len(ids)*64)
		all := looksAt(t, 1<<40)
		sure(t, table.GatherAll(all, ids, false, out))
		if !bytes.Equal(out, want(rows, 64, ids)) {
			t.Fatal("other rows")
		}
		// Before each portion; and at ids, in the sort, at blocks, and for each MiB of copies from a block.
		looks := all.looks.Load()
		if least := int64(len(ids)/maxPortion + len(out)/copiedUntilEnded); looks < least && blockRows > 3000 {
			t.Fatalf("%d looks, want at least %d", looks, least)
		}
		for n := looks - 1; n > 0; n -= max(looks/9, 1) {
			if err := table.GatherAll(looksAt(t, n), ids, false, out); !errors.Is(err, errs.ErrCancelled) {
				t.Fatalf("after %d of %d looks: %v", n, looks, err)
			}
		}
		// What was cancelled leaves nothing behind for the next query.
		clear(out)
		sure(t, table.GatherAll(t.Context(), ids, false, out))
		if !bytes.Equal(out, want(rows, 64, ids)) {
			t.Fatal("other rows after a cancelled query")
		}
	}
}
