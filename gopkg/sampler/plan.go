package sampler

import (
	"fmt"
	"math"
	"math/bits"

	"loaderx/gopkg/errs"
)

// Position counts samples in the global order of a sequence: what all ranks
// together have drawn. It has 128 bits, Hi<<64 | Lo.
//
// In Sequential and IID mode it is step*batch. In Cyclic mode a cycle counts
// Length samples, those that are dropped at its end included, so a position
// names a cycle and a place in it whatever the size of the batches.
type Position struct{ Hi, Lo uint64 }

// Plan is the part of a sequence that one rank of a distributed run draws.
//
// The global batch of every step, World*Batch indices, is cut into World
// disjoint contiguous parts, and rank r takes part r. All parts have Batch
// indices, except in Cyclic mode with fewer records than the global batch:
// then every step is one whole cycle, and parts differ in size by at most one.
type Plan struct {
	Length uint64
	Batch  uint64 // of one rank
	Mode   Mode
	Seed   uint64
	Rank   uint64
	World  uint64

	// Step FromStep begins at position From, and earlier steps don't exist.
	// Both are zero for a run that was never resumed with other sizes.
	FromStep uint64
	From     Position

	// Once makes one pass of it: in the order of the records, from step 0, the
	// last step with what is left. Mode, Seed and From are not used.
	Once bool
}

// params returns the global sequence that the ranks share, and how many
// indices its steps have.
func (p Plan) params() (Params, uint64, error) {
	if p.World == 0 || p.Rank >= p.World {
		return Params{}, 0, fmt.Errorf("sampler: rank %d of %d, allowed 0..world-1: %w", p.Rank, p.World, errs.ErrArgument)
	}
	over, global := bits.Mul64(p.World, p.Batch)
	if over != 0 || global > MaxLength {
		return Params{}, 0, fmt.Errorf("sampler: %d ranks of %d indices, together at most %d: %w", p.World, p.Batch, uint64(MaxLength), errs.ErrArgument)
	}
	g := Params{Length: p.Length, Batch: global, Mode: p.Mode, Seed: p.Seed}
	if p.Once {
		g.Mode = Sequential
	}
	n, err := g.PerStep()
	if err != nil {
		return g, 0, err
	}
	if p.Mode == Cyclic && !p.Once && p.Length < p.World {
		return g, 0, fmt.Errorf("sampler: %d records for %d ranks: some would never have any: %w", p.Length, p.World, errs.ErrArgument)
	}
	if p.Mode == Cyclic && p.From.Hi >= p.Length {
		return g, 0, fmt.Errorf("sampler: position %d*2^64+%d is past the last cycle: %w", p.From.Hi, p.From.Lo, errs.ErrArgument)
	}
	return g, uint64(n), nil
}

// Check returns why the plan is impossible. It says the same to every rank.
func (p Plan) Check() error {
	_, _, err := p.params()
	return err
}

// Steps returns how many steps there are for this rank, from step 0 on. In one
// pass the last step may be too short to have an index for every rank.
func (p Plan) Steps() uint64 {
	if !p.Once {
		return math.MaxUint64
	}
	g, _, err := p.params()
	if err != nil {
		return 0
	}
	whole, rest := p.Length/g.Batch, p.Length%g.Batch
	if begin, end := p.part(rest); begin < end {
		whole++
	}
	return whole
}

// Most returns the largest number of indices that a step of this rank has.
func (p Plan) Most() (int, error) {
	_, n, err := p.params()
	if err != nil {
		return 0, err
	}
	if p.Once {
		n = min(n, p.Length)
	}
	begin, end := p.part(n)
	return int(end - begin), nil
}

// part returns this rank's part of a step of n indices.
func (p Plan) part(n uint64) (begin, end uint64) {
	cut := func(rank uint64) uint64 {
		hi, lo := bits.Mul64(rank, n)
		at, _ := bits.Div64(hi, lo, p.World) // rank <= World, so hi < World
		return at
	}
	return cut(p.Rank), cut(p.Rank + 1)
}

// place is where a step begins: a cycle and a position in it, or in the modes
// without cycles the two halves of a Position.
type place struct{ cycle, at uint64 }

// place returns where a step of perStep indices begins.
func (p Plan) place(g Params, perStep, step uint64) place {
	d := step - p.FromStep
	if g.Mode != Cyclic {
		hi, lo := bits.Mul64(d, g.Batch)
		lo, carry := bits.Add64(lo, p.From.Lo, 0)
		hi, _ = bits.Add64(hi, p.From.Hi, carry)
		return place{hi, lo}
	}
	cycle, at := bits.Div64(p.From.Hi, p.From.Lo, p.Length)
	left := (p.Length - at) / perStep // steps that fit in the cycle begun
	if d < left {
		return place{cycle, at + d*perStep}
	}
	d -= left
	perCycle := p.Length / perStep
	return place{cycle + 1 + d/perCycle, d % perCycle * perStep}
}

// Position returns how many samples were drawn before a step: the From of a
// plan that goes on at that step with other sizes. What is left of a cycle
// counts as drawn once a later cycle has begun, so that smaller batches still
// get it.
func (p Plan) Position(step uint64) (Position, error) {
	g, n, err := p.params()
	if err != nil {
		return Position{}, err
	}
	if step < p.FromStep {
		return Position{}, fmt.Errorf("sampler: step %d, the plan begins at step %d: %w", step, p.FromStep, errs.ErrArgument)
	}
	if step == p.FromStep {
		return p.From, nil
	}
	if g.Mode != Cyclic {
		at := p.place(g, n, step)
		return Position{at.cycle, at.at}, nil
	}
	last := p.place(g, n, step-1)
	hi, lo := bits.Mul64(last.cycle, p.Length)
	lo, carry := bits.Add64(lo, last.at+n, 0)
	return Position{hi + carry, lo}, nil
}

// Fill writes this rank's indices of one step to out and returns how many
// there are, 0 past the last step. It is a pure function of the plan and the
// step; an out that is too small gives ErrBuffer. Safe for concurrent use with
// distinct out.
func (p Plan) Fill(step uint64, out []int64) (int, error) {
	g, perStep, err := p.params()
	if err != nil {
		return 0, err
	}
	if step < p.FromStep {
		return 0, fmt.Errorf("sampler: step %d, the plan begins at step %d: %w", step, p.FromStep, errs.ErrArgument)
	}
	if p.Once {
		return p.fillOnce(g, step, out)
	}
	begin, end := p.part(perStep)
	if uint64(len(out)) < end-begin {
		return 0, fmt.Errorf("sampler: room for %d indices, want %d: %w", len(out), end-begin, errs.ErrBuffer)
	}
	out = out[:end-begin]
	at := p.place(g, perStep, step)
	if g.Mode == Cyclic {
		var spare *tables
		if halfBits(p.Length) <= maxTableHalf {
			spare = tablePool.Get().(*tables)
			defer tablePool.Put(spare)
		}
		q := newPermutation(g, at.cycle)
		q.fill(at.at+begin, out, spare)
		return len(out), nil
	}
	lo, carry := bits.Add64(at.at, begin, 0)
	hi := at.cycle + carry
	if g.Mode == IID {
		fillIID(g, hi, lo, out)
	} else {
		fillSequential(p.Length, bits.Rem64(hi, lo, p.Length), out)
	}
	return len(out), nil
}

// fillOnce is Fill for one pass in order.
func (p Plan) fillOnce(g Params, step uint64, out []int64) (int, error) {
	over, start := bits.Mul64(step, g.Batch)
	if over != 0 || start >= p.Length {
		return 0, nil
	}
	begin, end := p.part(min(g.Batch, p.Length-start))
	if uint64(len(out)) < end-begin {
		return 0, fmt.Errorf("sampler: room for %d indices, want %d: %w", len(out), end-begin, errs.ErrBuffer)
	}
	count(out[:end-begin], int64(start+begin))
	return int(end - begin), nil
}
