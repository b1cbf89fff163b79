package sampler

import "math/bits"

const (
	golden = 0x9E3779B97F4A7C15
	weyl   = 0xD1B54A32D192ED03
	mulA   = 0xBF58476D1CE4E5B9
	mulB   = 0x94D049BB133111EB
)

// maxShort is the largest length whose draws take half a word each: above it
// too many would need another attempt.
const maxShort = 1 << 28

// mix is the mixing function of the package comment.
func mix(seed, v, k uint64) uint64 {
	z := seed ^ v*golden ^ k*weyl
	z = (z ^ z>>30) * mulA
	z = (z ^ z>>27) * mulB
	return z ^ z>>31
}

// word is the generator: the word of counter under a pair of keys, by one
// folded multiplication. The caller passes counter*golden, which it advances
// by addition.
func word(counter, first, second uint64) uint64 {
	z := first + counter
	hi, lo := bits.Mul64(z, z^second)
	return hi ^ lo
}

// fillIID writes the draws from number hi<<64 | lo on.
func fillIID(p Params, hi, lo uint64, out []int64) {
	for len(out) > 0 {
		// The keys depend on hi, so a run is cut where lo wraps.
		n := uint64(len(out))
		if lo != 0 {
			n = min(n, -lo)
		}
		drawRun(p, hi, lo, out[:n])
		out = out[n:]
		lo += n
		hi++ // not used again unless lo wrapped to 0
	}
}

// drawRun writes draws that share hi.
func drawRun(p Params, hi, lo uint64, out []int64) {
	d := drawer{seed: p.Seed, hi: hi, length: p.Length, first: mix(p.Seed, 0, hi+1), second: mix(p.Seed, 1, hi+1)}
	if p.Length > maxShort {
		d.long(lo, out)
		return
	}
	if lo&1 == 1 { // begins inside a pair
		var pair [2]int64
		d.short(lo-1, pair[:])
		out[0] = pair[1]
		out, lo = out[1:], lo+1
	}
	even := len(out) &^ 1
	d.short(lo, out[:even])
	if even < len(out) {
		var pair [2]int64
		d.short(lo+uint64(even), pair[:])
		out[even] = pair[0]
	}
}

// drawer holds what the draws of a run have in common.
type drawer struct {
	seed, hi, length uint64
	first, second    uint64
}

// long makes draws that take a word each.
func (d *drawer) long(lo uint64, out []int64) {
	reject := -d.length % d.length // 2^64 mod length
	for i := 0; ; {
		i += longRun(out[i:], (lo+uint64(i))*golden, d.first, d.second, d.length, reject)
		if i >= len(out) {
			return
		}
		out[i] = int64(d.again(lo + uint64(i)))
		i++
	}
}

// longRun makes draws until one is rejected and returns how many it made. It
// calls nothing, so that all it needs stays in registers.
func longRun(out []int64, counter, first, second, length, reject uint64) int {
	for i := range out {
		index, rest := bits.Mul64(word(counter, first, second), length)
		if rest < reject {
			return i
		}
		out[i] = int64(index)
		counter += golden
	}
	return len(out)
}

// short makes draws that take half a word each; lo and len(out) are even.
func (d *drawer) short(lo uint64, out []int64) {
	reject := uint32((1 << 32) % d.length)
	for i := 0; ; {
		i += shortRun(out[i:], (lo+uint64(i))/2*golden, d.first, d.second, d.length, reject)
		if i >= len(out) {
			return
		}
		w := word((lo+uint64(i))/2*golden, d.first, d.second)
		for _, half := range [2]uint32{uint32(w), uint32(w >> 32)} {
			product := uint64(half) * d.length
			if uint32(product) < reject {
				out[i] = int64(d.again(lo + uint64(i)))
			} else {
				out[i] = int64(product >> 32)
			}
			i++
		}
	}
}

// shortRun makes pairs of draws until one of a pair is rejected and returns
// how many draws it made.
func shortRun(out []int64, counter, first, second, length uint64, reject uint32) int {
	for i := 0; i < len(out)-1; i += 2 {
		w := word(counter, first, second)
		a, b := uint64(uint32(w))*length, w>>32*length
		if uint32(a) < reject || uint32(b) < reject {
			return i
		}
		out[i], out[i+1] = int64(a>>32), int64(b>>32)
		counter += golden
	}
	return len(out)
}

// again makes the attempts after the first of draw number lo. They depend on
// that number alone, so that no draw shifts the ones after it.
func (d *drawer) again(lo uint64) uint64 {
	reject := -d.length % d.length
	for a := uint64(2); ; a += 2 {
		w := word(lo*golden, mix(d.seed, a, d.hi+1), mix(d.seed, a+1, d.hi+1))
		if index, rest := bits.Mul64(w, d.length); rest >= reject {
			return index
		}
	}
}
