package sampler

import (
	"fmt"
	"math"
	"math/bits"

	"loaderx/gopkg/errs"
)

// Mode is the order in which a Sampler visits records. The numbers are those
// of loaderx and of stored runs; they never change.
type Mode uint8

// The modes.
const (
	// Sequential slides a window over the records and wraps at the end.
	Sequential Mode = 0
	// IID draws uniformly with replacement.
	IID Mode = 1
	// Cyclic visits the records in a new order in every cycle, without replacement.
	Cyclic Mode = 2
)

// String returns the mode's name.
func (m Mode) String() string {
	switch m {
	case Sequential:
		return "sequential"
	case IID:
		return "iid"
	case Cyclic:
		return "cyclic"
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

// MaxLength is the largest number of records, and the largest batch.
const MaxLength = math.MaxInt64

// Params names an index sequence.
type Params struct {
	Length uint64 // number of records, 1..MaxLength
	Batch  uint64 // indices a step, 1..MaxLength
	Mode   Mode
	Seed   uint64 // any value; not used by Sequential
}

// PerStep returns how many indices every step has: Batch, or in Cyclic mode
// Length where that is less. It reports ErrArgument for impossible parameters.
func (p Params) PerStep() (int, error) {
	if p.Length == 0 || p.Length > MaxLength {
		return 0, fmt.Errorf("sampler: length %d, allowed 1..%d: %w", p.Length, uint64(MaxLength), errs.ErrArgument)
	}
	if p.Batch == 0 || p.Batch > MaxLength {
		return 0, fmt.Errorf("sampler: batch %d, allowed 1..%d: %w", p.Batch, uint64(MaxLength), errs.ErrArgument)
	}
	n := p.Batch
	switch p.Mode {
	case Sequential, IID:
	case Cyclic:
		n = min(p.Batch, p.Length)
	default:
		return 0, fmt.Errorf("sampler: mode %d, allowed 0 (sequential), 1 (iid), 2 (cyclic): %w", uint8(p.Mode), errs.ErrArgument)
	}
	if n > math.MaxInt {
		return 0, fmt.Errorf("sampler: %d indices a step, this machine allows %d: %w", n, math.MaxInt, errs.ErrArgument)
	}
	return int(n), nil
}

// Fill writes the indices of the given number of consecutive steps, beginning
// with step, densely to out and returns how many there are in each. Indices
// lie in 0..Length-1. An out that is too small gives ErrBuffer and a run past
// step 2^64-1 ErrArgument, with nothing written; the rest of a longer out
// stays as it is. Safe for concurrent use with distinct out.
func Fill(p Params, step uint64, steps int, out []int64) (perStep int, err error) {
	perStep, err = p.PerStep()
	if err != nil {
		return 0, err
	}
	if steps < 0 {
		return 0, fmt.Errorf("sampler: %d steps, want at least 0: %w", steps, errs.ErrArgument)
	}
	if steps == 0 {
		return perStep, nil
	}
	if uint64(steps-1) > math.MaxUint64-step {
		return 0, fmt.Errorf("sampler: %d steps from step %d, the last allowed step is %d: %w", steps, step, uint64(math.MaxUint64), errs.ErrArgument)
	}
	over, total := bits.Mul64(uint64(steps), uint64(perStep))
	if over != 0 || total > uint64(len(out)) {
		return 0, fmt.Errorf("sampler: room for %d indices, want %d steps of %d: %w", len(out), steps, perStep, errs.ErrBuffer)
	}
	out = out[:total]
	hi, lo := bits.Mul64(step, p.Batch) // number of the first draw
	switch p.Mode {
	case Sequential:
		fillSequential(p.Length, bits.Rem64(hi, lo, p.Length), out)
	case IID:
		fillIID(p, hi, lo, out)
	case Cyclic:
		fillCyclic(p, uint64(perStep), step, out)
	}
	return perStep, nil
}

// fillSequential writes pos, pos+1, ... modulo length; pos < length.
func fillSequential(length, pos uint64, out []int64) {
	head := out[:min(length, uint64(len(out)))] // at most once around
	n := min(length-pos, uint64(len(head)))
	count(head[:n], int64(pos))
	count(head[n:], 0)
	for done := len(head); done < len(out); { // whole rounds repeat
		done += copy(out[done:], out[:done])
	}
}

// count writes from, from+1, ...
func count(out []int64, from int64) {
	for len(out) >= 4 {
		out[0], out[1], out[2], out[3] = from, from+1, from+2, from+3
		from += 4
		out = out[4:]
	}
	for i := range out {
		out[i] = from + int64(i)
	}
}
