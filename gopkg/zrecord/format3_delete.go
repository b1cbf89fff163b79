package zrecord

import "slices"

// remove plans all holes first: a record that moves into one may have come
// from the place of an earlier hole.
func (w *writer3) remove(falling []int64) error {
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

// writeEntries3 writes the entries of a journal to the table, neighbours
// together.
func writeEntries3(meta file, j *journal3) error {
	order := j.order()
	var run []byte
	first := int64(0)
	for at, i := range order {
		idx := j.index(int(i))
		if at == 0 || idx != first+int64(len(run)/entry3) {
			if err := writeRun3(meta, first, run); err != nil {
				return err
			}
			first, run = idx, run[:0]
		}
		run = append(run, j.raw(int(i))...)
	}
	return writeRun3(meta, first, run)
}

func writeRun3(meta file, first int64, entries []byte) error {
	if len(entries) == 0 {
		return nil
	}
	_, err := meta.WriteAt(entries, header3+first*entry3)
	return err
}
