package rowtable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"path/filepath"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/osfile"
)

// sharer finds rows that were stored before. It hashes with a key that nobody
// knows, and compares bytes whenever hashes agree.
type sharer struct {
	hash    func(row []byte) uint64
	slots   []sharedRow // a power of two of them, open addressing
	used    int
	scratch []byte

	// Rows that are given bit by bit are kept in a file without a name, the
	// last ones of them here, since they may be compared with later ones.
	spool    *os.File
	spooled  int64 // bytes in the file
	unstored []byte
}

// sharedRow is a row that is stored: its hash, and one more than its number
// among the rows that were given, or among those that were stored if they are
// in the spool.
type sharedRow struct {
	hash   uint64
	number int64
}

const spoolBytes = 256 << 10

func newSharer() *sharer {
	seed := maphash.MakeSeed()
	return &sharer{
		hash:  func(row []byte) uint64 { return maphash.Bytes(seed, row) },
		slots: make([]sharedRow, 64),
	}
}

func (s *sharer) close(err error) error {
	s.slots = nil
	if s.spool != nil {
		err = errors.Join(err, s.spool.Close())
		s.spool = nil
	}
	return err
}

// find returns the number of the row with the same bytes, or puts number in
// the table and returns -1. same compares with the row of a number.
func (s *sharer) find(row []byte, number int64, same func(number int64) (bool, error)) (int64, error) {
	hash := s.hash(row)
	mask := uint64(len(s.slots) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		slot := &s.slots[i]
		if slot.number == 0 {
			*slot = sharedRow{hash, number + 1}
			break
		}
		if slot.hash != hash {
			continue
		}
		equal, err := same(slot.number - 1)
		if err != nil || equal {
			return slot.number - 1, err
		}
	}
	s.used++
	if s.used > len(s.slots)/4*3 {
		s.grow()
	}
	return -1, nil
}

func (s *sharer) grow() {
	old := s.slots
	s.slots = make([]sharedRow, 2*len(old))
	mask := uint64(len(s.slots) - 1)
	for _, slot := range old {
		if slot.number != 0 {
			i := slot.hash & mask
			for s.slots[i].number != 0 {
				i = (i + 1) & mask
			}
			s.slots[i] = slot
		}
	}
}

// shareRows appends rows, of which those that were there before are not stored
// again.
func (w *Writer) shareRows(ctx context.Context, rows []byte) error {
	s, size := w.share, int(w.opt.RowBytes)
	if s.spool == nil {
		var err error
		if s.spool, err = osfile.Scratch(filepath.Dir(w.draft.Path())); err != nil {
			return err
		}
		s.scratch = make([]byte, size)
	}
	for ; len(rows) > 0; rows = rows[size:] {
		// A copy: the caller's memory may change between two looks at it.
		s.unstored = append(s.unstored, rows[:size]...)
		row := s.unstored[len(s.unstored)-size:]
		place, err := s.find(row, w.stored, func(number int64) (bool, error) {
			kept, err := s.spooledRow(number * w.opt.RowBytes)
			return bytes.Equal(kept, row), err
		})
		if err != nil {
			return err
		}
		if place >= 0 {
			s.unstored = s.unstored[:len(s.unstored)-size]
		} else {
			place = w.stored
			if err := w.store(ctx, row); err != nil {
				return err
			}
			if len(s.unstored) >= spoolBytes {
				if _, err := s.spool.WriteAt(s.unstored, s.spooled); err != nil {
					return err
				}
				s.spooled += int64(len(s.unstored))
				s.unstored = s.unstored[:0]
			}
		}
		w.places = append(w.places, place)
		w.rows++
		if w.rows%4096 == 0 && ctx.Err() != nil {
			return fmt.Errorf("%w: %w", errs.ErrCancelled, ctx.Err())
		}
	}
	return nil
}

// spooledRow returns the bytes of the stored row at an offset, until the next
// call.
func (s *sharer) spooledRow(at int64) ([]byte, error) {
	if at >= s.spooled {
		return s.unstored[at-s.spooled:][:len(s.scratch)], nil
	}
	_, err := s.spool.ReadAt(s.scratch, at)
	return s.scratch, err
}

// shareFrom stores the rows of a source, equal ones once. Rows that may be
// equal are compared in the source.
func (w *Writer) shareFrom(ctx context.Context, src io.ReaderAt, order []int64, progress func(done, total int64)) error {
	s, size := w.share, w.opt.RowBytes
	s.scratch = make([]byte, size)
	w.places = make([]int64, w.rows)
	step := max(1, batchBytes/size)
	buffer := make([]byte, step*size)
	for first := int64(0); first < w.rows; first += step {
		n := min(step, w.rows-first)
		if order == nil {
			if err := w.read(src, buffer[:n*size], first); err != nil {
				return err
			}
		}
		for i := range n {
			number, row := first+i, buffer[i*size:(i+1)*size]
			if order != nil {
				number = order[number]
				if err := w.read(src, row, number); err != nil {
					return err
				}
			}
			equal, err := s.find(row, number, func(other int64) (bool, error) {
				err := w.read(src, s.scratch, other)
				return bytes.Equal(s.scratch, row), err
			})
			if err != nil {
				return err
			}
			if equal >= 0 {
				w.places[number] = w.places[equal]
				continue
			}
			w.places[number] = w.stored
			if err := w.store(ctx, row); err != nil {
				return err
			}
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%w: %w", errs.ErrCancelled, err)
		}
		progress((first+n)*size, w.rows*size)
	}
	return nil
}
