package zrecord

import (
	"fmt"

	"loaderx/gopkg/errs"
)

// Request says which records a Gather copies where. The caller owns all of
// its memory and keeps it in place during the call.
type Request struct {
	// Idxs are the records, in any order, repeats allowed.
	Idxs []int64
	// Wrap is the number of records that negative indices count from; 0 allows
	// none. Gather puts the length that it found in the place of PresentLength,
	// so that going on counts from the same.
	Wrap int64
	// Dst takes the records.
	Dst []byte
	// Offsets are the places in Dst where the records start; nil means that
	// record i starts at i*RowBytes.
	Offsets []uint64
	// RowBytes is the length that every record must have when Offsets is nil.
	RowBytes int64
}

// PresentLength lets negative indices count from the end that the store has
// when the call begins.
const PresentLength = -1

// wrapOf returns the length that negative indices count from.
func wrapOf(wrap, length int64) (int64, error) {
	switch {
	case wrap == PresentLength:
		return length, nil
	case wrap < 0 || wrap > length:
		return 0, fmt.Errorf("negative indices count from %d, the store has %d records: %w", wrap, length, errs.ErrArgument)
	}
	return wrap, nil
}

// check validates what does not depend on the store.
func (r *Request) check() error {
	n := int64(len(r.Idxs))
	if r.Offsets != nil {
		if len(r.Offsets) != len(r.Idxs) {
			return fmt.Errorf("%d offsets for %d indices: %w", len(r.Offsets), n, errs.ErrArgument)
		}
		return nil
	}
	if r.RowBytes < 0 {
		return fmt.Errorf("row of %d bytes: %w", r.RowBytes, errs.ErrArgument)
	}
	if n > 0 && r.RowBytes > int64(len(r.Dst))/n {
		return fmt.Errorf("%d records of %d bytes into %d bytes: %w", n, r.RowBytes, len(r.Dst), errs.ErrBuffer)
	}
	return nil
}

// checkIndices returns ErrIndex for the first index outside the store; first is
// the position of idxs in the caller's batch.
func checkIndices(idxs []int64, first int, wrap, length int64, path string) error {
	low := -wrap
	for at, idx := range idxs {
		if idx >= low && idx < length {
			continue
		}
		shown := fmt.Sprint(idx)
		if wrap == 0 {
			shown = fmt.Sprint(uint64(idx))
		}
		allowed := fmt.Sprintf("want %d to %d", low, length-1)
		if length == 0 {
			allowed = "the store is empty"
		}
		return fmt.Errorf("index %s at position %d: %s: store %s: %w", shown, first+at, allowed, path, errs.ErrIndex)
	}
	return nil
}

// resolve copies idxs to out, with negative ones counted from wrap. It checks them again, since the caller's memory may have changed
// meanwhile.
func resolve(out, idxs []int64, first int, wrap, length int64, path string) error {
	out = out[:len(idxs)]
	var outside uint64
	for i, idx := range idxs {
		idx += wrap & (idx >> 63)
		out[i] = idx
		// Negative, or not below length: either sets the sign bit.
		outside |= uint64(idx) | uint64(length-1-idx)
	}
	if outside>>63 == 0 {
		return nil
	}
	if err := checkIndices(idxs, first, wrap, length, path); err != nil {
		return err
	}
	return fmt.Errorf("the indices changed during the call: %w", errs.ErrIndex)
}
