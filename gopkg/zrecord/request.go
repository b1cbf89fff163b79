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
	// Signed lets negative indices count from the end.
	Signed bool
	// Dst takes the records.
	Dst []byte
	// Offsets are the places in Dst where the records start; nil means that
	// record i starts at i*RowBytes.
	Offsets []uint64
	// RowBytes is the length that every record must have when Offsets is nil.
	RowBytes int64
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
func checkIndices(idxs []int64, first int, signed bool, length int64, path string) error {
	low := int64(0)
	if signed {
		low = -length
	}
	for at, idx := range idxs {
		if idx >= low && idx < length {
			continue
		}
		shown := fmt.Sprint(idx)
		if !signed {
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

// resolve copies idxs to out, with negative ones counted from the end if they
// may be. It checks them again, since the caller's memory may have changed
// meanwhile.
func resolve(out, idxs []int64, first int, signed bool, length int64, path string) error {
	out = out[:len(idxs)]
	wrap := int64(0)
	if signed {
		wrap = length
	}
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
	if err := checkIndices(idxs, first, signed, length, path); err != nil {
		return err
	}
	return fmt.Errorf("the indices changed during the call: %w", errs.ErrIndex)
}
