package zrecord

import (
	"errors"
	"fmt"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
)

// Lengths stores the length of each record of idxs in out, which has the same
// number of elements, and returns their sum. Negative indices count from wrap,
// as in a Request.
func (s *Store) Lengths(idxs []int64, wrap int64, out []uint32) (total int64, err error) {
	if err := s.enter(); err != nil {
		return 0, err
	}
	defer s.life.Leave()
	if len(out) != len(idxs) {
		return 0, fmt.Errorf("lengths: room for %d lengths of %d records: %w", len(out), len(idxs), errs.ErrBuffer)
	}
	length, err := s.records()
	if err == nil {
		wrap, err = wrapOf(wrap, length)
	}
	if err == nil {
		err = checkIndices(idxs, 0, wrap, length, s.path)
	}
	if err != nil {
		return 0, fmt.Errorf("lengths: %w", err)
	}
	err = mem.Guard(func() error {
		var room [maxBlock]int64
		for at := 0; at < len(idxs); at += maxBlock {
			end := min(at+maxBlock, len(idxs))
			if err := resolve(room[:], idxs[at:end], at, wrap, length, s.path); err != nil {
				return err
			}
			if err := s.files.sizes(room[:end-at], out[at:end]); err != nil {
				return err
			}
			for _, n := range out[at:end] {
				total += int64(n)
			}
		}
		return nil
	})
	if errors.Is(err, errs.ErrFault) {
		err = s.explainFault(nil, err)
	}
	if err != nil {
		return 0, fmt.Errorf("lengths: %w", err)
	}
	return total, nil
}
