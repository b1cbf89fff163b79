package bag

import (
	"fmt"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/quant"
)

// Mode is what becomes of the rows of a bag.
type Mode uint8

// The modes.
const (
	Sum Mode = iota
	Mean
	Max
)

// Accumulate is the arithmetic; the package's comment defines it.
type Accumulate uint8

// The arithmetics.
const (
	// Torch gives the bits of torch's CPU kernels.
	Torch Accumulate = iota
	// F64 sums in float64 and rounds once.
	F64
)

// Spec says what a Reducer does.
type Spec struct {
	Kind       quant.Kind // of the rows
	Dim        int        // columns of a row
	Mode       Mode
	Accumulate Accumulate
	// Weighted multiplies each row by a weight. It goes with Sum only, as in
	// torch.
	Weighted bool
	// PaddingIndex says that the caller was given a padding index, whose
	// lookups it leaves out of places, offsets and weights. Torch takes other
	// kernels then, which round differently.
	PaddingIndex bool
}

// Lookups are rows by their places, in order. The slices belong to the caller
// and are not kept after a call.
type Lookups struct {
	// Base holds the rows, unaligned and perhaps mapped.
	Base []byte
	// Places are the positions in Base at which the rows begin.
	Places []int64
	// Weights has an element for each place if the Reducer is weighted, but
	// for Float64 rows, whose weights are in Weights64. Weights of Float16 and BFloat16
	// rows are numbers of the rows' type in torch.
	Weights   []float32
	Weights64 []float64
}

// Reducer does the reduction of its Spec. It does not change and is safe for
// concurrent use.
type Reducer struct {
	spec     Spec
	rowBytes int64
	outBytes int
	op       operation
	double   bool // accumulators are float64
	direct   bool // accumulators are the result, but for Mean's division
	up       bool // BFloat16 ties go away from zero
	tiles    []tile
	// accBytes is the size of a bag's accumulators where tiles must not
	// overlap.
	accBytes int
	scaleAt  int
}

// operation is what a kernel does with each row.
type operation uint8

const (
	opAdd operation = iota // sum + row
	opFMA                  // fma(row, weight, sum)
	opMul                  // sum + row*weight
	opMax
)

// New returns the Reducer for a Spec. It returns errs.ErrArgument or
// errs.ErrType for what can't be.
func New(s Spec) (*Reducer, error) {
	width, err := s.Kind.RowBytes(s.Dim)
	if err != nil {
		return nil, fmt.Errorf("bag: %w", err)
	}
	switch {
	case s.Mode > Max:
		return nil, fmt.Errorf("bag: mode %d, want %d to %d: %w", s.Mode, Sum, Max, errs.ErrArgument)
	case s.Accumulate > F64:
		return nil, fmt.Errorf("bag: arithmetic %d, want %d or %d: %w", s.Accumulate, Torch, F64, errs.ErrArgument)
	case s.Weighted && s.Mode != Sum:
		return nil, fmt.Errorf("bag: weights go with sum only: %w", errs.ErrArgument)
	}
	r := &Reducer{spec: s, rowBytes: int64(width), outBytes: width, scaleAt: s.Kind.ScaleAt(s.Dim)}
	if s.Kind.Quantised() {
		r.outBytes = 4 * s.Dim
	}
	r.double = s.Kind == quant.Float64 || s.Accumulate == F64 && s.Mode != Max
	r.direct = s.Kind == quant.Float64 || !r.double && (s.Kind == quant.Float32 || s.Kind.Quantised())
	r.up = s.Kind == quant.BFloat16 && !s.PaddingIndex && s.Mode != Max
	switch {
	case s.Mode == Max:
		r.op = opMax
	case s.Weighted && (r.double || s.PaddingIndex && !s.Kind.Quantised()):
		r.op = opMul
	case s.Weighted:
		r.op = opFMA
	}
	r.accBytes = s.Dim * r.accSize()
	r.plan()
	return r, nil
}

// accSize is the size of one accumulator.
func (r *Reducer) accSize() int {
	if r.double {
		return 8
	}
	return 4
}

// Spec returns what the Reducer was made for.
func (r *Reducer) Spec() Spec { return r.spec }

// RowBytes returns the width of a row in Base.
func (r *Reducer) RowBytes() int64 { return r.rowBytes }

// OutBytes returns the width of a bag's result: Dim numbers of the rows' type, or
// float32 for quantised kinds.
func (r *Reducer) OutBytes() int { return r.outBytes }

// checkPart returns errs.ErrBuffer or errs.ErrArgument unless dst, offsets and
// lookups from number first on fit each other. It looks at no place.
func (r *Reducer) checkPart(dst []byte, in *Lookups, offsets []int64, first int64) error {
	if err := r.checkOffsets(dst, offsets); err != nil {
		return err
	}
	if n := len(offsets); n > 0 && (first < 0 || offsets[0] < first || offsets[n-1]-first > int64(len(in.Places))) {
		return fmt.Errorf("bag: offsets %d to %d for %d lookups from number %d on: %w",
			offsets[0], offsets[n-1], len(in.Places), first, errs.ErrArgument)
	}
	return r.checkWeights(in)
}

func (r *Reducer) checkOffsets(dst []byte, offsets []int64) error {
	if len(offsets) > 0 && offsets[0] < 0 {
		return fmt.Errorf("bag: the first offset is %d: %w", offsets[0], errs.ErrArgument)
	}
	bags := max(len(offsets)-1, 0)
	for b := range bags {
		if offsets[b+1] < offsets[b] {
			return fmt.Errorf("bag: offset %d at %d follows %d: %w", offsets[b+1], b+1, offsets[b], errs.ErrArgument)
		}
	}
	if len(dst)/r.outBytes != bags || len(dst)%r.outBytes != 0 {
		return fmt.Errorf("bag: a result of %d bytes for %d bags of %d: %w", len(dst), bags, r.outBytes, errs.ErrBuffer)
	}
	return nil
}

func (r *Reducer) checkWeights(in *Lookups) error {
	want32, want64 := 0, 0
	switch {
	case r.spec.Weighted && r.spec.Kind == quant.Float64:
		want64 = len(in.Places)
	case r.spec.Weighted:
		want32 = len(in.Places)
	}
	if len(in.Weights) != want32 || len(in.Weights64) != want64 {
		return fmt.Errorf("bag: %d float32 and %d float64 weights, want %d and %d: %w",
			len(in.Weights), len(in.Weights64), want32, want64, errs.ErrArgument)
	}
	return nil
}

// checkPlaces returns errs.ErrIndex unless the rows at places[lo:hi] are within
// Base.
func (r *Reducer) checkPlaces(in *Lookups, lo, hi int) error {
	last := int64(len(in.Base)) - r.rowBytes
	if !Outside(in.Places[lo:hi], last) {
		return nil
	}
	for i, p := range in.Places[lo:hi] {
		if p < 0 || p > last {
			return fmt.Errorf("bag: lookup %d at byte %d: rows of %d bytes begin at 0 to %d: %w",
				lo+i, p, r.rowBytes, last, errs.ErrIndex)
		}
	}
	return nil
}
