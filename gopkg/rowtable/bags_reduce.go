package rowtable

import (
	"sort"
	"sync"
	"time"

	"loaderx/gopkg/bag"
	"loaderx/gopkg/mem"
)

const (
	// Goroutines claim the bags that begin within so many lookups.
	leastClaimed = 256
	mostClaimed  = 2048
	// A kernel gets up to so many lookups at once, and bags.
	togetherLookups = 4096
	// Between so many lookups of decoded rows it is looked whether to stop.
	addedLookups = 1 << 18
	// A goroutine checks so many ids at once.
	checkedIDs = 1 << 13
)

// bagLane is a goroutine's scratch memory for bags.
type bagLane struct {
	ids, places, bounds []int64
	weights             []float32
	weights64           []float64
}

// reduction is one running request.
type reduction struct {
	q      *query
	r      *bag.Reducer
	req    *BagRequest
	bounds []int64 // where the bags begin, and the end

	step, checkStep func(*lane, int, int) error

	kept bagLane // of a chunk, without padding
}

var reductions = sync.Pool{New: func() any {
	w := &reduction{}
	w.step, w.checkStep = w.claim, w.check
	return w
}}

func (w *reduction) release() {
	w.q, w.r, w.req = nil, nil, nil
	if cap(w.bounds) > keptBytes/8 {
		w.bounds = nil
	}
	if cap(w.kept.ids) > keptBytes/8 {
		w.kept = bagLane{}
	}
	reductions.Put(w)
}

func (w *reduction) bags() int { return max(len(w.bounds)-1, 0) }

// out returns the memory of the results of bags lo to hi.
func (w *reduction) out(lo, hi int) []byte {
	size := w.r.OutBytes()
	return w.req.Out[lo*size : hi*size]
}

// checkIDs checks all ids. That also wakes those who will help then.
func (w *reduction) checkIDs() error {
	q, n := w.q, len(w.req.IDs)
	if n <= checkedIDs {
		return w.check(&q.lane, 0, n)
	}
	q.crew.limit(q.ctx, 0)
	_, err := q.crew.run(&q.lane, w.checkStep, 0, n, checkedIDs, q.t.threads-1)
	return err
}

func (w *reduction) check(_ *lane, from, to int) error {
	return w.q.t.checkIDs(w.req.IDs[from:to], from, w.req.Unsigned)
}

// inPlace reduces rows of a raw table. Positions of the work are those of ids,
// and one more for empty bags at the end.
func (w *reduction) inPlace(from int, budget time.Duration) (next int, err error) {
	q, n := w.q, len(w.req.IDs)
	if n-from <= leastClaimed {
		err := mem.Guard(func() error { return w.claim(&q.lane, from, n+1) })
		return n + 1, err
	}
	per := min(max(n/(8*q.t.threads), leastClaimed), mostClaimed)
	q.crew.limit(q.ctx, budget)
	bytes := int64(n-from)*q.t.h.rowBytes + int64(len(w.req.Out))
	return q.crew.run(&q.lane, w.step, from, n+1, per, q.helpers(bytes, shareCopied))
}

// firstBag returns the first bag that begins at a lookup or behind it.
func (w *reduction) firstBag(lookup int) int {
	return sort.Search(w.bags(), func(b int) bool { return w.bounds[b] >= int64(lookup) })
}

// claim reduces the bags that begin at lookups from to to.
func (w *reduction) claim(l *lane, from, to int) error {
	lo, hi := w.firstBag(from), w.firstBag(to)
	for lo < hi {
		end := lo + 1
		if w.bounds[end]-w.bounds[lo] > togetherLookups {
			if err := w.long(l, lo); err != nil {
				return err
			}
			lo = end
			continue
		}
		for end < hi && end-lo < togetherLookups && w.bounds[end+1]-w.bounds[lo] <= togetherLookups {
			end++
		}
		if err := w.together(l, lo, end); err != nil {
			return err
		}
		lo = end
	}
	return nil
}

// together reduces the bags from lo to hi, which have few lookups.
func (w *reduction) together(l *lane, lo, hi int) error {
	bounds := w.bounds[lo : hi+1]
	in, err := w.lookUp(l, bounds[0], bounds[hi-lo])
	if err != nil {
		return err
	}
	first := bounds[0]
	if w.req.HasPadding {
		l.bags.bounds = w.leaveOut(l.bags.bounds[:0], bounds)
		bounds, first = l.bags.bounds, 0
	}
	return w.r.ReducePart(w.out(lo, hi), in, bounds, first)
}

// long reduces a bag of many lookups.
func (w *reduction) long(l *lane, b int) error {
	sum := w.r.NewBag()
	for at, end := w.bounds[b], w.bounds[b+1]; at < end; {
		if err := stopped(w.q.ctx); err != nil {
			return err
		}
		to := min(at+togetherLookups, end)
		in, err := w.lookUp(l, at, to)
		if err == nil {
			err = sum.Add(in)
		}
		if err != nil {
			return err
		}
		at = to
	}
	return sum.Finish(w.out(b, b+1))
}

// lookUp finds the rows of lookups from to to, at most togetherLookups, without
// padding.
func (w *reduction) lookUp(l *lane, from, to int64) (in bag.Lookups, err error) {
	s := &l.bags
	if s.places == nil {
		s.places = make([]int64, togetherLookups)
	}
	ids, weights, weights64 := w.keep(s, from, to)
	in = bag.Lookups{Base: w.q.t.data, Places: s.places[:len(ids)], Weights: weights, Weights64: weights64}
	return in, w.q.t.rawPlaces(in.Places, ids, int(from), w.req.Unsigned)
}

// keep returns the ids and weights of lookups from to to without padding: parts
// of the caller's memory, or of the lane's.
func (w *reduction) keep(s *bagLane, from, to int64) (ids []int64, weights []float32, weights64 []float64) {
	r := w.req
	ids = r.IDs[from:to]
	if r.Weights != nil {
		weights = r.Weights[from:to]
	}
	if r.Weights64 != nil {
		weights64 = r.Weights64[from:to]
	}
	if !r.HasPadding {
		return ids, weights, weights64
	}
	s.ids, s.weights, s.weights64 = s.ids[:0], s.weights[:0], s.weights64[:0]
	for i, id := range ids {
		if id == r.Padding {
			continue
		}
		s.ids = append(s.ids, id)
		if weights != nil {
			s.weights = append(s.weights, weights[i])
		}
		if weights64 != nil {
			s.weights64 = append(s.weights64, weights64[i])
		}
	}
	if weights != nil {
		weights = s.weights
	}
	if weights64 != nil {
		weights64 = s.weights64
	}
	return s.ids, weights, weights64
}

// leaveOut appends to dst, which may be the same memory, what becomes of bounds when padding is
// left out and the first one is 0.
func (w *reduction) leaveOut(dst, bounds []int64) []int64 {
	kept, at := int64(0), bounds[0]
	for _, bound := range bounds {
		for _, id := range w.req.IDs[at:bound] {
			if id != w.req.Padding {
				kept++
			}
		}
		at = bound
		dst = append(dst, kept)
	}
	return dst
}

// byChunks reduces rows of a table whose blocks may be compressed.
func (w *reduction) byChunks() error {
	q, n := w.q, len(w.req.IDs)
	if w.req.HasPadding && n > 0 {
		w.bounds = w.leaveOut(w.bounds[:0], w.bounds)
	}
	stream, err := w.r.NewStream(q.t.threads, w.req.Out, w.bounds)
	if err != nil {
		return err
	}
	for from := 0; from < n; {
		to := min(from+q.locatable(), n)
		ids, weights, weights64 := w.keep(&w.kept, int64(from), int64(to))
		from = to
		if len(ids) == 0 {
			continue
		}
		q.ids = ids
		base, places, err := q.locate(0, len(ids))
		if err != nil {
			return err
		}
		in := bag.Lookups{Base: base, Places: places, Weights: weights, Weights64: weights64}
		if err := w.stream(stream, in); err != nil {
			return err
		}
	}
	return stream.Finish()
}

// stream adds lookups to a stream, part by part.
func (w *reduction) stream(s *bag.Stream, in bag.Lookups) error {
	for len(in.Places) > 0 {
		if err := stopped(w.q.ctx); err != nil {
			return err
		}
		part := in
		to := min(addedLookups, len(in.Places))
		part.Places, in.Places = in.Places[:to], in.Places[to:]
		if in.Weights != nil {
			part.Weights, in.Weights = in.Weights[:to], in.Weights[to:]
		}
		if in.Weights64 != nil {
			part.Weights64, in.Weights64 = in.Weights64[:to], in.Weights64[to:]
		}
		if err := s.Add(part); err != nil {
			return err
		}
	}
	return nil
}
