package rowtable

import (
	"context"
	"fmt"
	"math"
	"time"

	"loaderx/gopkg/bag"
	"loaderx/gopkg/errs"
	"loaderx/gopkg/quant"
)

// BagRequest asks for the reductions of bags of rows. All memory is the
// caller's, who keeps it in place during the call.
type BagRequest struct {
	// IDs are the rows of all bags, one bag behind the other. Unsigned says that they
	// were unsigned numbers, which matters to messages.
	IDs      []int64
	Unsigned bool
	// Offsets are the positions in IDs at which the bags begin: from 0 on,
	// never falling. With IncludeLast there is one more, which is len(IDs).
	Offsets     []int64
	IncludeLast bool
	// Out takes a result for each bag: Dim numbers of the rows' type, float32 ones
	// for quantised kinds.
	Out []byte
	// Kind and Dim say what a row consists of; Kind is the recorded one, if the table
	// records one.
	Kind quant.Kind
	Dim  int
	// Mode and Accumulate are those of package bag, which defines the arithmetic.
	Mode       bag.Mode
	Accumulate bag.Accumulate
	// Weights has a factor for each id, for Sum only; nil stands for none. Those of Float64
	// rows are in Weights64 instead.
	Weights   []float32
	Weights64 []float64
	// HasPadding leaves the id Padding out of all bags.
	HasPadding bool
	Padding    int64
}

// bags returns how many there are.
func (r *BagRequest) bags() int {
	if r.IncludeLast {
		return len(r.Offsets) - 1
	}
	return len(r.Offsets)
}

// EmbeddingBag reduces bags of rows into r.Out, until ctx ends it; nil is no
// context. Rows of a raw table are read where they lie in the mapping; those
// of another one are decoded first, a chunk of ids at a time, each row once.
// Results do not depend on that, nor on the number of goroutines.
//
// Everything is checked before anything is written: errs.ErrIndex for an id
// outside the table, errs.ErrBuffer for an Out of another size, errs.ErrType for
// another kind than the recorded one, errs.ErrArgument for offsets that do not
// cover the ids in order and for anything else that can't be. After another
// error Out's content is undefined.
func (t *Table) EmbeddingBag(ctx context.Context, r *BagRequest) error {
	_, err := t.embeddingBag(ctx, r, 0, 0, math.MaxInt64)
	return err
}

// TooLong is what EmbeddingBagPart returns for bags that EmbeddingBag should
// reduce.
const TooLong = -1

// longBag is how many lookups a bag may have for EmbeddingBagPart.
const longBag = 1 << 14

// EmbeddingBagPart is EmbeddingBag without a context, which stops after about
// budget, unless that is 0 or less, if the table is raw. It begins at position
// from of the work and returns the one to go on from, until that is len(r.IDs)+1. Should
// a bag be so long that it takes much longer than a budget to read it from a
// disk, nothing is done and TooLong returned.
func (t *Table) EmbeddingBagPart(r *BagRequest, from int, budget time.Duration) (next int, err error) {
	return t.embeddingBag(context.Background(), r, from, budget, longBag)
}

func (t *Table) embeddingBag(ctx context.Context, r *BagRequest, from int, budget time.Duration, longest int64) (next int, err error) {
	if err := t.enter("embedding bag"); err != nil {
		return from, err
	}
	defer t.life.Leave()
	w := reductions.Get().(*reduction)
	defer w.release()
	if from < 0 || from > len(r.IDs) {
		return from, fmt.Errorf("embedding bag: position %d of %d: %w", from, len(r.IDs)+1, errs.ErrArgument)
	}
	most, err := w.prepare(t, r)
	if err != nil {
		return from, fmt.Errorf("embedding bag: %w", err)
	}
	q := t.newQuery(ctx, r.IDs, r.Unsigned)
	defer q.release()
	w.q = q
	if from == 0 {
		err = w.checkIDs()
	}
	if err != nil {
		return from, fmt.Errorf("embedding bag: %w", err)
	}
	if most > longest {
		return TooLong, nil
	}
	if t.h.raw() {
		next, err = w.inPlace(from, budget)
		err = t.explain(err)
	} else {
		next, err = len(r.IDs)+1, w.byChunks()
	}
	t.counts.add(&q.counts, min(next, len(r.IDs))-from, from > 0)
	if err != nil {
		return from, fmt.Errorf("embedding bag: %w", err)
	}
	return next, nil
}

// prepare checks all of a request but its ids, and returns the number of
// lookups in its longest bag.
func (w *reduction) prepare(t *Table, r *BagRequest) (most int64, err error) {
	n := int64(len(r.IDs))
	width, err := r.Kind.RowBytes(r.Dim)
	if err == nil {
		err = t.CheckKind(r.Kind)
	}
	if err != nil {
		return 0, err
	}
	if int64(width) != t.h.rowBytes {
		return 0, fmt.Errorf("%d columns of %s are %d bytes, and rows have %d: table %s: %w",
			r.Dim, r.Kind, width, t.h.rowBytes, t.path, errs.ErrArgument)
	}
	if most, err = w.bind(r); err != nil {
		return 0, err
	}
	want32, want64 := n, int64(0)
	if r.Kind == quant.Float64 {
		want32, want64 = 0, n
	}
	weighted := r.Weights != nil || r.Weights64 != nil
	switch {
	case weighted && (int64(len(r.Weights)) != want32 || int64(len(r.Weights64)) != want64):
		return 0, fmt.Errorf("%d float32 and %d float64 weights for %d ids of %s rows, want %d and %d: %w",
			len(r.Weights), len(r.Weights64), n, r.Kind, want32, want64, errs.ErrArgument)
	case r.HasPadding && (r.Padding < 0 || r.Padding >= t.h.rows):
		return 0, fmt.Errorf("padding index %d, and there are %d rows: table %s: %w", r.Padding, t.h.rows, t.path, errs.ErrArgument)
	}
	w.r, err = t.reducer(bag.Spec{
		Kind: r.Kind, Dim: r.Dim, Mode: r.Mode, Accumulate: r.Accumulate, Weighted: weighted, PaddingIndex: r.HasPadding,
	})
	if err != nil {
		return 0, err
	}
	if bags := int64(r.bags()); bags > math.MaxInt64/int64(w.r.OutBytes()) || bags*int64(w.r.OutBytes()) != int64(len(r.Out)) {
		return 0, fmt.Errorf("results of %d bytes for %d bags of %d: %w", len(r.Out), bags, w.r.OutBytes(), errs.ErrBuffer)
	}
	w.req = r
	return most, nil
}

// bind copies the offsets, so that nobody changes them any more, with the end
// of the last bag, and checks them.
func (w *reduction) bind(r *BagRequest) (most int64, err error) {
	n := int64(len(r.IDs))
	w.bounds = append(w.bounds[:0], r.Offsets...)
	switch {
	case r.IncludeLast && len(w.bounds) == 0:
		return 0, fmt.Errorf("no offsets, want at least the last one: %w", errs.ErrArgument)
	case len(w.bounds) == 0 && n > 0:
		return 0, fmt.Errorf("no offsets for %d ids: %w", n, errs.ErrArgument)
	case len(w.bounds) == 0:
		return 0, nil
	case w.bounds[0] != 0:
		return 0, fmt.Errorf("the first offset is %d, want 0: %w", w.bounds[0], errs.ErrArgument)
	}
	if last := w.bounds[len(w.bounds)-1]; r.IncludeLast && last != n {
		return 0, fmt.Errorf("the last offset is %d, want the number of ids, %d: %w", last, n, errs.ErrArgument)
	} else if !r.IncludeLast && last > n {
		return 0, fmt.Errorf("the last offset is %d of %d ids: %w", last, n, errs.ErrArgument)
	}
	if !r.IncludeLast {
		w.bounds = append(w.bounds, n)
	}
	var falls int64
	at := int64(0)
	for _, bound := range w.bounds {
		size := bound - at
		falls |= size | bound // with no bound below 0 sizes can't overflow
		most = max(most, size)
		at = bound
	}
	if falls < 0 {
		for i := range w.bounds[1:] {
			if w.bounds[i+1] < w.bounds[i] {
				return 0, fmt.Errorf("offset %d at position %d follows %d: offsets must not fall: %w",
					w.bounds[i+1], i+1, w.bounds[i], errs.ErrArgument)
			}
		}
	}
	return most, nil
}

// reducer returns one for a spec; the last one is kept, which as a rule is the
// next one as well.
func (t *Table) reducer(s bag.Spec) (*bag.Reducer, error) {
	if r := t.lastReducer.Load(); r != nil && r.Spec() == s {
		return r, nil
	}
	r, err := bag.New(s)
	if err == nil {
		t.lastReducer.Store(r)
	}
	return r, err
}
