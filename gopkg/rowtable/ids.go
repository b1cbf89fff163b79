package rowtable

import (
	"context"
	"encoding/binary"
	"fmt"

	"loaderx/gopkg/bag"
	"loaderx/gopkg/errs"
)

// checkIDs returns ErrIndex for the first id outside the table; first is the
// position of ids in the caller's array. Unsigned ids come as what their bits
// mean in an int64, so those from 2^63 on are outside as well.
func (t *Table) checkIDs(ids []int64, first int, unsigned bool) error {
	last := t.h.rows - 1
	if !bag.Outside(ids, last) {
		return nil
	}
	for i, id := range ids {
		if id >= 0 && id <= last {
			continue
		}
		shown := fmt.Sprint(id)
		if unsigned {
			shown = fmt.Sprint(uint64(id))
		}
		allowed := fmt.Sprintf("want 0 to %d", last)
		if last < 0 {
			allowed = "the table is empty"
		}
		return fmt.Errorf("id %s at position %d: %s: table %s: %w", shown, first+i, allowed, t.path, errs.ErrIndex)
	}
	return t.changed()
}

// checkAllIDs checks the ids of a whole call, until ctx ends it.
func (t *Table) checkAllIDs(ctx context.Context, ids []int64, unsigned bool) error {
	for at := 0; at < len(ids); at += untilEnded {
		if err := stopped(ctx); err != nil {
			return err
		}
		if err := t.checkIDs(ids[at:min(at+untilEnded, len(ids))], at, unsigned); err != nil {
			return err
		}
	}
	return nil
}

// untilEnded is how many ids one goroutine handles before it looks whether the
// query's context ended: some milliseconds at most.
const untilEnded = 1 << 18

// changed is for ids that were fine when they were looked at again.
func (t *Table) changed() error {
	return fmt.Errorf("table %s: the ids changed during the call: %w", t.path, errs.ErrIndex)
}

// resolve writes the stored rows of ids to rows. It checks ids again, since
// the caller's memory may have changed meanwhile.
func (t *Table) resolve(rows, ids []int64, first int, unsigned bool) error {
	rows = rows[:len(ids)]
	if t.h.identity() {
		last := t.h.rows - 1
		var outside uint64
		for i, id := range ids {
			rows[i] = id
			outside |= uint64(id) | uint64(last-id)
		}
		if outside>>63 != 0 {
			return t.rejected(ids, first, unsigned)
		}
		return nil
	}
	entries := t.data[t.h.mapAt : t.h.mapAt+t.h.rows*mapEntryBytes]
	last := t.h.stored - 1
	var outside uint64
	for i, id := range ids {
		if uint64(id) >= uint64(t.h.rows) {
			return t.rejected(ids, first, unsigned)
		}
		row := binary.LittleEndian.Uint64(entries[id*mapEntryBytes:])
		rows[i] = int64(row)
		outside |= row | uint64(last-int64(row))
	}
	if outside>>63 == 0 {
		return nil
	}
	for i, row := range rows {
		if row < 0 || row > last {
			return fmt.Errorf("table %s: row %d is said to be stored row %d of %d: %w",
				t.path, ids[i], uint64(row), t.h.stored, errs.ErrCorrupt)
		}
	}
	return t.changed()
}

// rejected finds the id at fault.
func (t *Table) rejected(ids []int64, first int, unsigned bool) error {
	if err := t.checkIDs(ids, first, unsigned); err != nil {
		return err
	}
	return t.changed()
}

// rawPlaces writes where in the table's data the rows of ids begin. It is for
// raw tables; nothing is copied.
func (t *Table) rawPlaces(places, ids []int64, first int, unsigned bool) error {
	at, rb := t.h.payloadAt, t.h.rowBytes
	if t.h.identity() {
		if !bag.Places(places, ids, at, rb, t.h.rows-1) {
			return t.rejected(ids, first, unsigned)
		}
		return nil
	}
	if err := t.resolve(places, ids, first, unsigned); err != nil {
		return err
	}
	for i, row := range places[:len(ids)] {
		places[i] = at + row*rb
	}
	return nil
}

// blockOf returns the block of a stored row.
func (t *Table) blockOf(row int64) int64 {
	if t.shift >= 0 {
		return row >> t.shift
	}
	return row / t.h.blockRows
}
