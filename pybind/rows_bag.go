package pybind

import (
	"context"
	"sync"

	"loaderx/gopkg/bag"
	"loaderx/gopkg/handle"
	"loaderx/gopkg/mem"
	"loaderx/gopkg/quant"
	"loaderx/gopkg/rowtable"
)

// Fields of the number spec of a query that reads rows as numbers, from the
// lowest byte on: kind (quant), mode and arithmetic (bag), flags, and in the upper
// half the columns of a row.
const (
	specUnsigned    = 1 // ids are uint64
	specIncludeLast = 2 // the last offset is the number of ids
	specPadding     = 4 // there is a padding index
	specHalfWeights = 8 // weights are float16 or bfloat16, as the rows are
)

// RowsBag reduces bags of rows: the ids of each begin at one of the offsets. dst
// takes a row for each bag. weights is 0 for none, else the address of n
// float32, or of what the rows consist of: float64, or with specHalfWeights
// float16 or bfloat16. It works for a limited time and
// returns where to go on: call it again until that is n+1. It returns n+2, having
// done nothing, for bags that RowsBagAll should reduce.
func RowsBag(id int64, ids uint64, n int64, offsets uint64, nOffsets, start int64, dst uint64, dstLen int64, weights uint64, spec, padding int64) (status int64) {
	enter()
	defer guard(&status)
	rows, ref, err := handle.Use[*rowtable.Table](&table, id)
	if err != nil {
		return fail(err)
	}
	defer ref.Release()
	room := weightRooms.Get().(*[]float32)
	defer func() {
		if cap(*room) > keptWeights {
			*room = nil
		}
		weightRooms.Put(room)
	}()
	var request rowtable.BagRequest
	if err := bagArgs(&request, ids, n, offsets, nOffsets, dst, dstLen, weights, spec, padding, room); err != nil {
		return fail(err)
	}
	next, err := rows.EmbeddingBagPart(&request, int(start), callBudget)
	if err == nil && next == rowtable.TooLong {
		return n + 2
	}
	return done(int64(next), err)
}

// RowsBagAll starts, as the reserved handle job, a job that does the same for
// all bags at once.
func RowsBagAll(job, id int64, ids uint64, n int64, offsets uint64, nOffsets int64, dst uint64, dstLen int64, weights uint64, spec, padding int64) (status int64) {
	enter()
	defer guard(&status)
	request := new(rowtable.BagRequest)
	if err := bagArgs(request, ids, n, offsets, nOffsets, dst, dstLen, weights, spec, padding, new([]float32)); err != nil {
		return fail(err)
	}
	return onTable(job, id, func(ctx context.Context, rows *rowtable.Table) (int64, error) {
		return 0, rows.EmbeddingBag(ctx, request)
	})
}

// weightRooms keeps memory for weights that have to be widened.
var weightRooms = sync.Pool{New: func() any { return new([]float32) }}

// keptWeights is the most weights that memory is kept for.
const keptWeights = 1 << 20

// bagArgs reads the arguments of a request; room is for widened weights.
func bagArgs(r *rowtable.BagRequest, ids uint64, n int64, offsets uint64, nOffsets int64, dst uint64, dstLen int64, weights uint64, spec, padding int64, room *[]float32) (err error) {
	flags := spec >> 24
	r.Kind, r.Dim = quant.Kind(spec), int(spec>>32)
	r.Mode, r.Accumulate = bag.Mode(spec>>8), bag.Accumulate(spec>>16)
	r.Unsigned, r.IncludeLast, r.HasPadding = flags&specUnsigned != 0, flags&specIncludeLast != 0, flags&specPadding != 0
	r.Padding = padding
	if r.IDs, err = mem.Slice[int64](ids, n); err != nil {
		return err
	}
	if r.Offsets, err = mem.Slice[int64](offsets, nOffsets); err != nil {
		return err
	}
	if r.Out, err = mem.Slice[byte](dst, dstLen); err != nil || weights == 0 {
		return err
	}
	switch {
	case r.Kind == quant.Float64:
		r.Weights64, err = mem.Slice[float64](weights, n)
	case flags&specHalfWeights != 0:
		var halves []byte
		if halves, err = mem.Slice[byte](weights, 2*n); err == nil && n > 0 {
			if cap(*room) < int(n) {
				*room = make([]float32, n)
			}
			r.Weights = (*room)[:n]
			err = r.Kind.DecodeRows(r.Weights, halves, 1)
		}
	default:
		r.Weights, err = mem.Slice[float32](weights, n)
	}
	return err
}

// RowsFloats decodes the rows of ids[start:n] into dst, dstLen float32 numbers. It
// works for a limited time and returns where to go on: call it again until
// that is n. spec is as for RowsBag.
func RowsFloats(id int64, ids uint64, n, start int64, dst uint64, dstLen, spec int64) (status int64) {
	enter()
	defer guard(&status)
	rows, ref, err := handle.Use[*rowtable.Table](&table, id)
	if err != nil {
		return fail(err)
	}
	defer ref.Release()
	request, err := floatArgs(ids, n, dst, dstLen, spec)
	if err != nil {
		return fail(err)
	}
	next, err := rows.GatherFloatsPart(request, int(start), callBudget)
	return done(int64(next), err)
}

// RowsFloatsAll starts, as the reserved handle job, a job that does the same
// for all ids.
func RowsFloatsAll(job, id int64, ids uint64, n int64, dst uint64, dstLen, spec int64) (status int64) {
	enter()
	defer guard(&status)
	request, err := floatArgs(ids, n, dst, dstLen, spec)
	if err != nil {
		return fail(err)
	}
	return onTable(job, id, func(ctx context.Context, rows *rowtable.Table) (int64, error) {
		return 0, rows.GatherFloats(ctx, request)
	})
}

func floatArgs(ids uint64, n int64, dst uint64, dstLen, spec int64) (*rowtable.FloatRequest, error) {
	in, err := mem.Slice[int64](ids, n)
	if err != nil {
		return nil, err
	}
	out, err := mem.Slice[float32](dst, dstLen)
	return &rowtable.FloatRequest{
		IDs: in, Unsigned: spec>>24&specUnsigned != 0, Out: out, Kind: quant.Kind(spec), Dim: int(spec >> 32),
	}, err
}
