package zrecord

import (
	"fmt"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/mem"
)

// Stats says what a store holds and what Compact would free.
type Stats struct {
	Records int64
	// LiveBytes is the sum of the records' stored lengths.
	LiveBytes int64
	// ChunkBytes is the bytes of the chunk files up to the end of the store.
	// The last chunk is not counted further, though the file is sparse and
	// longer.
	ChunkBytes int64
	// Reclaimable is ChunkBytes - LiveBytes, and at least 0. It includes up to
	// 1 MiB at the end of each full chunk, which stays unused.
	Reclaimable int64
	// ByCodec counts the records that are stored with each codec, by its tag; a
	// record that would not shrink is raw, and a damaged one may be in none.
	ByCodec [codec.NumTags]int64
	// Lost is how many records the chunk files can't hold: a file is missing,
	// or shorter than it was. What is inside the files is not looked at.
	Lost int64
}

// Stats reads the whole table.
func (s *Store) Stats() (st Stats, err error) {
	if err := s.enter(); err != nil {
		return Stats{}, fmt.Errorf("stats: %w", err)
	}
	defer s.life.Leave()
	if s.writer != nil {
		<-s.turn
		st.Records, st.ChunkBytes = s.writer.length(), s.writer.held()
		s.turn <- struct{}{}
	} else if st.Records, err = s.records(); err != nil {
		return Stats{}, fmt.Errorf("stats: %w", err)
	}
	err = mem.Guard(func() error {
		u, err := s.files.stats(st.Records)
		st.LiveBytes = u.live
		st.Lost = s.files.lost(st.Records)
		if s.writer == nil {
			st.ChunkBytes = u.held
		}
		copy(st.ByCodec[:], u.byByte[:])
		return err
	})
	if err != nil {
		return Stats{}, fmt.Errorf("stats of %s: %w", s.path, err)
	}
	st.Reclaimable = max(st.ChunkBytes-st.LiveBytes, 0)
	return st, nil
}
