package bag

import (
	"encoding/binary"
	"sync"
)

var le = binary.LittleEndian

const (
	// maxRun is how many lookups a kernel does at most: an assembly function
	// can't be interrupted by the garbage collector.
	maxRun = 8192
	// Small bags go to a kernel together, up to so many lookups, and bags
	// whose accumulators are so large.
	groupLookups = 512
	groupBytes   = 32 << 10
)

// scratch is the memory of one goroutine's reduction.
type scratch struct {
	acc     []byte    // accumulators of a group of bags
	ends    []int64   // the ends of its bags, from its first lookup on
	weights []float64 // of its lookups, where float32 ones have to be widened
	row     []float32 // the pure Go code's: a row's columns
	single  []float32 // and its accumulators
	double  []float64
	bag     Bag
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// room returns a slice of n elements, of b if it is large enough.
func room[T any](b *[]T, n int) []T {
	if cap(*b) < n {
		*b = make([]T, n)
	}
	*b = (*b)[:n]
	return *b
}

// Reduce reduces the bags whose lookups are in.Places[offsets[b]:offsets[b+1]],
// so that one slice of offsets may be split among goroutines, each with its part of dst:
// OutBytes bytes for each of the len(offsets)-1 bags. After an error dst's content is
// undefined.
//
// It returns errs.ErrArgument for offsets that decrease or leave the lookups and
// for weights that do not match them, errs.ErrBuffer for a dst of another length, and
// errs.ErrIndex for a place outside Base.
func (r *Reducer) Reduce(dst []byte, in Lookups, offsets []int64) error {
	return r.ReducePart(dst, in, offsets, 0)
}

// ReducePart is Reduce for some of many bags: the first of in's lookups is
// number first, as offsets count them.
func (r *Reducer) ReducePart(dst []byte, in Lookups, offsets []int64, first int64) error {
	if err := r.checkPart(dst, &in, offsets, first); err != nil {
		return err
	}
	return r.reduce(dst, &in, offsets, first)
}

// reduce is Reduce without checks of anything but places; lookups are numbered from
// origin on.
func (r *Reducer) reduce(dst []byte, in *Lookups, offsets []int64, origin int64) error {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	bags := len(offsets) - 1
	most := max(groupBytes/(r.spec.Dim*r.accSize()), 1)
	for b := 0; b < bags; {
		lo := offsets[b]
		if n := offsets[b+1] - lo; n > maxRun {
			if err := r.long(dst[b*r.outBytes:][:r.outBytes], in, int(lo-origin), int(n), s); err != nil {
				return err
			}
			b++
			continue
		}
		s.ends = s.ends[:0]
		e := b
		for e < bags && e-b < most && (e == b || offsets[e+1]-lo <= groupLookups) {
			e++
			s.ends = append(s.ends, offsets[e]-lo)
		}
		if err := r.group(dst[b*r.outBytes:e*r.outBytes], in, int(lo-origin), s); err != nil {
			return err
		}
		b = e
	}
	return nil
}

// long reduces a bag that takes several kernel runs.
func (r *Reducer) long(dst []byte, in *Lookups, lo, n int, s *scratch) error {
	s.bag.start(r)
	for hi := lo + n; lo < hi; lo = min(lo+maxRun, hi) {
		if err := s.bag.add(in, lo, min(lo+maxRun, hi), s); err != nil {
			return err
		}
	}
	s.bag.finish(dst)
	return nil
}

// group reduces the bags with the ends s.ends, the first lookup being lo.
func (r *Reducer) group(dst []byte, in *Lookups, lo int, s *scratch) error {
	if err := r.checkPlaces(in, lo, lo+int(s.ends[len(s.ends)-1])); err != nil {
		return err
	}
	acc, stride := dst, r.spec.Dim*r.accSize()
	if !r.direct {
		acc = room(&s.acc, len(s.ends)*stride)
	}
	r.accumulate(acc, stride, in, lo, part{}, s)
	if r.direct && r.spec.Mode != Mean {
		return nil
	}
	if r.spec.Mode != Mean {
		// Nothing depends on the number of lookups.
		r.finish(dst, acc, 1)
		return nil
	}
	start := int64(0)
	for b, end := range s.ends {
		r.finish(dst[b*r.outBytes:][:r.outBytes], acc[b*stride:][:stride], end-start)
		start = end
	}
	return nil
}

// part says how a kernel run relates to its bags.
type part struct {
	// apart lays the accumulators of each tile behind those of the one
	// before, accBytes in all: tiles that overlap must not go on with each other's.
	apart bool
	// resume goes on with the accumulators of one bag.
	resume bool
}

// accumulate runs the kernels over the bags with the ends s.ends, whose places must
// have been checked.
func (r *Reducer) accumulate(acc []byte, stride int, in *Lookups, lo int, p part, s *scratch) {
	n := int(s.ends[len(s.ends)-1])
	if n == 0 {
		if !p.resume {
			clear(acc)
		}
		return
	}
	if r.spec.Weighted && r.double && in.Weights64 == nil {
		s.weights = s.weights[:0]
		for _, w := range in.Weights[lo : lo+n] {
			s.weights = append(s.weights, float64(w))
		}
	}
	if r.tiles == nil {
		r.accumulateGo(acc, stride, in, lo, p.resume, s)
		return
	}
	r.accumulateTiles(acc, stride, in, lo, p, s)
}
