package rowtable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/osfile"
)

// WriteFrom writes all rows of a source of size bytes, in order if that is not
// nil: place s gets row order[s] of the source. It must be the only call that
// brings rows. Goroutines read the source side by side, and nothing reads it
// any more when the call returns.
func (w *Writer) WriteFrom(ctx context.Context, src io.ReaderAt, size int64, order []int64, progress func(done, total int64)) error {
	return w.do(func() error {
		if progress == nil {
			progress = func(int64, int64) {}
		}
		// The descriptor tables of a known number of rows need not be moved.
		rows := size / w.opt.RowBytes
		switch {
		case w.rows > 0 || w.stored > 0:
			return fmt.Errorf("rows were written before: %w", errs.ErrArgument)
		case size < 0 || size%w.opt.RowBytes != 0:
			return fmt.Errorf("the source has %d bytes, which are not whole rows of %d: %w", size, w.opt.RowBytes, errs.ErrArgument)
		}
		var places []int64
		if order != nil {
			var natural bool
			var err error
			if places, natural, err = inverse(order, rows); err != nil {
				return err
			}
			if natural {
				places, order = nil, nil
			}
		}
		w.rows = rows
		if w.share != nil {
			return w.shareFrom(ctx, src, order, progress)
		}
		w.places = places
		w.base = payloadAt(rows, blocksOf(rows, w.opt.BlockRows), places != nil || w.opt.Version < 3)
		return w.storeFrom(ctx, src, order, progress)
	})
}

// WriteFile writes all rows that lie back to back in a file, like WriteFrom.
func (w *Writer) WriteFile(ctx context.Context, name string, order []int64, progress func(done, total int64)) (err error) {
	f, err := osfile.Open(name, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if target, err := os.Stat(w.draft.Path()); err == nil && os.SameFile(info, target) {
		return fmt.Errorf("pack %s: it is the file with the rows as well, which the table would replace: %w", name, errs.ErrArgument)
	}
	return w.WriteFrom(ctx, f, info.Size(), order, progress)
}

// storeFrom stores the rows of a source, all of them.
func (w *Writer) storeFrom(ctx context.Context, src io.ReaderAt, order []int64, progress func(done, total int64)) error {
	step, total := w.opt.batchRows(), w.rows*w.opt.RowBytes
	for w.stored < w.rows {
		b, err := w.take(ctx)
		if err != nil {
			return err
		}
		first, n := w.stored, min(step, w.rows-w.stored)
		b.src = b.src[:n*w.opt.RowBytes]
		b.fill = func(dst []byte) error {
			if order == nil {
				return w.read(src, dst, first)
			}
			for _, row := range order[first : first+n] {
				if err := w.read(src, dst[:w.opt.RowBytes], row); err != nil {
					return err
				}
				dst = dst[w.opt.RowBytes:]
			}
			return nil
		}
		w.stored += n
		w.send(b)
		progress(first*w.opt.RowBytes, total)
	}
	return w.drain(ctx)
}

// read reads rows of a source from row first on.
func (w *Writer) read(src io.ReaderAt, dst []byte, first int64) error {
	n, err := src.ReadAt(dst, first*w.opt.RowBytes)
	if n == len(dst) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return fmt.Errorf("the source ends in row %d of %d: %w", first+int64(n)/w.opt.RowBytes, w.rows, errs.ErrFault)
	}
	return err
}

// drain writes every batch that is under way.
func (w *Writer) drain(ctx context.Context) error {
	for len(w.queue) > 0 {
		if err := w.retire(ctx); err != nil {
			return err
		}
	}
	return nil
}

// inverse returns the place of each row in an order of rows rows, and whether
// that is each row's own number. An order that does not name every row once is
// ErrArgument.
func inverse(order []int64, rows int64) (places []int64, natural bool, err error) {
	if int64(len(order)) != rows {
		return nil, false, fmt.Errorf("the row order names %d rows, and there are %d: %w", len(order), rows, errs.ErrArgument)
	}
	places = make([]int64, rows)
	natural = true
	for s, row := range order {
		if row < 0 || row >= rows {
			return nil, false, fmt.Errorf("the row order has row %d at place %d: want 0 to %d: %w", row, s, rows-1, errs.ErrArgument)
		}
		if before := places[row]; before != 0 {
			return nil, false, fmt.Errorf("the row order has row %d at places %d and %d: want each row once: %w", row, before-1, s, errs.ErrArgument)
		}
		places[row] = int64(s) + 1
		natural = natural && row == int64(s)
	}
	for row := range places {
		places[row]--
	}
	return places, natural, nil
}
