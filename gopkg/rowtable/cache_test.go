package rowtable

import (
	"bytes"
	"container/list"
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// A cache of one shard against a list and a map, which say what was used last.
func TestAShardKeepsWhatWasUsedLast(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 40))
		room := 1 + rng.IntN(30)
		h := &header{rowBytes: 8, stored: 1 << 40, blockRows: 1, blocks: 1 << 40}
		c, err := newCache(h, shardBytes(int64(room), 8), Rows)
		sure(t, err)
		if len(c.shards) != 1 || c.capacity != int64(room) {
			t.Fatalf("%d shards for %d of %d entries", len(c.shards), c.capacity, room)
		}
		order, places := list.New(), map[int64]*list.Element{}
		for now := range uint64(3000) {
			key := int64(rng.IntN(2*room)) << rng.IntN(3)
			content := binary.LittleEndian.AppendUint64(nil, uint64(key)*3)
			if rng.IntN(2) == 0 {
				c.add(key, content, now)
				if places[key] == nil {
					if order.Len() == room {
						delete(places, order.Remove(order.Back()).(int64))
					}
					places[key] = order.PushFront(key)
				}
				continue
			}
			hash := hashOf(key)
			got := c.shards[0].use(key, uint32(hash), now)
			if (got != nil) != (places[key] != nil) || got != nil && !bytes.Equal(got, content) {
				t.Fatalf("seed %d: key %d: %v, in list %v", seed, key, got, places[key] != nil)
			}
			if got != nil {
				order.MoveToFront(places[key])
			}
		}
		if c.entries() != int64(order.Len()) {
			t.Fatalf("%d entries, want %d", c.entries(), order.Len())
		}
		sure(t, c.close())
	}
}

func TestACacheStaysWithinItsBudgetAndHoldsAWholeTableThatFits(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 41))
	for range 300 {
		h := &header{
			rowBytes: 1 + rng.Int64N(1<<rng.IntN(14)), stored: 1 + rng.Int64N(1<<rng.IntN(18)), blockRows: 1 + rng.Int64N(300),
		}
		h.blocks = (h.stored + h.blockRows - 1) / h.blockRows
		budget := rng.Int64N(1 << (1 + rng.IntN(26)))
		policy := Policy(rng.IntN(2))
		c, err := newCache(h, budget, policy)
		sure(t, err)
		if c == nil {
			continue
		}
		if c.bytes > budget || c.capacity*c.each > c.bytes {
			t.Fatalf("%d bytes for %d entries of %d, budget %d", c.bytes, c.capacity, c.each, budget)
		}
		keys := h.stored
		if policy == Blocks {
			keys = h.blocks
		}
		if budget > keys*(c.each+2*entryBytes)+maxShards*(structBytes+64+8*(c.each+entryBytes)) {
			content := make([]byte, c.each)
			for key := range keys {
				c.add(key, content, 0)
			}
			if c.entries() != keys {
				t.Fatalf("%d of %d keys fit into %d bytes, for %d entries of %d", c.entries(), keys, budget, c.capacity, c.each)
			}
		}
		sure(t, c.close())
	}
}

// More rows and ids than 64 bits number together.
func TestAChunkWhoseNumbersDoNotFitIntoAWordIsHalved(t *testing.T) {
	const stored, blockRows = 1 << 44, 1 << 20
	plain := make([]byte, blockRows)
	for i := range plain {
		plain[i] = byte(i * i >> 7)
	}
	packed := deflated(t, plain, 6)
	h := header{
		version: 3, flags: flagIdentity, rows: stored, stored: stored, rowBytes: 1, blockRows: blockRows,
		blocks: stored / blockRows, descriptors: headerBytes,
	}
	h.payloadAt = headerBytes + h.blocks*descriptorBytes
	h.payloadBytes = int64(len(packed))
	d := descriptor{at: h.payloadAt, bytes: int64(len(packed)), rows: blockRows, codec: Zlib, sum: crc32.Checksum(packed, castagnoli)}
	path := filepath.Join(t.TempDir(), "t.men")
	f, err := os.Create(path)
	sure(t, err)
	_, err = f.Write(d.append(h.append(nil)))
	sure(t, err)
	_, err = f.WriteAt(packed, h.payloadAt)
	sure(t, err)
	sure(t, f.Close())
	table, err := Open(path, Options{ChunkRows: -1})
	sure(t, err)
	defer table.Close()
	rng := rand.New(rand.NewPCG(1, 42))
	ids := someIDs(rng, 1<<20+1000, blockRows)
	out := make([]byte, len(ids))
	sure(t, table.GatherAll(t.Context(), ids, false, out))
	if !bytes.Equal(out, want(plain, 1, ids)) {
		t.Fatal("wrong rows")
	}
	if st := table.Stats(); st.BlocksDecoded != 2 {
		t.Fatalf("%+v", st)
	}
	checkLocate(t, table, plain, ids)
}

// What one chunk uses is of one age, whatever its order within the chunk.
func TestUsesOfOneChunkDoNotReorderItsRows(t *testing.T) {
	h := &header{rowBytes: 8, stored: 1 << 40, blockRows: 1, blocks: 1 << 40}
	c, err := newCache(h, shardBytes(3, 8), Rows)
	sure(t, err)
	content := make([]byte, 8)
	for key := range int64(3) {
		c.add(key, content, 1)
	}
	use := func(key int64, now uint64) bool { return c.shards[0].use(key, uint32(hashOf(key)), now) != nil }
	if !use(0, 1) || !use(0, 2) || !use(1, 2) || !use(0, 2) {
		t.Fatal("a row is missing")
	}
	c.add(3, content, 2) // row 2 was used in chunk 1 only
	c.add(4, content, 2) // then row 0, which chunk 2 used first
	for key, want := range []bool{false, true, false, true, true} {
		if got := use(int64(key), 3); got != want {
			t.Errorf("row %d is kept: %v", key, got)
		}
	}
	sure(t, c.close())
}
