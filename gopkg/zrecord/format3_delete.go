package zrecord

import (
	"context"
	"slices"
)

// remove plans all holes first: a record that moves into one may have come
// from the place of an earlier hole. From the journal on it can't be cancelled.
func (w *writer3) remove(ctx context.Context, falling []int64) error {
	defer w.files.runs.forget()
	before := w.committed
	after := before
	sources := make([]int64, len(falling)) // whose entry a hole takes
	filled := 0                            // holes that the end has moved down to
	for i := range falling {
		after.length--
		sources[i] = after.length
		// The last place may be a hole itself, one that was filled.
		if falling[filled] == after.length {
			sources[i] = sources[filled]
			filled++
		}
	}
	j := &journal3{before: before, after: after}
	for i, hole := range slices.Backward(falling) {
		if hole < after.length {
			e := w.files.table[sources[i]*entry3:]
			j.changes = append(appendIndex3(j.changes, hole), e[:entry3]...)
		}
	}
	if len(j.changes) == 0 {
		// The header alone says it, and is written whole.
		return w.shorten(after)
	}
	if ctx.Err() != nil {
		return cancelled(ctx)
	}
	if err := w.carryOut(j); err != nil {
		return err
	}
	w.adopt(after)
	dropJournal3(w.disk, w.path)
	return nil
}

// shorten publishes another end of the store.
func (w *writer3) shorten(after tail3) error {
	if _, err := w.meta.WriteAt(after.header(), 0); err != nil {
		return halfway{err}
	}
	if err := w.meta.Datasync(); err != nil {
		return halfway{err}
	}
	w.adopt(after)
	return nil
}

func (w *writer3) adopt(t tail3) { w.placed, w.committed, w.published = t, t, t }

// carryOut makes the change of a journal, wholly or not at all.
func (w *writer3) carryOut(j *journal3) error {
	f, err := j.write(w.disk, w.path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := j.redo(w.disk, w.path, w.meta); err != nil {
		return halfway{err}
	}
	if err := clearJournal3(f); err != nil {
		return halfway{err}
	}
	return nil
}

// Neighbours are written together, and so is what lies between near ones, as
// it is: a write costs as much as copying some kilobytes.
const (
	maxGap3 = 256     // entries
	maxRun3 = 1 << 16 // entries
)

// writeEntries3 writes the entries of a journal to the table.
func writeEntries3(meta file, j *journal3) error {
	var run []byte
	for order := j.order(); len(order) > 0; {
		first := j.index(int(order[0]))
		last, n := first, 1
		for ; n < len(order); n++ {
			idx := j.index(int(order[n]))
			if idx-last > maxGap3 || idx-first >= maxRun3 {
				break
			}
			last = idx
		}
		count := last - first + 1
		run = slices.Grow(run[:0], int(count*entry3))[:count*entry3]
		if count > int64(n) {
			if _, err := meta.OS().ReadAt(run, header3+first*entry3); err != nil {
				return err
			}
		}
		for _, i := range order[:n] {
			copy(run[(j.index(int(i))-first)*entry3:], j.raw(int(i)))
		}
		if _, err := meta.WriteAt(run, header3+first*entry3); err != nil {
			return err
		}
		order = order[n:]
	}
	return nil
}
