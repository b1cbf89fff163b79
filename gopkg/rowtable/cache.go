package rowtable

import (
	"math/bits"
	"runtime"
	"sync/atomic"

	"loaderx/gopkg/mem"
	"loaderx/gopkg/work"
)

// cache keeps decoded rows or blocks, those that were used last, within a
// budget that covers its bookkeeping as well. It is safe for concurrent use: a
// key's shard, which has a lock of its own, follows from the key's hash.
//
// All of its memory is one arena, so that nothing is allocated when entries
// come and go, and a large cache is no load for the garbage collector. The
// shards' methods take bytes and give copies; no view leaves them.
type cache struct {
	life   work.Life
	arena  *mem.Arena
	shards []shard
	bits   int // log2 of how many shards

	policy   Policy
	each     int64 // bytes of an entry's rows
	capacity int64
	bytes    int64

	clock atomic.Uint64 // counts chunks of queries
}

const (
	maxShards = 64
	// shardsPerProcessor makes it rare that two goroutines want one shard. More
	// of them would leave few of a query's rows to each.
	shardsPerProcessor = 8
	// entriesPerShard is how few are too few for a shard: the fewer, the more
	// some shards overflow while others have room.
	entriesPerShard = 32
	// maxEntries bounds a shard: slots are numbered in 32 bits.
	maxEntries = 1 << 31
)

// newCache returns a cache for a table, or nil if its budget holds nothing or
// there is nothing to cache.
func newCache(h *header, budget int64, policy Policy) (*cache, error) {
	each, keys := h.rowBytes, h.stored
	if policy == Blocks {
		each, keys = h.rowBytes*min(h.blockRows, max(h.stored, 1)), h.blocks
	}
	if budget <= 0 || h.raw() || keys == 0 {
		return nil, nil
	}
	n := min(budget/(each+entryBytes), keys)
	shards := int64(1)
	most := int64(min(maxShards, shardsPerProcessor*runtime.GOMAXPROCS(0)))
	for shards*2 <= most && n/(shards*2) >= entriesPerShard {
		shards *= 2
	}
	per := n / shards
	if n == keys {
		// All fit. The hash spreads neighbours evenly but for a few.
		per = min(budget/shards/(each+entryBytes), keys/shards+spareEntries)
	}
	per = min(per, maxEntries)
	for per > 0 && shards*shardBytes(per, each) > budget {
		per--
	}
	if per == 0 {
		return nil, nil
	}
	size := shards * shardBytes(per, each)
	arena, err := mem.NewArena(size)
	if err != nil {
		return nil, err
	}
	c := &cache{
		life: work.NewLife(), arena: arena, policy: policy, each: each,
		shards: make([]shard, shards), bits: bits.TrailingZeros64(uint64(shards)), capacity: shards * per, bytes: size,
	}
	free := arena.Bytes()
	for i := range c.shards {
		n := shardBytes(per, each)
		if err := c.shards[i].init(free[:n], per, each); err != nil {
			_ = arena.Close()
			return nil, err
		}
		free = free[n:]
	}
	return c, nil
}

// spareEntries is by how many the neighbours in a shard may exceed the average.
const spareEntries = 4

// close waits for the cache's users and gives its memory back.
func (c *cache) close() error {
	if c == nil {
		return nil
	}
	c.life.End()
	return c.arena.Close()
}

// hashOf mixes a key. Its upper bits choose the shard: those of neighbours are
// spread most evenly by the golden ratio. The lower 32 mix all of them.
func hashOf(key int64) uint64 {
	h := uint64(key) * 0x9E3779B97F4A7C15
	m := (h ^ h>>29) * 0xBF58476D1CE4E5B9
	return h>>32<<32 | m>>32
}

func (c *cache) shardOf(hash uint64) int { return int(hash >> 32 >> (32 - c.bits)) }

func (c *cache) entries() (n int64) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		n += int64(s.used)
		s.mu.Unlock()
	}
	return n
}

// add keeps the bytes of a key, unless they are there already. now is the time
// of the chunk that has them decoded.
func (c *cache) add(key int64, content []byte, now uint64) {
	hash := hashOf(key)
	s := &c.shards[c.shardOf(hash)]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(key, uint32(hash), content, now)
}

// read copies those of l.rows that it holds to out, where the row of l.rows[i]
// has its place at i*rowBytes, and sets l.missing for each of the others. It
// returns how many it copied.
func (c *cache) read(q *query, l *lane, rows []int64, out []byte) (hits int) {
	t := q.t
	rb := t.h.rowBytes
	keys, offsets, missing := rows, l.offsets[:len(rows)], l.missing[:len(rows)]
	if c.policy == Blocks {
		keys = l.places[:len(rows)]
		for i, row := range rows {
			keys[i] = t.blockOf(row)
			offsets[i] = (row - keys[i]*t.h.blockRows) * rb
		}
	} else {
		clear(offsets)
	}
	hashes := l.hashes[:len(rows)]
	for i, key := range keys {
		hashes[i] = hashOf(key)
	}
	if len(rows) < 4*len(c.shards) {
		for i, key := range keys {
			s := &c.shards[c.shardOf(hashes[i])]
			s.mu.Lock()
			content := s.use(key, uint32(hashes[i]), q.now)
			if missing[i] = content == nil; !missing[i] {
				copy(out[int64(i)*rb:(int64(i)+1)*rb], content[offsets[i]:])
				hits++
			}
			s.mu.Unlock()
		}
		return hits
	}
	// By shard, so that a lock is taken once for all of a shard's rows.
	counts := l.counts[:len(c.shards)+1]
	clear(counts)
	for _, hash := range hashes {
		counts[c.shardOf(hash)+1]++
	}
	for i := 1; i < len(counts); i++ {
		counts[i] += counts[i-1]
	}
	for i, hash := range hashes {
		at := &counts[c.shardOf(hash)]
		l.order[*at] = uint16(i)
		*at++
	}
	begin := uint16(0)
	for i := range c.shards {
		end := counts[i]
		if begin < end {
			hits += c.shards[i].read(q, l, l.order[begin:end], keys, out)
		}
		begin = end
	}
	return hits
}
