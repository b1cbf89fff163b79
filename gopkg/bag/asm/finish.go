package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// loop writes a loop over n columns, a multiple of step.
func loop(n reg.Register, step int, body func()) {
	Label("columns")
	CMPQ(n, Imm(uint64(step)))
	JL(LabelRef("done"))
	body()
	SUBQ(Imm(uint64(step)), n)
	JMP(LabelRef("columns"))
	Label("done")
	VZEROUPPER()
	RET()
}

// finishers write the functions that turn sums into results, eight columns at
// a time.
func finishers() {
	TEXT("divideFloat32", NOSPLIT, "func(dst *byte, n int, divisor float32)")
	Pragma("noescape")
	Doc("divideFloat32 divides the first n&^7 numbers at dst.")
	dst := Load(Param("dst"), GP64())
	n := Load(Param("n"), GP64())
	divisor, _ := Param("divisor").Resolve()
	VBROADCASTSS(divisor.Addr, reg.Y1)
	loop(n, 8, func() {
		VMOVUPS(Mem{Base: dst}, reg.Y0)
		VDIVPS(reg.Y1, reg.Y0, reg.Y0)
		VMOVUPS(reg.Y0, Mem{Base: dst})
		ADDQ(Imm(32), dst)
	})

	finisher("roundFloat16", "rounds to float16", false, toHalf)
	finisher("meanFloat16", "rounds to float16, divides and rounds again", true, func() {
		toHalf()
		VCVTPH2PS(reg.X0, reg.Y0)
		VDIVPS(reg.Y15, reg.Y0, reg.Y0)
		toHalf()
	})
	finisher("roundBFloat16", "rounds to bfloat16, ties to even", false, toBFloat)
	finisher("meanBFloat16", "rounds to bfloat16, ties to even, divides and rounds again", true, func() {
		toBFloat()
		again()
	})
	finisher("upBFloat16", "rounds to bfloat16, ties away from zero", false, upBFloat)
	finisher("upMeanBFloat16", "rounds to bfloat16, ties away from zero, divides and rounds again, ties to even", true, func() {
		upBFloat()
		again()
	})

	TEXT("meanDouble", NOSPLIT, "func(dst, src *byte, n int, divisor float64)")
	Pragma("noescape")
	Doc("meanDouble divides the first n&^3 float64 at src and rounds to float32.")
	dst = Load(Param("dst"), GP64())
	src := Load(Param("src"), GP64())
	n = Load(Param("n"), GP64())
	divisor, _ = Param("divisor").Resolve()
	VBROADCASTSD(divisor.Addr, reg.Y1)
	loop(n, 4, func() {
		VMOVUPD(Mem{Base: src}, reg.Y0)
		VDIVPD(reg.Y1, reg.Y0, reg.Y0)
		VCVTPD2PSY(reg.Y0, reg.X0)
		VMOVUPS(reg.X0, Mem{Base: dst})
		ADDQ(Imm(32), src)
		ADDQ(Imm(16), dst)
	})
}

// finisher writes a function from eight float32 in Y0 to eight halves in X0;
// Y15 holds the divisor.
func finisher(name, doc string, divide bool, body func()) {
	signature := "func(dst, src *byte, n int)"
	if divide {
		signature = "func(dst, src *byte, n int, divisor float32)"
	}
	TEXT(name, NOSPLIT, signature)
	Pragma("noescape")
	Doc(name + " " + doc + ": the first n&^7 float32 at src.")
	dst := Load(Param("dst"), GP64())
	src := Load(Param("src"), GP64())
	n := Load(Param("n"), GP64())
	if divide {
		divisor, _ := Param("divisor").Resolve()
		VBROADCASTSS(divisor.Addr, reg.Y15)
	}
	bfloatConstants()
	loop(n, 8, func() {
		VMOVUPS(Mem{Base: src}, reg.Y0)
		body()
		VMOVUPS(reg.X0, Mem{Base: dst})
		ADDQ(Imm(32), src)
		ADDQ(Imm(16), dst)
	})
}

func toHalf() { VCVTPS2PH(Imm(0), reg.Y0, reg.X0) }

// bfloatConstants puts 0x7fff, 0x8000, 1 and a NaN's bits into Y14 to Y11.
func bfloatConstants() {
	t := GP32()
	for _, c := range []struct {
		bits uint32
		to   reg.VecPhysical
	}{{0x7fff, reg.Y14}, {0x8000, reg.Y13}, {1, reg.Y12}, {0x7fc0, reg.Y11}} {
		MOVL(U32(c.bits), t)
		VMOVD(t, c.to.AsX())
		VPBROADCASTD(c.to.AsX(), c.to)
	}
}

func toBFloat() {
	VCMPPS(Imm(3), reg.Y0, reg.Y0, reg.Y2) // NaN
	VPSRLD(Imm(16), reg.Y0, reg.Y1)
	VPAND(reg.Y12, reg.Y1, reg.Y1)
	VPADDD(reg.Y14, reg.Y1, reg.Y1)
	VPADDD(reg.Y1, reg.Y0, reg.Y0)
	packBFloat()
}

func upBFloat() {
	VCMPPS(Imm(3), reg.Y0, reg.Y0, reg.Y2) // NaN
	VPADDD(reg.Y13, reg.Y0, reg.Y0)
	packBFloat()
}

// packBFloat takes the upper halves of Y0, and NaN where Y2 says so, to X0.
func packBFloat() {
	VPSRLD(Imm(16), reg.Y0, reg.Y0)
	VPBLENDVB(reg.Y2, reg.Y11, reg.Y0, reg.Y0)
	VEXTRACTI128(Imm(1), reg.Y0, reg.X1)
	VPACKUSDW(reg.X1, reg.X0, reg.X0)
}

// again divides eight bfloat16 in X0 and rounds the quotients to even.
func again() {
	VPMOVZXWD(reg.X0, reg.Y0)
	VPSLLD(Imm(16), reg.Y0, reg.Y0)
	VDIVPS(reg.Y15, reg.Y0, reg.Y0)
	toBFloat()
}

// decoders write the functions that decode a row, eight columns at a time.
func decoders() {
	f := form{}
	for _, k := range []kind{f16, bf16, i8, u8, i4} {
		signature := "func(dst *float32, src *byte, n int)"
		doc := " widens the first n&^7 columns at src."
		if k.scale {
			signature = "func(dst *float32, src *byte, n int, scale, bias float32)"
			doc = " decodes the first n&^7 codes at src."
		}
		name := "decode" + k.name
		TEXT(name, NOSPLIT, signature)
		Pragma("noescape")
		Doc(name + doc)
		dst := Load(Param("dst"), GP64())
		src := Load(Param("src"), GP64())
		n := Load(Param("n"), GP64())
		if k.scale {
			scale, _ := Param("scale").Resolve()
			bias, _ := Param("bias").Resolve()
			VBROADCASTSS(scale.Addr, f.reg(scaleReg))
			VBROADCASTSS(bias.Addr, f.reg(biasReg))
		}
		if k == i4 {
			loadNibbles(f)
		}
		loop(n, 8, func() {
			k.load(f, Mem{Base: src}, nil)
			if k.scale {
				VFMADD213PS(f.reg(biasReg), f.reg(scaleReg), f.reg(valueReg))
			}
			VMOVUPS(f.reg(valueReg), Mem{Base: dst})
			ADDQ(Imm(uint64(k.bits)), src)
			ADDQ(Imm(32), dst)
		})
	}
}
