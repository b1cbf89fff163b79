package sampler

import (
	"math/bits"
)

const rounds = 4

// permutation is the keyed bijection of 0..length-1 of one cycle.
type permutation struct {
	length uint64
	key    uint64
	half   uint   // bits in each half of the Feistel network, 0..32
	mask   uint64 // 2^half - 1
	keys   [rounds]uint64
}

// halfBits returns half the smallest even number of bits that hold length-1.
func halfBits(length uint64) uint {
	return uint(bits.Len64(length-1)+1) / 2
}

// newPermutation returns the permutation of the given cycle.
func newPermutation(p Params, cycle uint64) permutation {
	half := halfBits(p.Length)
	q := permutation{length: p.Length, key: mix(p.Seed, cycle, 0), half: half, mask: 1<<half - 1}
	for k := range q.keys {
		q.keys[k] = q.key ^ uint64(k)*weyl
	}
	return q
}

// fillCyclic writes the indices of the steps from step on.
func fillCyclic(p Params, perStep, step uint64, out []int64) {
	stepsPerCycle := p.Length / perStep
	cycle, k := step/stepsPerCycle, step%stepsPerCycle
	var spare *tables
	if halfBits(p.Length) <= maxTableHalf {
		spare = tablePool.Get().(*tables)
		defer tablePool.Put(spare)
	}
	for len(out) > 0 {
		n := min((stepsPerCycle-k)*perStep, uint64(len(out)))
		q := newPermutation(p, cycle)
		q.fill(k*perStep, out[:n], spare)
		out = out[n:]
		cycle, k = cycle+1, 0
	}
}

// blockLen is how many values are carried through the network between two
// looks at which of them must walk on.
const blockLen = 256

// fill writes the images of pos, pos+1, ... A spare may be nil.
//
// A value that lands outside 0..length-1 walks on, up to three in four of
// them at random: as a branch that is a misprediction an index. So a whole block
// goes through the network without a branch and the stragglers, listed on the
// way, go again.
func (q *permutation) fill(pos uint64, out []int64, spare *tables) {
	t := spare
	if t != nil && !t.has(q) {
		// To build tables costs 4<<half evaluations of the round function, what
		// they save is 4 for every value on its way through the network.
		if values := uint64(len(out)) << (2 * q.half) / q.length; values >= 1<<q.half {
			t.build(q)
		} else {
			t = nil
		}
	}
	var again [blockLen]uint16
	for len(out) > 0 {
		block := out[:min(blockLen, len(out))]
		out = out[len(block):]
		count(block, int64(pos))
		pos += uint64(len(block))
		var n int
		if t != nil {
			t.pass(q, block)
		} else {
			q.pass(block)
		}
		for i, v := range block {
			again[n&(blockLen-1)] = uint16(i)
			n += outside(v, q.length)
		}
		for n > 0 {
			list := again[:n]
			if t != nil {
				t.passList(q, block, list)
			} else {
				q.passList(block, list)
			}
			n = 0
			for _, i := range list {
				again[n] = i
				n += outside(block[i], q.length)
			}
		}
	}
}

// outside returns 1 for a value past the end and 0 for an index.
func outside(v int64, length uint64) int {
	_, borrow := bits.Sub64(length-1, uint64(v), 0)
	return int(borrow)
}
