package bag

import (
	"math"

	"loaderx/gopkg/quant"
)

// finish turns the accumulators of a bag of n lookups into its result, or those of
// several bags if the mode is not Mean. With direct accumulators dst is acc, and
// only a mean is left to do.
func (r *Reducer) finish(dst, acc []byte, n int64) {
	divisor := float64(1)
	mean := r.spec.Mode == Mean && n > 0
	if mean {
		divisor = float64(n)
	}
	switch {
	case r.spec.Kind == quant.Float64:
		if mean {
			for i := 0; i < len(dst); i += 8 {
				putDouble(dst[i:], getDouble(dst[i:])/divisor)
			}
		}
	case r.double:
		r.finishDouble(dst, acc, divisor)
	case r.direct:
		if mean {
			divide(dst, float32(divisor))
		}
	case r.spec.Kind == quant.Float16:
		// torch rounds the number of lookups to the rows' type.
		by := quant.HalfToFloat(quant.FloatToHalf(float32(divisor)))
		done := finishWide(halves, mean, dst, acc, by)
		for i := done; i < len(acc)/4; i++ {
			h := quant.FloatToHalf(getSingle(acc[4*i:]))
			if mean {
				h = quant.FloatToHalf(quant.HalfToFloat(h) / by)
			}
			le.PutUint16(dst[2*i:], h)
		}
	case r.spec.Kind == quant.BFloat16:
		by := quant.BFloatToFloat(quant.FloatToBFloat(float32(divisor)))
		how := bfloats
		if r.up {
			how = bfloatsUp
		}
		done := finishWide(how, mean, dst, acc, by)
		for i := done; i < len(acc)/4; i++ {
			x := getSingle(acc[4*i:])
			h := quant.FloatToBFloat(x)
			if r.up && x == x {
				h = uint16((math.Float32bits(x) + 0x8000) >> 16)
			}
			if mean {
				h = quant.FloatToBFloat(quant.BFloatToFloat(h) / by)
			}
			le.PutUint16(dst[2*i:], h)
		}
	}
}

// finishDouble divides and rounds once.
func (r *Reducer) finishDouble(dst, acc []byte, divisor float64) {
	switch r.spec.Kind {
	case quant.Float16:
		for i := range len(acc) / 8 {
			le.PutUint16(dst[2*i:], quant.DoubleToHalf(getDouble(acc[8*i:])/divisor))
		}
	case quant.BFloat16:
		for i := range len(acc) / 8 {
			le.PutUint16(dst[2*i:], quant.DoubleToBFloat(getDouble(acc[8*i:])/divisor))
		}
	default:
		for i := finishDoubleWide(dst, acc, len(acc)/8, divisor); i < len(acc)/8; i++ {
			putSingle(dst[4*i:], float32(getDouble(acc[8*i:])/divisor))
		}
	}
}

// divide divides the float32 in b.
func divide(b []byte, divisor float32) {
	for i := divideWide(b, divisor); i < len(b); i += 4 {
		putSingle(b[i:], getSingle(b[i:])/divisor)
	}
}

// rounding is how float32 sums become a half-precision type.
type rounding uint8

const (
	halves rounding = iota
	bfloats
	bfloatsUp // ties away from zero
)

func getSingle(b []byte) float32    { return math.Float32frombits(le.Uint32(b)) }
func getDouble(b []byte) float64    { return math.Float64frombits(le.Uint64(b)) }
func putSingle(b []byte, x float32) { le.PutUint32(b, math.Float32bits(x)) }
func putDouble(b []byte, x float64) { le.PutUint64(b, math.Float64bits(x)) }
