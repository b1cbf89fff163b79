//go:build !purego

package bag

import "golang.org/x/sys/cpu"

// wide says that the assembly may run; tests switch it off.
var wide = cpu.X86.HasAVX2 && cpu.X86.HasFMA && cpu.X86.HasBMI2 && cpu.X86.HasF16C

// prefetch is how many lookups before its use a row is fetched, into the second
// cache: many more misses of that can be under way than of the first one, whose
// buffers (24 in Zen 4) limited kernels to two thirds of the speed, and those
// of short rows to half of it.
var prefetch = 24

// wider says that kernels with ZMM registers may run. They need VBMI, which no
// processor has that slows down for ZMM registers.
var wider = wide && cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512VBMI

func familyOf(key kernelKey) []kernel {
	if !wide {
		return nil
	}
	family := kernels[key]
	for !wider && len(family) > 0 && family[0].zmm {
		family = family[1:]
	}
	return family
}

// accumulateTiles is accumulate by assembly.
func (r *Reducer) accumulateTiles(acc []byte, stride int, in *Lookups, lo int, p part, s *scratch) {
	places, bags, going := in.Places[lo:], len(s.ends), 0
	ahead := len(places) - prefetch
	fetch := &places[min(prefetch, len(places)-1)]
	if p.resume {
		going = 1
	}
	var weights *float32
	var weights64 *float64
	switch {
	case !r.spec.Weighted:
	case in.Weights64 != nil:
		weights64 = &in.Weights64[lo]
	case r.double:
		weights64 = &s.weights[0]
	default:
		weights = &in.Weights[lo]
	}
	for i := range r.tiles {
		t := &r.tiles[i]
		at := t.column * r.accSize()
		if p.apart {
			at = t.accAt
		}
		dst, base := &acc[at], &in.Base[t.byteAt]
		if r.double {
			t.double(dst, stride, base, &places[0], fetch, &s.ends[0], bags, ahead, weights64, r.scaleAt-t.byteAt, t.shift, going)
		} else {
			t.single(dst, stride, base, &places[0], fetch, &s.ends[0], bags, ahead, weights, r.scaleAt-t.byteAt, t.shift, going)
		}
	}
}

// finishWide is the part of finish that the assembly does; it returns the
// number of columns done.
func finishWide(how rounding, mean bool, dst, acc []byte, divisor float32) int {
	n := len(acc) / 4 &^ 7
	if !wide || n == 0 {
		return 0
	}
	switch {
	case how == halves && mean:
		meanFloat16(&dst[0], &acc[0], n, divisor)
	case how == halves:
		roundFloat16(&dst[0], &acc[0], n)
	case how == bfloats && mean:
		meanBFloat16(&dst[0], &acc[0], n, divisor)
	case how == bfloats:
		roundBFloat16(&dst[0], &acc[0], n)
	case mean:
		upMeanBFloat16(&dst[0], &acc[0], n, divisor)
	default:
		upBFloat16(&dst[0], &acc[0], n)
	}
	return n
}

// finishDoubleWide returns the number of columns done.
func finishDoubleWide(dst, acc []byte, n int, divisor float64) int {
	n &^= 3
	if !wide || n == 0 {
		return 0
	}
	meanDouble(&dst[0], &acc[0], n, divisor)
	return n
}

// divideWide returns the number of bytes done.
func divideWide(b []byte, divisor float32) int {
	n := len(b) / 4 &^ 7
	if !wide || n == 0 {
		return 0
	}
	divideFloat32(&b[0], n, divisor)
	return 4 * n
}

// outsideFast checks the first ids and returns how many.
func outsideFast(ids []int64, last int64) (done int, outside bool) {
	n := len(ids) &^ 7
	if !wide || n == 0 {
		return 0, false
	}
	return n, outsideWide(&ids[0], n, last) != 0
}

// placesFast finds the places of the first ids and returns how many.
func placesFast(dst, ids []int64, at, width, last int64) (done int, inside bool) {
	n := len(ids) &^ 7
	if !wide || n == 0 || width>>32 != 0 {
		return 0, true
	}
	return n, placesWide(&dst[0], &ids[0], n, at, width, last) == 0
}
