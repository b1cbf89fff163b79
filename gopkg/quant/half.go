package quant

import "math"

const (
	expMask32 = 0x7f800000
	bfloatNaN = 0x7fc0
)

// HalfToFloat widens a float16; that is exact. A signalling NaN becomes quiet.
func HalfToFloat(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp := uint32(h>>10) & 0x1f
	frac := uint32(h & 0x3ff)
	switch exp {
	case 0: // zero or subnormal: frac * 2^-24, exactly
		v := math.Float32bits(float32(frac) * (1.0 / (1 << 24)))
		return math.Float32frombits(sign | v)
	case 0x1f:
		if frac != 0 {
			frac |= 0x200
		}
		return math.Float32frombits(sign | expMask32 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// FloatToHalf rounds to float16, to nearest even; what is too large becomes
// infinity. A NaN keeps its sign and the upper part of its payload.
func FloatToHalf(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b>>16) & 0x8000
	b &= 0x7fffffff
	switch {
	case b > expMask32:
		return sign | 0x7e00 | uint16(b>>13)&0x3ff
	case b >= 0x47800000: // 65536 and above
		return sign | 0x7c00
	case b < 0x38800000: // below 2^-14: subnormal, in units of 2^-24
		// Adding 0.5 leaves float32's last bit worth 2^-24, so the sum rounds
		// where the result has to.
		sum := math.Float32frombits(b) + 0.5
		return sign | uint16(math.Float32bits(sum)-math.Float32bits(0.5))
	}
	b += 0xfff + b>>13&1
	return sign | uint16((b-112<<23)>>13)
}

// BFloatToFloat widens a bfloat16; that is exact.
func BFloatToFloat(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// FloatToBFloat rounds to bfloat16, to nearest even. Any NaN becomes 0x7fc0,
// as torch has it.
func FloatToBFloat(f float32) uint16 {
	b := math.Float32bits(f)
	if f != f {
		return bfloatNaN
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// DoubleToHalf rounds a float64 to float16 once.
func DoubleToHalf(f float64) uint16 { return FloatToHalf(toOdd(f)) }

// DoubleToBFloat rounds a float64 to bfloat16 once.
func DoubleToBFloat(f float64) uint16 { return FloatToBFloat(toOdd(f)) }

// toOdd rounds to float32 so that rounding the result once more, to a format
// at least two bits shorter, gives what rounding f itself would give: an
// inexact result has its last bit set.
func toOdd(f float64) float32 {
	g := float32(f)
	back := float64(g)
	b := math.Float32bits(g)
	switch {
	case f != f || back == f || b&1 == 1:
		return g
	case math.Abs(back) > math.Abs(f):
		return math.Float32frombits(b - 1)
	}
	return math.Float32frombits(b + 1)
}

// FMA returns x*y+z rounded once to float32.
func FMA(x, y, z float32) float32 {
	// The product of two float32 is exact in float64. Its sum with z is
	// rounded to odd there, after which rounding to float32 is right.
	p := float64(x) * float64(y)
	c := float64(z)
	s := p + c
	if b := math.Float64bits(s); b&1 == 0 && b&(1<<63-1) < 0x7ff<<52 {
		// The exact rest of the sum (Knuth).
		t := s - p
		rest := (p - (s - t)) + (c - t)
		switch {
		case rest == 0:
		case (rest > 0) == (s > 0):
			s = math.Float64frombits(b + 1)
		default:
			s = math.Float64frombits(b - 1)
		}
	}
	return float32(s)
}
