package zrecord

import (
	"encoding/binary"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/mem"
)

// copyRaw copies raw records of row bytes each into dst, one behind the other,
// and returns how many it copied: it stops at the first record that is not
// plainly so, and leaves it to locate to find out what it is.
//
// It is what locate and a copy would do, in fewer steps: small records cost
// little more than the cache misses of their bytes. The loads of one loop do
// not depend on each other, so that many misses are under way at once; that is
// why places and first bytes have a loop each.
func (f *files3) copyRaw(idxs []int64, dst []byte, row int64, l *lane) int {
	if len(idxs) == 0 || row <= 0 || row > MaxRecordLen || f.over != nil {
		return 0
	}
	chunk := f.chunkOf(idxs[0], row)
	c := f.chunks[chunk%MaxChunks].Load()
	if c == nil {
		return 0 // locate maps it
	}
	data := c.mapping.Bytes()
	last := c.size.Load() - row
	pages, head := f.runs.known(row), runHead(chunk)
	offsets := l.offsets[:len(idxs)]
	for i, idx := range idxs {
		offset, ok := uint32(0), true
		if run := pages.at(idx); run>>32 == head {
			offset = runOffset(run, idx, row)
		} else {
			offset, ok = f.rawOffset(idx, row, chunk)
		}
		if !ok || int64(offset) > last {
			offsets = offsets[:i]
			break
		}
		offsets[i] = offset
	}
	var sum byte
	for _, offset := range offsets {
		sum += data[offset]
	}
	l.sum = sum
	mem.CopyRows(dst, data, offsets, int(row))
	return len(offsets)
}

// chunkOf returns the chunk of a record of row bytes.
func (f *files3) chunkOf(idx, row int64) uint16 {
	if run := f.runs.known(row).at(idx); run&runFlag != 0 {
		return runChunk(run)
	}
	return f.entry(idx).chunk
}

// rawOffset returns the place of a record in its chunk, if it is plainly a raw
// one of row bytes in the chunk given.
func (f *files3) rawOffset(idx, row int64, chunk uint16) (offset uint32, ok bool) {
	if run := f.learn(idx, row); run&runFlag != 0 {
		return runOffset(run, idx, row), runChunk(run) == chunk
	}
	at := idx * entry3
	e := f.table[at : at+entry3]
	offset = binary.LittleEndian.Uint32(e)
	place, shape := rawEntry3(offset, row, chunk)
	return offset, binary.LittleEndian.Uint64(e) == place && binary.LittleEndian.Uint64(e[8:])&shapeBits3 == shape
}

// rawEntry3 returns both halves of the entry of a raw record, the second
// without what shapeBits3 leaves out: the reserved byte.
func rawEntry3(offset uint32, row int64, chunk uint16) (place, shape uint64) {
	return uint64(offset) | uint64(row)<<32, uint64(row) | uint64(chunk)<<32 | uint64(codec.Raw)<<48
}

const shapeBits3 = 1<<56 - 1
