package bag

import (
	"math"

	"loaderx/gopkg/quant"
)

// accumulateGo is accumulate in Go. Conversions around products keep
// compilers of other processors from fusing them with the sum.
func (r *Reducer) accumulateGo(acc []byte, stride int, in *Lookups, lo int, resume bool, s *scratch) {
	at := int64(0)
	for b, end := range s.ends {
		bag := acc[b*stride:][:r.spec.Dim*r.accSize()]
		if r.double {
			r.bagDouble(bag, in, lo+int(at), lo+int(end), lo, resume, s)
		} else {
			r.bagSingle(bag, in, lo+int(at), lo+int(end), resume, s)
		}
		at = end
	}
}

func (r *Reducer) row(in *Lookups, i int) []byte {
	return in.Base[in.Places[i]:][:r.rowBytes]
}

// bagSingle reduces lookups lo to hi with float32 accumulators.
func (r *Reducer) bagSingle(acc []byte, in *Lookups, lo, hi int, resume bool, s *scratch) {
	x, sum := room(&s.row, r.spec.Dim), room(&s.single, r.spec.Dim)
	clear(sum)
	if resume {
		for i := range sum {
			sum[i] = getSingle(acc[4*i:])
		}
	}
	kind := r.spec.Kind
	for at := lo; at < hi; at++ {
		row := r.row(in, at)
		kind.Unpack(x, row, 0)
		var scale, bias float32
		if kind.Quantised() {
			scale, bias = kind.Scale(row, r.spec.Dim)
		}
		switch {
		case r.op == opMax:
			if kind.Quantised() {
				for i := range x {
					x[i] = quant.FMA(scale, x[i], bias)
				}
			}
			if at == lo && !resume {
				copy(sum, x)
			}
			for i, v := range x {
				if v > sum[i] {
					sum[i] = v
				}
			}
		case kind.Quantised():
			if r.op == opFMA {
				scale, bias = scale*in.Weights[at], bias*in.Weights[at]
			}
			if kind != quant.Int8 {
				for i := range sum {
					sum[i] += bias
				}
			}
			for i, code := range x {
				sum[i] = quant.FMA(scale, code, sum[i])
			}
		case r.op == opFMA:
			w := in.Weights[at]
			for i, v := range x {
				sum[i] = quant.FMA(v, w, sum[i])
			}
		case r.op == opMul:
			w := in.Weights[at]
			for i, v := range x {
				sum[i] += float32(v * w)
			}
		default:
			for i, v := range x {
				sum[i] += v
			}
		}
	}
	for i, v := range sum {
		putSingle(acc[4*i:], v)
	}
}

// bagDouble reduces lookups lo to hi with float64 accumulators. Widened
// weights begin with that of lookup first.
func (r *Reducer) bagDouble(acc []byte, in *Lookups, lo, hi, first int, resume bool, s *scratch) {
	x, sum := room(&s.row, r.spec.Dim), room(&s.double, r.spec.Dim)
	clear(sum)
	if resume {
		for i := range sum {
			sum[i] = getDouble(acc[8*i:])
		}
	}
	kind := r.spec.Kind
	for at := lo; at < hi; at++ {
		row := r.row(in, at)
		scale, bias := 1.0, 0.0
		switch {
		case kind.Quantised():
			s, b := kind.Scale(row, r.spec.Dim)
			scale, bias = float64(s), float64(b)
			if kind == quant.Int8 {
				bias = math.Copysign(0, -1)
			}
			kind.Unpack(x, row, 0)
		case kind != quant.Float64:
			kind.Unpack(x, row, 0)
		}
		weight := 1.0
		switch {
		case r.op != opMul:
		case in.Weights64 != nil:
			weight = in.Weights64[at]
		default:
			weight = s.weights[at-first]
		}
		for i := range sum {
			var v float64
			switch {
			case kind == quant.Float64:
				v = getDouble(row[8*i:])
			case kind.Quantised():
				v = float64(scale*float64(x[i])) + bias
			default:
				v = float64(x[i])
			}
			switch {
			case r.op == opMul:
				sum[i] += float64(v * weight)
			case r.op != opMax:
				sum[i] += v
			case at == lo && !resume || v > sum[i]:
				sum[i] = v
			}
		}
	}
	for i, v := range sum {
		putDouble(acc[8*i:], v)
	}
}
