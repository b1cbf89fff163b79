package rowtable

import (
	"context"
	"fmt"
	"math"
	"time"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
	"loaderx/gopkg/quant"
)

// FloatRequest asks for rows as float32 numbers. All memory is the caller's,
// who keeps it in place during the call.
type FloatRequest struct {
	IDs      []int64
	Unsigned bool // as in Gather
	Out      []float32
	Kind     quant.Kind // of the rows
	Dim      int        // columns of a row
}

// GatherFloats decodes rows of any kind into r.Out, one behind the other, until
// ctx ends it; nil is no context. Errors are those of Gather, errs.ErrArgument for
// a kind that the rows can't be of, and errs.ErrType for another than the recorded one.
func (t *Table) GatherFloats(ctx context.Context, r *FloatRequest) error {
	_, err := t.gatherFloats(ctx, r, 0, 0)
	return err
}

// GatherFloatsPart is GatherFloats from position from of the ids on, which
// stops after about budget as Gather does.
func (t *Table) GatherFloatsPart(r *FloatRequest, from int, budget time.Duration) (next int, err error) {
	return t.gatherFloats(context.Background(), r, from, budget)
}

func (t *Table) gatherFloats(ctx context.Context, r *FloatRequest, from int, budget time.Duration) (next int, err error) {
	if err := t.enter("gather"); err != nil {
		return from, err
	}
	defer t.life.Leave()
	n := len(r.IDs)
	width, err := r.Kind.RowBytes(r.Dim)
	if err == nil {
		err = t.CheckKind(r.Kind)
	}
	switch {
	case err != nil:
	case int64(width) != t.h.rowBytes:
		err = fmt.Errorf("%d columns of %s are %d bytes, and rows have %d: table %s: %w",
			r.Dim, r.Kind, width, t.h.rowBytes, t.path, errs.ErrArgument)
	case from < 0 || from > n:
		err = fmt.Errorf("position %d of %d: %w", from, n, errs.ErrArgument)
	case n > math.MaxInt/r.Dim || n*r.Dim != len(r.Out):
		err = fmt.Errorf("%d rows of %d columns into %d numbers: table %s: %w", n, r.Dim, len(r.Out), t.path, errs.ErrBuffer)
	case from == 0:
		err = t.checkAllIDs(ctx, r.IDs, r.Unsigned)
	}
	if err != nil {
		return from, fmt.Errorf("gather: %w", err)
	}
	if from == n {
		return n, nil
	}
	q := t.newQuery(ctx, r.IDs, r.Unsigned)
	if t.h.raw() {
		next, err = q.decodeRaw(r, from, budget)
		err = t.explain(err)
	} else {
		next, err = q.decodeAll(r, from, budget)
	}
	t.counts.add(&q.counts, next-from, from > 0)
	q.release()
	if err != nil {
		return from, fmt.Errorf("gather: %w", err)
	}
	return next, nil
}

// decodeRaw decodes the rows of a raw table straight from its mapping.
func (q *query) decodeRaw(r *FloatRequest, from int, budget time.Duration) (next int, err error) {
	step := func(l *lane, from, to int) error {
		places := l.places[:to-from]
		if err := q.t.rawPlaces(places, q.ids[from:to], from, q.unsigned); err != nil {
			return err
		}
		l.touch(q.t.data, places, q.t.h.rowBytes)
		return r.Kind.DecodeAt(r.Out[from*r.Dim:to*r.Dim], q.t.data, places, r.Dim)
	}
	n, per := len(q.ids), q.portion()
	if n-from <= per {
		return n, mem.Guard(func() error { return step(&q.lane, from, n) })
	}
	q.crew.limit(q.ctx, budget)
	return q.crew.run(&q.lane, step, from, n, per, q.helpers(int64(n-from)*int64(r.Dim)*4, shareCopied))
}

// decodeAll decodes the rows of a table whose blocks may be compressed, chunk
// by chunk.
func (q *query) decodeAll(r *FloatRequest, from int, budget time.Duration) (next int, err error) {
	start := time.Now()
	for next = from; next < len(q.ids); {
		end := min(next+q.locatable(), len(q.ids))
		base, places, err := q.locate(next, end)
		if err != nil {
			return from, err
		}
		step := func(_ *lane, lo, hi int) error {
			return r.Kind.DecodeAt(r.Out[(next+lo)*r.Dim:(next+hi)*r.Dim], base, places[lo:hi], r.Dim)
		}
		n := end - next
		if _, err := q.crew.run(&q.lane, step, 0, n, q.portion(), q.helpers(int64(n)*int64(r.Dim)*4, shareCopied)); err != nil {
			return from, err
		}
		next = end
		if budget > 0 && time.Since(start) >= budget {
			break
		}
	}
	return next, nil
}
