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

// checkIndices returns ErrIndex for the first index outside the store.
func checkIndices(idxs []int64, signed bool, length int64, path string) error {
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
		return fmt.Errorf("index %s at position %d: %s: store %s: %w", shown, at, allowed, path, errs.ErrIndex)
	}
	return nil
}

// resolve copies idxs to out with negative ones counted from the end.
func resolve(out, idxs []int64, length int64) {
	out = out[:len(idxs)]
	for i, idx := range idxs {
		out[i] = idx + length&(idx>>63)
	}
}
