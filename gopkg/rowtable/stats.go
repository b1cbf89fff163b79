package rowtable

import "sync/atomic"

// Stats are counts of what a table did since it was opened. Raw rows are read
// from the mapping and count as neither hits nor misses.
type Stats struct {
	Queries         int64 `json:"queries"`
	Rows            int64 `json:"rows"`
	BlocksDecoded   int64 `json:"blocks_decoded"`
	CompressedBytes int64 `json:"compressed_bytes"` // of the decoded blocks, as stored
	DecodedBytes    int64 `json:"decoded_bytes"`
	CacheHits       int64 `json:"cache_hits"`
	CacheMisses     int64 `json:"cache_misses"`

	// The same of the query that ended last, whichever goroutine made it.
	LastBlocksDecoded   int64 `json:"last_blocks_decoded"`
	LastCompressedBytes int64 `json:"last_compressed_bytes"`
	LastDecodedBytes    int64 `json:"last_decoded_bytes"`
	LastCacheHits       int64 `json:"last_cache_hits"`
	LastCacheMisses     int64 `json:"last_cache_misses"`

	// The present cache: rows or blocks in it, how many fit, and its memory
	// when full, which is within the budget.
	CacheEntries  int64 `json:"cache_entries"`
	CacheCapacity int64 `json:"cache_capacity"`
	CacheBytes    int64 `json:"cache_bytes"`
}

// counts are those of one query, or their sum.
type counts struct {
	blocks, compressed, decoded, hits, misses atomic.Int64
}

func (c *counts) each(o *counts, f func(to, from *atomic.Int64)) {
	f(&c.blocks, &o.blocks)
	f(&c.compressed, &o.compressed)
	f(&c.decoded, &o.decoded)
	f(&c.hits, &o.hits)
	f(&c.misses, &o.misses)
}

func (c *counts) any() bool {
	return c.blocks.Load()|c.compressed.Load()|c.decoded.Load()|c.hits.Load()|c.misses.Load() != 0
}

// counters are a table's.
type counters struct {
	queries, rows atomic.Int64
	total, last   counts
}

// add counts a query, or a further part of one, that has ended.
func (c *counters) add(q *counts, rows int, further bool) {
	c.rows.Add(int64(rows))
	if !further {
		c.queries.Add(1)
	}
	// The usual query of a raw table has nothing to add.
	if further && !q.any() || !q.any() && !c.last.any() {
		return
	}
	c.total.each(q, func(to, from *atomic.Int64) { to.Add(from.Load()) })
	c.last.each(q, func(to, from *atomic.Int64) {
		v := from.Swap(0)
		if further {
			v += to.Load()
		}
		to.Store(v)
	})
}

// Stats returns the present counts.
func (t *Table) Stats() Stats {
	c := &t.counts
	s := Stats{
		Queries: c.queries.Load(), Rows: c.rows.Load(),
		BlocksDecoded: c.total.blocks.Load(), CompressedBytes: c.total.compressed.Load(),
		DecodedBytes: c.total.decoded.Load(), CacheHits: c.total.hits.Load(), CacheMisses: c.total.misses.Load(),
		LastBlocksDecoded: c.last.blocks.Load(), LastCompressedBytes: c.last.compressed.Load(),
		LastDecodedBytes: c.last.decoded.Load(), LastCacheHits: c.last.hits.Load(), LastCacheMisses: c.last.misses.Load(),
	}
	if cache := t.useCache(); cache != nil {
		s.CacheEntries, s.CacheCapacity, s.CacheBytes = cache.entries(), cache.capacity, cache.bytes
		cache.life.Leave()
	}
	return s
}
