package rowtable

import (
	"fmt"
	"slices"

	"loaderx/gopkg/mem"
)

// maxPrefetches is how many prefetches of a table may run or wait at once.
const maxPrefetches = 16

// gapBytes is up to which distance two parts of the file are read as one.
const gapBytes = 64 << 10

// prefetchIDs is how many ids are handled at once.
const prefetchIDs = 1 << 16

// Prefetch has the system read the rows of ids into its page cache, in the
// background. The ids are checked and copied before it returns; what then goes
// wrong is left to the query that needs the rows. It is a hint: when many are
// waiting already, it does nothing.
func (t *Table) Prefetch(ids []int64, unsigned bool) error {
	if err := t.enter("prefetch"); err != nil {
		return err
	}
	defer t.life.Leave()
	own := slices.Clone(ids)
	if err := t.checkIDs(own, 0, unsigned); err != nil {
		return fmt.Errorf("prefetch: %w", err)
	}
	select {
	case t.prefetches <- struct{}{}:
	default:
		return nil
	}
	if !t.life.Enter() {
		<-t.prefetches
		return nil
	}
	go func() {
		defer t.life.Leave()
		defer func() { <-t.prefetches }()
		for len(own) > 0 && !t.life.Over() {
			part := own[:min(len(own), prefetchIDs)]
			own = own[len(part):]
			if err := mem.Guard(func() error { return t.prefetch(part) }); err != nil {
				return
			}
		}
	}()
	return nil
}

// prefetch overwrites ids.
func (t *Table) prefetch(ids []int64) error {
	h := &t.h
	if err := t.resolve(ids, ids, 0, false); err != nil {
		return err
	}
	slices.Sort(ids)
	var begin, end int64
	add := func(at, n int64) error {
		if at <= end+gapBytes && at >= begin {
			end = max(end, at+n)
			return nil
		}
		from, size := begin, end-begin
		begin, end = at, at+n
		if size == 0 || t.life.Over() {
			return nil
		}
		return t.mapping.WillNeed(from, size)
	}
	last := int64(-1)
	for _, row := range ids {
		if h.raw() {
			if err := add(h.payloadAt+row*h.rowBytes, h.rowBytes); err != nil {
				return err
			}
			continue
		}
		number := t.blockOf(row)
		d, err := t.descriptor(number)
		switch {
		case err != nil:
			return err
		case d.codec == Raw:
			err = add(d.at+(row-number*h.blockRows)*h.rowBytes, h.rowBytes)
		case number != last:
			err = add(d.at, d.bytes)
		}
		if err != nil {
			return err
		}
		last = number
	}
	return t.mapping.WillNeed(begin, end-begin)
}
