package zrecord

import (
	"context"
	"fmt"
	"slices"
)

// Delete removes records and keeps the rest numbered without gaps: in falling
// order of the indices, the record that is last by then moves into the hole.
// Other records keep their places, and the bytes stay in the chunk files until
// Compact. An index given twice counts once. With signed, negative indices
// count from the end.
//
// All of the records are deleted, durably, or none, whatever happens to the
// process or the machine. Records appended before are synced first. Delete
// needs the store alone: while another handle of any process has it open, or
// another call runs on this one, it returns errs.ErrInUse and does nothing.
// Once the change is on its way to the disk, ctx no longer stops it.
func (s *Store) Delete(ctx context.Context, idxs []int64, signed bool) error {
	if err := s.enter(); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	defer s.life.Leave()
	err := s.alone(func() error {
		length := s.length.Load()
		falling := make([]int64, len(idxs))
		wrap := int64(0)
		if signed {
			wrap = length
		}
		if err := resolve(falling, idxs, 0, wrap, length, s.path); err != nil {
			return err
		}
		slices.Sort(falling)
		slices.Reverse(falling)
		falling = slices.Compact(falling)
		if len(falling) == 0 {
			return nil
		}
		if ctx.Err() != nil {
			return cancelled(ctx)
		}
		if err := s.writer.remove(ctx, falling); err != nil {
			return err
		}
		s.length.Store(s.writer.length())
		return nil
	})
	if err != nil {
		return fmt.Errorf("delete from %s: %w", s.path, err)
	}
	return nil
}
