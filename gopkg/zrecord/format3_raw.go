package zrecord

import (
	"encoding/binary"

	"loaderx/gopkg/codec"
)

// copyRaw copies raw records of row bytes each into dst, one behind the other,
// and returns how many it copied: it stops at the first record that is not
// plainly so, and leaves it to locate to find out what it is.
//
// It is what locate and a copy would do, in fewer steps: small records cost
// little more than the cache misses of their entries and bytes. The loads of
// one loop do not depend on each other, so that many misses are under way at
// once; that is why entries, first bytes and copies have a loop each.
func (f *files3) copyRaw(idxs []int64, dst []byte, row int64, l *lane) int {
	if len(idxs) == 0 || row <= 0 || row > MaxRecordLen || f.over != nil {
		return 0
	}
	first := f.entry(idxs[0])
	c := f.chunks[first.chunk%MaxChunks].Load()
	if c == nil {
		return 0 // locate maps it
	}
	data := c.mapping.Bytes()
	last := c.size.Load() - row
	// What both halves of an entry of this chunk, codec and length must be.
	length := uint64(row) << 32
	shape := uint64(row) | uint64(first.chunk)<<32 | uint64(codec.Raw)<<48
	const shapeBits = 1<<56 - 1 // without the reserved byte
	table := f.table
	offsets := l.offsets[:len(idxs)]
	for i, idx := range idxs {
		at := idx * entry3
		e := table[at : at+entry3]
		place := binary.LittleEndian.Uint64(e)
		offset := place & (1<<32 - 1)
		if place-offset != length || binary.LittleEndian.Uint64(e[8:])&shapeBits != shape || int64(offset) > last {
			offsets = offsets[:i]
			break
		}
		offsets[i] = uint32(offset)
	}
	var sum byte
	for _, offset := range offsets {
		sum += data[offset]
	}
	l.sum = sum
	for i, offset := range offsets {
		start := int64(i) * row
		copy(dst[start:start+row], data[int64(offset):int64(offset)+row])
	}
	return len(offsets)
}
