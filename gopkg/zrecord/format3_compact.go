package zrecord

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
	"loaderx/gopkg/osfile"
)

const (
	batchBytes3 = 32 << 20
	// batchRecords bounds what a batch of tiny records needs besides.
	batchRecords = 1 << 18
	plainBytes3  = 8 << 20
)

// compact moves records in the order of their addresses, so that each only
// moves down and never onto bytes of one that has not moved yet. FORMAT.md has
// the protocol.
func (w *writer3) compact(ctx context.Context, progress func(done, total int64)) error {
	defer w.files.runs.forget()
	var p *packing3
	if err := mem.Guard(func() (err error) {
		p, err = w.plan(ctx)
		return err
	}); err != nil {
		return err
	}
	defer p.close()
	err := p.run(ctx, progress)
	if half := (halfway{}); !errors.As(err, &half) {
		// Otherwise something may be pending in it.
		dropJournal3(w.disk, w.path)
	}
	if err != nil {
		return err
	}
	end := p.front
	end.length = w.committed.length
	if end != w.committed {
		if err := w.shorten(end); err != nil {
			return err
		}
	}
	if err := w.free(); err != nil {
		return err
	}
	progress(p.total, p.total)
	return nil
}

// packing3 is the state of one compact.
type packing3 struct {
	w           *writer3
	order       []uint64 // records by address, which stands above the index
	next        int      // of order, the first that is not in place
	front       tail3    // behind the records in place
	done, total int64

	source     *os.File // the chunk file read last
	sourceID   int
	buf        []byte
	batchBytes int64 // shrinks when the disk is full
}

func (p *packing3) run(ctx context.Context, progress func(done, total int64)) error {
	for p.next < len(p.order) {
		if ctx.Err() != nil {
			return cancelled(ctx)
		}
		if err := p.w.moveBatch(p); err != nil {
			return err
		}
		progress(p.done, p.total)
	}
	return nil
}

// plan sorts the records and makes sure that they can be moved: a record with
// an impossible entry, or two that overlap, would be destroyed.
func (w *writer3) plan(ctx context.Context) (*packing3, error) {
	f, n := w.files, w.committed.length
	p := &packing3{w: w, batchBytes: w.batchBytes}
	last := int64(0)
	for i := range n {
		if i%planStep == 0 && ctx.Err() != nil {
			return nil, cancelled(ctx)
		}
		e := f.entry(i)
		err := e.check()
		if err == nil && e.end() >= chunkSize {
			err = fmt.Errorf("ends at %d of its chunk: %w", e.end(), errs.ErrCorrupt)
		}
		if err != nil {
			return nil, fmt.Errorf("record %d: %w", i, err)
		}
		last = max(last, e.address())
	}
	if err := p.sort(ctx, n, last); err != nil {
		return nil, err
	}
	var before entry3Fields
	for i := range p.order {
		if i%planStep == 0 && ctx.Err() != nil {
			return nil, cancelled(ctx)
		}
		e := f.entry(p.at(i))
		if i > 0 && e.address() < before.address()+int64(before.phys) && !e.sameBytes(before) {
			return nil, fmt.Errorf("records %d and %d overlap in chunk %d: %w", p.at(i-1), p.at(i), e.chunk, errs.ErrCorrupt)
		}
		if i == 0 || !e.sameBytes(before) {
			p.total += int64(e.phys)
		}
		before = e
	}
	return p, nil
}

const (
	planStep    = 1 << 16 // records between two looks at the context
	indexBits3  = 24      // of an index, which is below MaxRecords
	sortBuckets = 1 << 16
)

// sort orders records by address and then by index. They are dealt out to
// regions of the store first, each of which is sorted by itself: keys are short
// then, and no step takes long.
func (p *packing3) sort(ctx context.Context, n, last int64) error {
	f := p.w.files
	shift := 0
	for last>>shift >= sortBuckets {
		shift++
	}
	ends := make([]int64, last>>shift+1) // of the regions, in order
	for i := range n {
		ends[f.entry(i).address()>>shift]++
	}
	end := int64(0)
	for i, count := range ends {
		ends[i] = end // the start still
		end += count
	}
	p.order = make([]uint64, n)
	for i := range n {
		if i%planStep == 0 && ctx.Err() != nil {
			return cancelled(ctx)
		}
		at := f.entry(i).address()
		region := at >> shift
		p.order[ends[region]] = uint64(at-region<<shift)<<indexBits3 | uint64(i)
		ends[region]++
	}
	start, looked := int64(0), int64(0)
	for _, end := range ends {
		if end-looked >= planStep {
			if looked = end; ctx.Err() != nil {
				return cancelled(ctx)
			}
		}
		slices.Sort(p.order[start:end])
		start = end
	}
	return nil
}

// at returns the i-th record in the order of addresses.
func (p *packing3) at(i int) int64 { return int64(p.order[i] & (1<<indexBits3 - 1)) }

// address orders places in all chunks.
func (e entry3Fields) address() int64 { return int64(e.chunk)*chunkSize + int64(e.offset) }

// sameBytes is true for two entries of one stored record, as an interrupted
// delete of loaderx leaves them.
func (e entry3Fields) sameBytes(o entry3Fields) bool {
	return e.chunk == o.chunk && e.offset == o.offset && e.phys == o.phys
}

// batch3 is a run of records that goes to one place without gaps.
type batch3 struct {
	journal3
	front  tail3 // behind the batch
	next   int
	free   int64 // bytes from the place to the first of the records
	stored int64 // bytes of the records
	moves  []entry3Fields
}

func (b *batch3) change(idx int64, to entry3Fields) {
	b.changes = appendEntry3(appendIndex3(b.changes, idx), to)
}

// moveBatch moves the next records, or skips some that are in place.
func (w *writer3) moveBatch(p *packing3) error {
	b := p.cut()
	if len(b.moves) > 0 {
		if err := p.read(b.moves); err != nil {
			return err
		}
		b.data = p.buf
		b.before, b.after = w.committed, w.committed
		var err error
		if b.free >= b.stored {
			err = w.movePlain(b)
		} else if err = w.carryOut(&b.journal3); noSpace(err) && p.batchBytes > MaxRecordLen {
			// A smaller journal may fit; nothing was done.
			p.batchBytes /= 2
			return nil
		}
		if err != nil {
			return err
		}
	}
	p.next, p.front, p.done = b.next, b.front, p.done+b.stored
	return nil
}

func noSpace(err error) bool {
	half := halfway{}
	return !errors.As(err, &half) && (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT))
}

// cut takes records that go to one chunk and are all in place, or all not.
func (p *packing3) cut() *batch3 {
	b := &batch3{front: p.front, next: p.next}
	limit := p.batchBytes
	var last, lastTo entry3Fields
	for ; b.next < len(p.order); b.next++ {
		idx := p.at(b.next)
		e := p.w.files.entry(idx)
		if b.next > p.next && e.sameBytes(last) {
			if len(b.moves) > 0 {
				lastTo.size, lastTo.tag = e.size, e.tag
				b.change(idx, lastTo)
			}
			continue
		}
		at := b.front
		if at.offset+int64(e.phys) >= chunkSize {
			at.chunk, at.offset = at.chunk+1, 0
		}
		inPlace := e.address() == at.held()
		if b.next == p.next {
			b.chunk, b.offset = at.chunk, at.offset
			b.free = e.address() - at.held()
			if at.chunk != int(e.chunk) {
				b.free = chunkSize
			}
			if b.free >= p.w.plainBytes {
				limit = min(limit, b.free)
			}
		} else if at.chunk != b.chunk || inPlace != (len(b.moves) == 0) || b.stored+int64(e.phys) > limit || b.count() >= batchRecords {
			return b
		}
		last, lastTo = e, e
		lastTo.chunk, lastTo.offset = uint16(at.chunk), uint32(at.offset)
		if !inPlace {
			b.moves = append(b.moves, e)
			b.change(idx, lastTo)
		}
		b.stored += int64(e.phys)
		b.front = at
		b.front.offset += int64(e.phys)
	}
	return b
}

// read fills p.buf with the stored bytes of records, neighbours together.
func (p *packing3) read(moves []entry3Fields) error {
	p.buf = p.buf[:0]
	for i := 0; i < len(moves); {
		first := moves[i]
		size := int64(first.phys)
		for i++; i < len(moves) && moves[i].address() == first.address()+size; i++ {
			size += int64(moves[i].phys)
		}
		if p.source == nil || p.sourceID != int(first.chunk) {
			p.close()
			f, err := osfile.Open(chunkPath(p.w.path, int(first.chunk)), os.O_RDONLY, 0)
			if err != nil {
				return missingChunk(p.w.path, int(first.chunk), err)
			}
			p.source, p.sourceID = f, int(first.chunk)
		}
		at := len(p.buf)
		p.buf = slices.Grow(p.buf, int(size))[:at+int(size)]
		if _, err := p.source.ReadAt(p.buf[at:], int64(first.offset)); err != nil {
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("%s ends before byte %d: %w", p.source.Name(), int64(first.offset)+size, errs.ErrCorrupt)
			}
			return err
		}
	}
	return nil
}

func (p *packing3) close() {
	if p.source != nil {
		p.source.Close()
		p.source = nil
	}
}

// movePlain copies a batch to space that no entry points to. The old bytes
// stay, so an entry is right whether it has been written yet or not.
func (w *writer3) movePlain(b *batch3) error {
	f, err := w.target(b.chunk)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt(b.data, b.offset); err != nil {
		return err
	}
	if err := f.Datasync(); err != nil {
		return err
	}
	if err := writeEntries3(w.meta, &b.journal3); err != nil {
		return halfway{err}
	}
	if err := w.meta.Datasync(); err != nil {
		return halfway{err}
	}
	return nil
}

// target opens the chunk that records move to. A missing one held no record.
func (w *writer3) target(id int) (file, error) {
	if !exists(chunkPath(w.path, id)) {
		return createChunk(w.disk, w.path, id)
	}
	return w.openChunk(id)
}

// free gives the space behind the end of the store back.
func (w *writer3) free() error {
	f, err := w.target(w.committed.chunk)
	if err != nil {
		return err
	}
	if w.chunk != nil {
		w.chunk.Close()
	}
	w.chunk, w.chunkID = f, w.committed.chunk
	if err := w.files.forget(w.committed.chunk + 1); err != nil {
		return err
	}
	entries, err := os.ReadDir(w.path)
	if err != nil {
		return err
	}
	removed := false
	for _, e := range entries {
		id := chunkID(e.Name())
		if id <= w.committed.chunk {
			continue
		}
		if err := w.disk.Remove(chunkPath(w.path, id)); err != nil {
			return err
		}
		removed = true
	}
	if removed {
		if err := w.disk.SyncDir(w.path); err != nil {
			return err
		}
	}
	// Shortening frees the blocks; the file is lengthened again, since it is
	// always that long.
	if err := f.Truncate(w.committed.offset); err != nil {
		return err
	}
	if err := f.Truncate(chunkSize); err != nil {
		return err
	}
	return f.Sync()
}
