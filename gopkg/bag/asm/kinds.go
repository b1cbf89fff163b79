package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// kind is how rows store their columns; the names are those of package quant.
type kind struct {
	name  string
	bits  int // of a column
	scale bool
	bias  bool
}

var (
	f32  = kind{"Float32", 32, false, false}
	f64  = kind{"Float64", 64, false, false}
	f16  = kind{"Float16", 16, false, false}
	bf16 = kind{"BFloat16", 16, false, false}
	i8   = kind{"Int8", 8, true, false}
	u8   = kind{"UInt8", 8, true, true}
	i4   = kind{"Int4", 4, true, true}
)

// Registers with a purpose; those below are accumulators.
const (
	valueReg  = 15 // a vector of columns, widened
	scaleReg  = 14
	biasReg   = 13
	weightReg = 12
	maskReg   = 11 // the low four bits of each lane
	shiftReg  = 10 // 0, 4, 8 ... 28
)

var vectors = []reg.VecPhysical{
	reg.Y0, reg.Y1, reg.Y2, reg.Y3, reg.Y4, reg.Y5, reg.Y6, reg.Y7,
	reg.Y8, reg.Y9, reg.Y10, reg.Y11, reg.Y12, reg.Y13, reg.Y14, reg.Y15,
}

// form is how many columns an instruction works on, and in what precision.
type form struct {
	double bool // float64 accumulators, else float32
	one    bool // a single column in an XMM register
	four   bool // four columns in an XMM register
	zmm    bool // 16 columns in a ZMM register; else a YMM register
}

// columns is the number of columns in a vector.
func (f form) columns() int {
	switch {
	case f.one:
		return 1
	case f.zmm:
		return 16
	case f.double, f.four:
		return 4
	}
	return 8
}

func (f form) size() int {
	if f.double {
		return 8
	}
	return 4
}

// reg is a vector register of the form's width.
func (f form) reg(n int) reg.VecPhysical {
	switch {
	case f.one, f.four:
		return vectors[n].AsX().(reg.VecPhysical)
	case f.zmm:
		return vectors[n].AsZ().(reg.VecPhysical)
	}
	return vectors[n]
}

// narrow is the register of half the width where float64 are made of float32.
func (f form) narrow(n int) reg.VecPhysical {
	if f.double {
		return vectors[n].AsX().(reg.VecPhysical)
	}
	return f.reg(n)
}

// pick chooses between the instruction for float32 and that for float64.
func pick[T any](f form, single, double T) T {
	if f.double {
		return double
	}
	return single
}

// nibbles are the constants that unpack four-bit codes: for YMM registers a
// mask and shifts; for ZMM registers the places of codes in eight bytes, and
// the numbers that codes stand for.
var nibbles struct{ mask, shifts, places, numbers Mem }

func defineNibbles() {
	nibbles.mask = GLOBL("nibbleMask", RODATA|NOPTR)
	DATA(0, U32(15))
	nibbles.shifts = GLOBL("nibbleShifts", RODATA|NOPTR)
	for i := range 8 {
		DATA(4*i, U32(4*i))
	}
	nibbles.places = GLOBL("nibblePlaces", RODATA|NOPTR)
	for i := range 16 {
		DATA(4*i, U32(4*i))
	}
	nibbles.numbers = GLOBL("nibbleNumbers", RODATA|NOPTR)
	for i := range 16 {
		DATA(4*i, U32(math.Float32bits(float32(i))))
	}
}

// loadNibbles puts them into their registers.
func loadNibbles(f form) {
	if f.zmm {
		VMOVDQU32(nibbles.places, f.reg(shiftReg))
		VMOVUPS(nibbles.numbers, f.reg(maskReg))
		return
	}
	VPBROADCASTD(nibbles.mask, f.narrow(maskReg))
	VMOVDQU(nibbles.shifts, f.narrow(shiftReg))
}

// load widens the columns at m into the value register: numbers, or codes that
// are not scaled yet. shift is where in its byte a single four-bit code is.
func (k kind) load(f form, m Mem, shift Op) {
	wide, narrow := f.reg(valueReg), f.narrow(valueReg)
	if f.one {
		k.loadOne(f, m, shift)
		return
	}
	switch k {
	case f32:
		pick(f, VMOVUPS, VCVTPS2PD)(m, wide)
		return
	case f64:
		VMOVUPD(m, wide)
		return
	case f16:
		VCVTPH2PS(m, narrow)
	case bf16:
		VPMOVZXWD(m, narrow)
		VPSLLD(Imm(16), narrow, narrow)
	case u8:
		VPMOVZXBD(m, narrow)
	case i8:
		VPMOVSXBD(m, narrow)
	case i4:
		if f.zmm {
			// A code's byte also has the code behind it; VPERMPS looks at the
			// low four bits of an index only.
			VPMULTISHIFTQB_BCST(m, f.reg(shiftReg), wide)
			VPERMPS(f.reg(maskReg), wide, wide)
			return
		}
		if f.double || f.four {
			VPBROADCASTW(m, narrow) // four codes
		} else {
			VPBROADCASTD(m, narrow)
		}
		VPSRLVD(f.narrow(shiftReg), narrow, narrow)
		VPAND(f.narrow(maskReg), narrow, narrow)
	}
	k.widen(f)
}

// widen makes accumulators' numbers of codes or of float32.
func (k kind) widen(f form) {
	wide, narrow := f.reg(valueReg), f.narrow(valueReg)
	switch {
	case k.scale:
		pick(f, VCVTDQ2PS, VCVTDQ2PD)(narrow, wide)
	case f.double:
		VCVTPS2PD(narrow, wide)
	}
}

// loadOne reads no byte beyond the column.
func (k kind) loadOne(f form, m Mem, shift Op) {
	x := f.reg(valueReg)
	switch k {
	case f32:
		VMOVSS(m, x)
	case f64:
		VMOVSD(m, x)
		return
	default:
		t := GP32()
		switch k {
		case f16:
			MOVWLZX(m, t)
		case bf16:
			MOVWLZX(m, t)
			SHLL(Imm(16), t)
		case u8:
			MOVBLZX(m, t)
		case i8:
			MOVBLSX(m, t)
		case i4:
			MOVBLZX(m, t)
			SHRXL(shift, t, t)
			ANDL(Imm(15), t)
		}
		VMOVD(t, x)
		if k == f16 {
			VCVTPH2PS(x, x)
		}
	}
	k.widen(f)
}

// loadScale broadcasts the scale, and the bias, that are found at m.
func (k kind) loadScale(f form, m Mem) {
	x := func(n int) reg.VecPhysical { return vectors[n].AsX().(reg.VecPhysical) }
	second := m
	second.Disp += 4
	switch {
	case k == i4:
		v, b := x(valueReg), x(biasReg)
		VMOVD(m, v)
		VCVTPH2PS(v, v) // scale, bias, 0, 0
		VMOVSHDUP(v, b)
		if f.double {
			VCVTPS2PD(v, v)
			VCVTPS2PD(b, b)
		}
		k.broadcast(f, v, scaleReg)
		k.broadcast(f, b, biasReg)
	case f.double:
		VCVTSS2SD(m, x(scaleReg), x(scaleReg))
		k.broadcast(f, x(scaleReg), scaleReg)
		if k.bias {
			VCVTSS2SD(second, x(biasReg), x(biasReg))
			k.broadcast(f, x(biasReg), biasReg)
		}
	default:
		VBROADCASTSS(m, f.reg(scaleReg))
		if k.bias {
			VBROADCASTSS(second, f.reg(biasReg))
		}
	}
}

func (k kind) broadcast(f form, from Op, to int) {
	switch {
	case f.double && f.one:
		VMOVDDUP(from, f.reg(to))
	case f.double:
		VBROADCASTSD(from, f.reg(to))
	default:
		VBROADCASTSS(from, f.reg(to))
	}
}
