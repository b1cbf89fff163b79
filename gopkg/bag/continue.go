package bag

import (
	"fmt"

	"loaderx/gopkg/errs"
)

// Bag is a bag in the making, for one whose rows are not all there at once.
// Its result has the bits of one pass. A Bag is used by one goroutine at a time.
type Bag struct {
	r   *Reducer
	acc []byte
	n   int64
}

// NewBag returns an empty bag.
func (r *Reducer) NewBag() *Bag {
	b := new(Bag)
	b.start(r)
	return b
}

func (b *Bag) start(r *Reducer) {
	b.r, b.n = r, 0
	room(&b.acc, r.accBytes)
}

// Add adds rows to the bag, behind those it has. It returns errors as Reduce
// does; the bag then has an unknown part of the rows.
func (b *Bag) Add(in Lookups) error {
	if err := b.r.checkWeights(&in); err != nil {
		return err
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	for lo := 0; lo < len(in.Places); lo = min(lo+maxRun, len(in.Places)) {
		if err := b.add(&in, lo, min(lo+maxRun, len(in.Places)), s); err != nil {
			return err
		}
	}
	return nil
}

// add adds lookups lo to hi, at most maxRun.
func (b *Bag) add(in *Lookups, lo, hi int, s *scratch) error {
	if err := b.r.checkPlaces(in, lo, hi); err != nil {
		return err
	}
	if lo == hi {
		return nil
	}
	s.ends = append(s.ends[:0], int64(hi-lo))
	b.r.accumulate(b.acc, 0, in, lo, part{apart: true, resume: b.n > 0}, s)
	b.n += int64(hi - lo)
	return nil
}

// Finish writes the result, OutBytes bytes, and empties the bag.
func (b *Bag) Finish(dst []byte) error {
	if len(dst) != b.r.outBytes {
		return fmt.Errorf("bag: a result of %d bytes for a bag of %d: %w", len(dst), b.r.outBytes, errs.ErrBuffer)
	}
	b.finish(dst)
	return nil
}

func (b *Bag) finish(dst []byte) {
	r, n := b.r, b.n
	b.n = 0
	if n == 0 {
		clear(dst)
		return
	}
	acc := b.acc
	if r.direct {
		acc = dst
	}
	// Tiles that overlap hold the same numbers where they do.
	for i := range r.tiles {
		t := &r.tiles[i]
		size := r.accSize()
		copy(acc[t.column*size:], b.acc[t.accAt:][:t.columns*size])
	}
	if r.direct && r.tiles == nil {
		copy(dst, b.acc)
	}
	r.finish(dst, acc[:r.spec.Dim*r.accSize()], n)
}
