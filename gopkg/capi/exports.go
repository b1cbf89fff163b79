package main

import "C"

import (
	"context"
	"fmt"

	"loaderx/gopkg/bag"
	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
	"loaderx/gopkg/rowtable"
)

// The functions that shim.c calls. The last three parameters of each are a
// report. They return 0 or the code of an error.

//export capiOpen
func capiOpen(path uint64, pathLen, cacheBytes int64, policy, threads int32, chunkRows int64, verify int32, id, text uint64, room int64, size uint64) int32 {
	return report{text, room, size}.run(func() error {
		name, err := mem.Slice[byte](path, pathLen)
		if err != nil {
			return err
		}
		number, err := open(string(name), rowtable.Options{
			CacheBytes: cacheBytes, CachePolicy: rowtable.Policy(small(policy)), Threads: int(threads),
			ChunkRows: chunkRows, Verify: verify != 0,
		})
		if err != nil {
			return err
		}
		return put(id, number)
	})
}

//export capiClose
func capiClose(id, text uint64, room int64, size uint64) int32 {
	return report{text, room, size}.run(func() error { return closeTable(id) })
}

//export capiCount
func capiCount(id, rows, text uint64, room int64, size uint64) int32 {
	return report{text, room, size}.on(id, "count", func(t *rowtable.Table) error { return put(rows, t.Rows()) })
}

//export capiWidth
func capiWidth(id, bytes, text uint64, room int64, size uint64) int32 {
	return report{text, room, size}.on(id, "width", func(t *rowtable.Table) error { return put(bytes, t.RowBytes()) })
}

//export capiKind
func capiKind(id, kind, columns, text uint64, room int64, size uint64) int32 {
	return report{text, room, size}.on(id, "kind", func(t *rowtable.Table) error {
		dim := 0
		if recorded, known := t.Kind().Kind(); known {
			dim = recorded.Dim(t.RowBytes())
		}
		if err := put(kind, int64(t.Kind())); err != nil {
			return err
		}
		return put(columns, int64(dim))
	})
}

//export capiGather
func capiGather(id, ids uint64, n, chunkRows int64, out uint64, outBytes int64, text uint64, room int64, size uint64) int32 {
	return report{text, room, size}.on(id, "gather", func(t *rowtable.Table) error {
		in, err := mem.Slice[int64](ids, n)
		if err != nil {
			return fmt.Errorf("gather: ids: %w", err)
		}
		to, err := mem.Slice[byte](out, outBytes)
		if err != nil {
			return fmt.Errorf("gather: out: %w", err)
		}
		return t.GatherChunked(context.Background(), in, false, to, chunkRows)
	})
}

//export capiBag
func capiBag(id, ids uint64, n int64, offsets uint64, nOffsets int64, weights uint64, weighted, kind, mode, accumulate, includeLast, hasPadding int32, padding, columns int64, out uint64, outBytes int64, text uint64, room int64, size uint64) int32 {
	return report{text, room, size}.on(id, "embedding bag", func(t *rowtable.Table) (err error) {
		r := rowtable.BagRequest{
			IncludeLast: includeLast != 0, HasPadding: hasPadding != 0, Padding: padding, Kind: kindOf(t, kind),
			Mode: bag.Mode(small(mode)), Accumulate: bag.Accumulate(small(accumulate)),
		}
		if err := t.CheckKind(r.Kind); err != nil {
			return fmt.Errorf("embedding bag: %w", err)
		}
		if r.Dim, err = dimOf(t, r.Kind, columns); err != nil {
			return fmt.Errorf("embedding bag: %w", err)
		}
		if r.IDs, err = mem.Slice[int64](ids, n); err != nil {
			return fmt.Errorf("embedding bag: ids: %w", err)
		}
		if r.Offsets, err = mem.Slice[int64](offsets, nOffsets); err != nil {
			return fmt.Errorf("embedding bag: offsets: %w", err)
		}
		if r.Out, err = mem.Slice[byte](out, outBytes); err != nil {
			return fmt.Errorf("embedding bag: out: %w", err)
		}
		if weighted != 0 {
			if err := weigh(&r, weights); err != nil {
				return fmt.Errorf("embedding bag: weights: %w", err)
			}
		}
		return t.EmbeddingBag(context.Background(), &r)
	})
}

//export capiStats
func capiStats(id, at uint64, n int64, text uint64, room int64, size uint64) int32 {
	return report{text, room, size}.on(id, "stats", func(t *rowtable.Table) error {
		to, err := mem.Slice[int64](at, n)
		if err != nil {
			return err
		}
		s := t.Stats()
		counts := [...]int64{
			s.Queries, s.Rows, s.BlocksDecoded, s.CompressedBytes, s.DecodedBytes, s.CacheHits, s.CacheMisses,
			s.LastBlocksDecoded, s.LastCompressedBytes, s.LastDecodedBytes, s.LastCacheHits, s.LastCacheMisses,
			s.CacheEntries, s.CacheCapacity, s.CacheBytes,
		}
		if len(to) != len(counts) {
			return errs.ErrInternal.Errorf("stats: %d counters for %d places", len(counts), len(to))
		}
		copy(to, counts[:])
		return nil
	})
}

//export capiSetCache
func capiSetCache(id uint64, bytes int64, policy int32, text uint64, room int64, size uint64) int32 {
	return report{text, room, size}.on(id, "set cache", func(t *rowtable.Table) error {
		return t.SetCache(bytes, rowtable.Policy(small(policy)))
	})
}
