package bag

import (
	"fmt"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
)

// Stream reduces bags whose lookups come in pieces, which need not end where bags
// do. It is used by one goroutine at a time.
type Stream struct {
	r       *Reducer
	threads int
	dst     []byte
	offsets []int64
	bags    int   // finished
	next    int64 // the lookup that comes next
	open    *Bag  // bag number bags, which some lookups were added to
	begun   bool
}

// NewStream returns a Stream for the bags between offsets, with results in
// dst, both of which stay in use until Finish. The first lookup added is number offsets[0]; threads
// is that of ReduceAll.
func (r *Reducer) NewStream(threads int, dst []byte, offsets []int64) (*Stream, error) {
	if err := r.checkOffsets(dst, offsets); err != nil {
		return nil, err
	}
	s := &Stream{r: r, threads: threads, dst: dst, offsets: offsets}
	if len(offsets) > 0 {
		s.next = offsets[0]
	}
	return s, nil
}

func (s *Stream) total() int { return max(len(s.offsets)-1, 0) }

// result is the place of a bag's result.
func (s *Stream) result(b int) []byte { return s.dst[b*s.r.outBytes:][:s.r.outBytes] }

// Add adds the next lookups. Errors are those of ReduceAll, and
// errs.ErrArgument for more lookups than the bags have; the Stream is of no
// further use then.
func (s *Stream) Add(in Lookups) error {
	if err := s.r.checkWeights(&in); err != nil {
		return err
	}
	origin := s.next
	end := origin + int64(len(in.Places))
	if total := s.total(); total == 0 && end > origin || total > 0 && end > s.offsets[total] {
		return fmt.Errorf("bag: %d lookups after number %d are more than the bags have: %w", len(in.Places), origin, errs.ErrArgument)
	}
	if s.begun {
		if err := s.extend(&in, origin, min(end, s.offsets[s.bags+1])); err != nil {
			return err
		}
	}
	whole := s.bags
	for !s.begun && whole < s.total() && s.offsets[whole+1] <= end {
		whole++
	}
	if whole > s.bags {
		part := s.dst[s.bags*s.r.outBytes : whole*s.r.outBytes]
		if err := s.r.reduceAll(s.threads, part, &in, s.offsets[s.bags:whole+1], origin); err != nil {
			return err
		}
		s.bags, s.next = whole, s.offsets[whole]
	}
	if s.next < end {
		return s.extend(&in, origin, end)
	}
	return nil
}

// extend adds the lookups up to number end to the open bag, which it opens or
// finishes as need be.
func (s *Stream) extend(in *Lookups, origin, end int64) error {
	if s.open == nil {
		s.open = s.r.NewBag()
	}
	s.begun = true
	err := mem.Guard(func() error { return s.open.Add(in.slice(int(s.next-origin), int(end-origin))) })
	if err != nil {
		return err
	}
	s.next = end
	if end == s.offsets[s.bags+1] {
		s.open.finish(s.result(s.bags))
		s.bags++
		s.begun = false
	}
	return nil
}

// slice returns lookups lo to hi.
func (in *Lookups) slice(lo, hi int) Lookups {
	out := Lookups{Base: in.Base, Places: in.Places[lo:hi]}
	if in.Weights != nil {
		out.Weights = in.Weights[lo:hi]
	}
	if in.Weights64 != nil {
		out.Weights64 = in.Weights64[lo:hi]
	}
	return out
}

// Finish ends the last bags, which may be empty. It returns errs.ErrArgument if
// lookups are missing.
func (s *Stream) Finish() error {
	if err := s.Add(Lookups{}); err != nil {
		return err
	}
	if s.bags < s.total() {
		return fmt.Errorf("bag: %d lookups of %d: %w", s.next-s.offsets[0], s.offsets[s.total()]-s.offsets[0], errs.ErrArgument)
	}
	return nil
}
