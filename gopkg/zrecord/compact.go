package zrecord

import (
	"context"
	"fmt"
)

// Compact packs the records without gaps, in the order in which they lie in
// the chunk files, and gives the space behind them back to the file system:
// that of deleted records, and of appends that failed, were cancelled or were
// lost in a crash. Contents and indices stay as they are.
//
// It may end at any instant, by ctx or by a crash, and be run again. progress,
// unless nil, is told from time to time how many of the stored bytes are in
// their final place. Compact needs the store alone, as Delete does.
//
// It uses about 40 MiB and 8 bytes a record of memory, and for a time up to
// 32 MiB of disk space.
func (s *Store) Compact(ctx context.Context, progress func(doneBytes, totalBytes int64)) error {
	if err := s.enter(); err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	defer s.life.Leave()
	if progress == nil {
		progress = func(int64, int64) {}
	}
	if err := s.alone(func() error { return s.writer.compact(ctx, progress) }); err != nil {
		return fmt.Errorf("compact %s: %w", s.path, err)
	}
	return nil
}
