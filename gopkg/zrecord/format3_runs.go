package zrecord

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"loaderx/gopkg/codec"
)

// runs3 remembers which pages of a table are runs: raw records of one length,
// back to back in one chunk. Where a run's records are follows from where it
// begins, so a small record costs one cache miss instead of two, and the table
// of a store that was read for a while is not needed in the cache at all.
//
// A page is verified once, when one of its records is first read and all of
// them are published: published entries stay as they are until a Delete or a
// Compact, which have the store alone and forget.
type runs3 struct {
	mu    sync.Mutex // held while a longer list takes the place of pages
	pages atomic.Pointer[pages3]
}

// pages3 is what is known of a table's first pages.
type pages3 struct {
	row  int64 // length of every record in a run
	runs []atomic.Uint64
}

// A page is one of the file too: the header is as long as an entry, so that
// entry i is in page (i+1)/pageLen.
const (
	pageShift = 8
	pageLen   = 1 << pageShift
)

// What is known of a page: nothing (0), that it is no run, or the place of the
// run. The low half of a run is the offset at which the page's first slot
// would lie, modulo 2^32: of page 0 that slot is the header's.
const (
	runFlag = 1 << 63
	noRun   = 1
)

// at returns what is known of the page of idx.
func (p *pages3) at(idx int64) uint64 {
	if page := uint64(idx+1) >> pageShift; page < uint64(len(p.runs)) {
		return p.runs[page].Load()
	}
	return 0
}

// known returns what is known of a table whose records have row bytes.
func (r *runs3) known(row int64) *pages3 {
	if p := r.pages.Load(); p != nil && p.row == row {
		return p
	}
	return &nothingKnown
}

var nothingKnown pages3

// runHead is the high half of the runs in a chunk.
func runHead(chunk uint16) uint64 { return (runFlag | uint64(chunk)<<32) >> 32 }

// runChunk is the chunk of a run.
func runChunk(run uint64) uint16 { return uint16(run>>32) & (MaxChunks - 1) }

// runOffset is the place of a record of a run in its chunk.
func runOffset(run uint64, idx, row int64) uint32 {
	return uint32(run) + uint32(idx+1)&(pageLen-1)*uint32(row)
}

// runEntry is the entry of a record of a run.
func runEntry(run uint64, idx, row int64) entry3Fields {
	return entry3Fields{
		offset: runOffset(run, idx, row), phys: uint32(row), size: uint32(row), chunk: runChunk(run), tag: codec.Raw,
	}
}

// learn looks at the page of idx, unless that was done before, and returns what
// is known of it.
func (f *files3) learn(idx, row int64) uint64 {
	page := (idx + 1) >> pageShift
	p := f.runs.pages.Load()
	if p == nil || page >= int64(len(p.runs)) {
		length, err := f.records()
		if err != nil || (page+1)*pageLen-1 > length {
			return 0 // some of its records are not published yet
		}
		p = f.runs.grow(length, row)
	}
	if p.row != row {
		return noRun
	}
	if run := p.runs[page].Load(); run != 0 {
		return run
	}
	run := f.runOf(max(page*pageLen-1, 0), (page+1)*pageLen-1, row)
	if run != noRun && page == 0 {
		run = run&^(1<<32-1) | uint64(uint32(run)-uint32(row))
	}
	p.runs[page].Store(run)
	return run
}

// runOf returns the run that the entries from first to end are, with the offset
// of the first, or noRun.
func (f *files3) runOf(first, end, row int64) uint64 {
	entries := f.table[first*entry3 : end*entry3]
	e := parseEntry3(entries)
	if e.chunk >= MaxChunks || int64(e.offset)+(end-first)*row > chunkSize {
		return noRun
	}
	place, shape := rawEntry3(e.offset, row, e.chunk)
	var odd uint64
	for ; len(entries) >= entry3; entries = entries[entry3:] {
		odd |= binary.LittleEndian.Uint64(entries) ^ place
		odd |= (binary.LittleEndian.Uint64(entries[8:]) ^ shape) & shapeBits3
		place += uint64(row)
	}
	if odd != 0 {
		return noRun
	}
	return runHead(e.chunk)<<32 | uint64(e.offset)
}

// grow makes the list long enough for a table of length records.
func (r *runs3) grow(length, row int64) *pages3 {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.pages.Load()
	pages := int((length + 1) >> pageShift) // whole ones
	if old != nil && len(old.runs) >= pages {
		return old
	}
	p := &pages3{row: row, runs: make([]atomic.Uint64, pages)}
	if old != nil {
		p.row = old.row
		for i := range old.runs {
			p.runs[i].Store(old.runs[i].Load())
		}
	}
	r.pages.Store(p)
	return p
}

// forget is called when entries have changed.
func (r *runs3) forget() { r.pages.Store(nil) }
