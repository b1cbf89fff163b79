package zrecord

import (
	"context"
	"fmt"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
)

// How much one block of an append holds. A block has at least one record.
const (
	encodeBlockBytes = 256 << 10
	rawBlockBytes    = 4 << 20
	blockRecords     = 4096
	// inlineBytes is the size up to which an append compresses on the calling
	// goroutine: starting others would take longer.
	inlineBytes = 32 << 10
)

// Append adds records and returns the index of the first; the others follow
// it without gaps. Record i is src[offsets[i]:offsets[i+1]], the last one ends
// at len(src). All of the records are added or none is. A compressed record
// that would not be smaller than the record is stored raw.
//
// src and offsets must not change during the call; they are not used after it.
// Many goroutines may append at once. Cancelling ctx ends the call within
// milliseconds with errs.ErrCancelled.
func (s *Store) Append(ctx context.Context, src []byte, offsets []uint64, tag codec.Tag) (first int64, err error) {
	if err := s.enter(); err != nil {
		return 0, err
	}
	defer s.life.Leave()
	if err := s.writable(); err != nil {
		return 0, fmt.Errorf("append: %w", err)
	}
	if err := checkRecords(src, offsets, s.files.limits()); err != nil {
		return 0, fmt.Errorf("append to %s: %w", s.path, err)
	}
	var feed feeder
	switch tag {
	case codec.Raw:
		feed = &rawFeed{span: span{src: src, offsets: offsets}}
	case codec.Zstd, codec.ZstdDict:
		dict, err := s.dictFor(tag)
		if err != nil {
			return 0, fmt.Errorf("append to %s: %w", s.path, err)
		}
		encode, err := codec.NewEncoder(tag, s.opt.Level, dict)
		if err != nil {
			return 0, fmt.Errorf("append to %s: %w", s.path, err)
		}
		workers := 0
		if len(src) > inlineBytes {
			workers = min(s.opt.Workers, (len(src)+encodeBlockBytes-1)/encodeBlockBytes)
		}
		run := startEncoding(span{src: src, offsets: offsets}, tag, encode, workers)
		defer run.stop()
		feed = run
		if dict != nil {
			// The dictionary may change until the append has its turn.
			return s.placeAll(ctx, feed, int64(len(offsets)), func() error {
				if s.dict.Load() != dict {
					return errs.ErrDict.Errorf("append to %s: a new dictionary was trained meanwhile", s.path)
				}
				return nil
			})
		}
	default:
		return 0, fmt.Errorf("append to %s: %s: %w", s.path, tag, errs.ErrArgument)
	}
	return s.placeAll(ctx, feed, int64(len(offsets)), nil)
}

// feeder delivers the encoded blocks of one append in order.
type feeder interface {
	// next returns the next block, with no records at the end. The block is
	// valid until the following call.
	next(ctx context.Context) (block, error)
}

// placeAll waits for its turn and places all blocks, or none.
func (s *Store) placeAll(ctx context.Context, feed feeder, n int64, check func() error) (first int64, err error) {
	if err := s.lockAppend(ctx); err != nil {
		return 0, err
	}
	defer s.unlockAppend()
	if err := s.writable(); err != nil {
		return 0, fmt.Errorf("append: %w", err)
	}
	if check != nil {
		if err := check(); err != nil {
			return 0, err
		}
	}
	if err := s.writer.begin(n); err != nil {
		return 0, err
	}
	for {
		b, err := feed.next(ctx)
		if err == nil && len(b.records) > 0 {
			err = s.writer.place(b)
		}
		if err != nil {
			s.writer.rollback()
			return 0, fmt.Errorf("append to %s: %w", s.path, err)
		}
		if len(b.records) == 0 {
			break
		}
	}
	first = s.writer.length()
	s.length.Store(s.writer.commit())
	return first, nil
}

func (s *Store) lockAppend(ctx context.Context) error {
	select {
	case <-s.turn:
		return nil
	case <-ctx.Done():
		return cancelled(ctx)
	}
}

func (s *Store) unlockAppend() { s.turn <- struct{}{} }

func cancelled(ctx context.Context) error {
	return fmt.Errorf("%w: %v", errs.ErrCancelled, context.Cause(ctx))
}

// checkRecords validates the caller's cut of src into records.
func checkRecords(src []byte, offsets []uint64, lim limits) error {
	if len(offsets) == 0 {
		if len(src) > 0 {
			return fmt.Errorf("%d bytes and no offsets: %w", len(src), errs.ErrArgument)
		}
		return nil
	}
	if offsets[0] != 0 {
		return fmt.Errorf("offsets start at %d, want 0: %w", offsets[0], errs.ErrArgument)
	}
	total := uint64(len(src))
	for i, start := range offsets {
		end := total
		if i+1 < len(offsets) {
			end = offsets[i+1]
		}
		if end < start || end > total {
			return fmt.Errorf("record %d ranges from byte %d to %d of %d: offsets must not fall and must lie in the buffer: %w",
				i, start, end, total, errs.ErrArgument)
		}
		size := end - start
		if size > uint64(lim.maxRecord) {
			return errs.ErrRecordSize.Errorf("record %d has %d bytes, at most %d are allowed", i, size, lim.maxRecord)
		}
		if size < uint64(lim.minRecord) {
			return errs.ErrRecordSize.Errorf("record %d is empty: %s", i, lim.why)
		}
	}
	return nil
}

// span is the part of an append that is still to be cut into blocks.
type span struct {
	src     []byte
	offsets []uint64
	at      int // the next record
}

func (s *span) end(i int) uint64 {
	if i+1 < len(s.offsets) {
		return s.offsets[i+1]
	}
	return uint64(len(s.src))
}

// cut takes the next block of at most maxBytes (or one record) and returns its
// bytes and appends its records' lengths as stored raw.
func (s *span) cut(maxBytes uint64, records []stored) ([]byte, []stored) {
	if s.at == len(s.offsets) {
		return nil, records
	}
	start := s.offsets[s.at]
	from := s.at
	for s.at < len(s.offsets) && s.at-from < blockRecords {
		if s.at > from && s.end(s.at)-start > maxBytes {
			break
		}
		size := uint32(s.end(s.at) - s.offsets[s.at])
		records = append(records, stored{phys: size, size: size, tag: codec.Raw})
		s.at++
	}
	return s.src[start:s.end(s.at-1)], records
}

// rawFeed cuts an append into blocks of the caller's own memory.
type rawFeed struct {
	span
	records []stored
}

func (f *rawFeed) next(ctx context.Context) (block, error) {
	if ctx.Err() != nil {
		return block{}, cancelled(ctx)
	}
	data, records := f.cut(rawBlockBytes, f.records[:0])
	f.records = records
	return block{data: data, records: records}, nil
}
