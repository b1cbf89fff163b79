package rowtable

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime"
	"sync"
	"sync/atomic"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
)

// IndexFault is the number under which Verify reports what is wrong with the
// map or the index checksum, which belong to no block.
const IndexFault = -1

// verifyBytes is how much is read between two looks at the context.
const verifyBytes = 1 << 20

// Verify reads the whole file and checks everything in it: the index checksum,
// every map entry, every block. It works on all cores, beside other calls, and
// returns how many faults it found. report, unless nil, is told the block of
// each (or IndexFault) and what is wrong with it, in no order but never by two
// goroutines at once; progress, unless nil, how many bytes are done, under the
// same lock. The error is about the call itself: a closed table, a cancelled
// ctx. There is nothing to check in a file of plain rows.
func (t *Table) Verify(ctx context.Context, report func(block int64, err error), progress func(done, total int64)) (bad int64, err error) {
	if err := t.enter("verify"); err != nil {
		return 0, err
	}
	defer t.life.Leave()
	if t.h.plain() { // which has nothing that could be checked
		return 0, nil
	}
	v := &verification{t: t, ctx: ctx, report: report, progress: progress, total: t.h.fileBytes() - headerBytes}
	var wg sync.WaitGroup
	wg.Go(func() { v.run(v.index) })
	for range min(int64(runtime.GOMAXPROCS(0)), t.h.blocks) {
		wg.Go(func() { v.run(v.blocks) })
	}
	wg.Wait()
	if v.err != nil {
		return v.bad, fmt.Errorf("verify table %s: %w", t.path, v.err)
	}
	return v.bad, nil
}

// verification is one running Verify.
type verification struct {
	t        *Table
	ctx      context.Context
	next     atomic.Int64 // block
	report   func(int64, error)
	progress func(int64, int64)
	total    int64

	mu   sync.Mutex // guards the rest
	done int64
	bad  int64
	err  error
}

// run is one goroutine's work. The guard is for panics of report and progress.
func (v *verification) run(work func() error) {
	if err := mem.Guard(work); err != nil {
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.err == nil {
			v.err = err
		}
		v.next.Store(v.t.h.blocks)
	}
}

func (v *verification) found(block int64, err error) {
	if errors.Is(err, errs.ErrFault) {
		err = fmt.Errorf("the file was shortened or can't be read: %w", err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.bad++
	if v.report != nil {
		v.report(block, err)
	}
}

// count notes that bytes are done, and looks at the context.
func (v *verification) count(bytes int64) error {
	v.mu.Lock()
	v.done += bytes
	if v.progress != nil {
		v.progress(v.done, v.total)
	}
	v.mu.Unlock()
	if v.ctx.Err() != nil {
		return fmt.Errorf("%w: %w", errs.ErrCancelled, context.Cause(v.ctx))
	}
	return nil
}

// index checks the map and the index checksum.
func (v *verification) index() error {
	h := &v.t.h
	var sum uint32
	outside := int64(-1)
	each := func(at, n int64, look func(part []byte, first int64)) error {
		for end := at + n; at < end; {
			size := min(end-at, verifyBytes)
			v.t.readAhead(at, size)
			err := mem.Guard(func() error {
				part := v.t.data[at : at+size]
				sum = crc32.Update(sum, castagnoli, part)
				look(part, n-(end-at))
				return nil
			})
			if err != nil {
				return err
			}
			at += size
			if err := v.count(size); err != nil {
				return err
			}
		}
		return nil
	}
	var err error
	if !h.identity() {
		err = each(h.mapAt, h.rows*mapEntryBytes, func(part []byte, first int64) {
			for i := 0; outside < 0 && i < len(part); i += mapEntryBytes {
				if binary.LittleEndian.Uint64(part[i:]) >= uint64(h.stored) {
					outside = (first + int64(i)) / mapEntryBytes
				}
			}
		})
	}
	if err == nil {
		err = each(h.descriptors, h.blocks*descriptorBytes, func([]byte, int64) {})
	}
	switch {
	case errors.Is(err, errs.ErrFault):
		v.found(IndexFault, err)
		return nil
	case err != nil:
		return err
	}
	if outside >= 0 {
		v.found(IndexFault, fmt.Errorf("row %d is said to be a stored row beyond the %d there are: %w", outside, h.stored, errs.ErrCorrupt))
	}
	if sum != h.indexSum {
		v.found(IndexFault, fmt.Errorf("the checksum of map and descriptors does not fit: %w", errs.ErrCorrupt))
	}
	return nil
}

// blocks checks blocks until none are left.
func (v *verification) blocks() error {
	l := new(lane)
	for {
		number := v.next.Add(1) - 1
		if number >= v.t.h.blocks {
			return nil
		}
		var size int64
		err := mem.Guard(func() (err error) {
			size, err = v.t.checkBlock(v.ctx, l, number)
			return err
		})
		if err != nil && v.ctx.Err() == nil {
			v.found(number, err)
		}
		if err := v.count(size); err != nil {
			return err
		}
	}
}

// checkBlock checks one block and returns how many bytes it has in the file.
func (t *Table) checkBlock(ctx context.Context, l *lane, number int64) (int64, error) {
	h := &t.h
	d, err := t.descriptor(number)
	if err != nil {
		return 0, err
	}
	begin := h.payloadAt
	switch {
	case h.raw():
		begin += number * h.blockRows * h.rowBytes
		if d.at != begin {
			return d.bytes, fmt.Errorf("block %d is at %d, raw blocks that lie back to back have it at %d: %w",
				number, d.at, begin, errs.ErrCorrupt)
		}
	case number > 0:
		before, err := t.descriptor(number - 1)
		if err == nil && d.at < before.at+before.bytes {
			return d.bytes, fmt.Errorf("block %d is at %d, in or before the one before it, which ends at %d: %w",
				number, d.at, before.at+before.bytes, errs.ErrCorrupt)
		}
	}
	if d.codec != Raw {
		_, err := t.decode(l, number, &d, d.rows-1)
		return d.bytes, err
	}
	sum := uint32(0)
	for at, end := d.at, d.at+d.bytes; at < end && ctx.Err() == nil; at += verifyBytes {
		t.readAhead(at, min(end-at, verifyBytes))
		sum = crc32.Update(sum, castagnoli, t.data[at:min(end, at+verifyBytes)])
	}
	if h.version >= 3 && sum != d.sum && ctx.Err() == nil {
		return d.bytes, fmt.Errorf("block %d: its checksum does not fit: %w", number, errs.ErrCorrupt)
	}
	return d.bytes, nil
}

// shownFaults is how many faults the error of a verifying Open spells out.
const shownFaults = 10

// sound returns ErrCorrupt, with what is wrong, unless Verify finds nothing.
func (t *Table) sound(ctx context.Context) error {
	var shown []error
	bad, err := t.Verify(ctx, func(_ int64, err error) {
		if len(shown) < shownFaults {
			shown = append(shown, err)
		}
	}, nil)
	if err != nil || bad == 0 {
		return err
	}
	return fmt.Errorf("table %s has %d faults: %w", t.path, bad, errors.Join(shown...))
}

// Checksum returns the SHA-256 of the whole file, as sha256sum prints it.
func (t *Table) Checksum(ctx context.Context, progress func(done, total int64)) (sum [sha256.Size]byte, err error) {
	if err := t.enter("checksum"); err != nil {
		return sum, err
	}
	defer t.life.Leave()
	hash := sha256.New()
	for at, end := int64(0), int64(len(t.data)); at < end; {
		if ctx.Err() != nil {
			return sum, fmt.Errorf("checksum of table %s: %w: %w", t.path, errs.ErrCancelled, context.Cause(ctx))
		}
		next := min(at+verifyBytes, end)
		t.readAhead(at, next-at)
		if err := mem.Guard(func() error { hash.Write(t.data[at:next]); return nil }); err != nil {
			return sum, fmt.Errorf("checksum: table %s was shortened or can't be read: %w", t.path, err)
		}
		if at = next; progress != nil {
			progress(at, end)
		}
	}
	hash.Sum(sum[:0])
	return sum, nil
}
