package main

import (
	"math"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
	"loaderx/gopkg/quant"
	"loaderx/gopkg/rowtable"
)

// kindOf returns the kind that a caller's number, one of those that files
// record, stands for: the table's own for UnknownKind, and that of Float32 rows
// where it records none.
func kindOf(t *rowtable.Table, number int32) quant.Kind {
	asked := rowtable.RowKind(number)
	if asked == rowtable.UnknownKind {
		if asked = t.Kind(); asked == rowtable.UnknownKind {
			asked = rowtable.KindOf(quant.Float32)
		}
	}
	if kind, known := asked.Kind(); known {
		return kind
	}
	// Rows of another kind are asked for as fp32, and a number that is unknown
	// stays so; CheckKind refuses both.
	return quant.Kind(small(number))
}

// dimOf returns the columns of a table's rows: those that the caller names, or
// as many as a row of the kind has, for 0.
func dimOf(t *rowtable.Table, kind quant.Kind, columns int64) (int, error) {
	if columns < 0 || columns > math.MaxInt32 {
		return 0, errs.ErrArgument.Errorf("%d columns", columns)
	}
	if columns > 0 {
		return int(columns), nil
	}
	if _, err := kind.RowBytes(1); err != nil {
		return 0, err
	}
	if dim := kind.Dim(t.RowBytes()); dim > 0 {
		return dim, nil
	}
	return 0, errs.ErrArgument.Errorf("rows of %d bytes are no %s: table %s", t.RowBytes(), kind, t.Path())
}

// weigh gives a request a weight for each id. Rows of float64 have weights of
// that type, as in torch; the caller's are widened.
func weigh(r *rowtable.BagRequest, at uint64) error {
	weights, err := mem.Slice[float32](at, int64(len(r.IDs)))
	if err != nil {
		return err
	}
	if r.Kind != quant.Float64 {
		r.Weights = weights
		if weights == nil {
			r.Weights = []float32{} // nil would stand for none, which goes with every mode
		}
		return nil
	}
	r.Weights64 = make([]float64, len(weights))
	for i, w := range weights {
		r.Weights64[i] = float64(w)
	}
	return nil
}

// small narrows a number to a byte; one that does not fit becomes 255, which
// every room refuses.
func small(v int32) uint8 {
	if v < 0 || v > 255 {
		return 255
	}
	return uint8(v)
}
