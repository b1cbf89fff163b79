package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// places writes the functions that check ids and find their rows, eight at a
// time.
func places() {
	TEXT("outsideWide", NOSPLIT, "func(ids *int64, n int, last int64) int")
	Pragma("noescape")
	Doc("outsideWide returns 0 if the first n&^7 ids are in [0, last].")
	ids := Load(Param("ids"), GP64())
	n := Load(Param("n"), GP64())
	last := broadcast("last")
	outside := []reg.VecVirtual{YMM(), YMM()}
	for _, y := range outside {
		VPXOR(y, y, y)
	}
	Label("ids")
	CMPQ(n, Imm(8))
	JL(LabelRef("done"))
	for k, y := range outside {
		id := YMM()
		VMOVDQU(Mem{Base: ids, Disp: 32 * k}, id)
		note(y, id, last)
	}
	ADDQ(Imm(64), ids)
	SUBQ(Imm(8), n)
	JMP(LabelRef("ids"))
	told(outside)

	TEXT("placesWide", NOSPLIT, "func(dst, ids *int64, n int, at, width, last int64) int")
	Pragma("noescape")
	Doc("placesWide writes at+id*width for the first n&^7 ids and returns 0 if they are in [0, last]. width is below 1<<32.")
	dst := Load(Param("dst"), GP64())
	ids = Load(Param("ids"), GP64())
	n = Load(Param("n"), GP64())
	at, width := broadcast("at"), broadcast("width")
	last = broadcast("last")
	outside = []reg.VecVirtual{YMM(), YMM()}
	for _, y := range outside {
		VPXOR(y, y, y)
	}
	Label("ids")
	CMPQ(n, Imm(8))
	JL(LabelRef("done"))
	for k, y := range outside {
		id, high := YMM(), YMM()
		VMOVDQU(Mem{Base: ids, Disp: 32 * k}, id)
		note(y, id, last)
		VPSRLQ(Imm(32), id, high)
		VPMULUDQ(width, id, id)
		VPMULUDQ(width, high, high)
		VPSLLQ(Imm(32), high, high)
		VPADDQ(high, id, id)
		VPADDQ(at, id, id)
		VMOVDQU(id, Mem{Base: dst, Disp: 32 * k})
	}
	ADDQ(Imm(64), ids)
	ADDQ(Imm(64), dst)
	SUBQ(Imm(8), n)
	JMP(LabelRef("ids"))
	told(outside)
}

// broadcast loads a parameter into all lanes.
func broadcast(name string) reg.VecVirtual {
	y := YMM()
	p, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	VPBROADCASTQ(p.Addr, y)
	return y
}

// note sets the sign of a lane of y whose id is negative or above last.
func note(y, id, last reg.VecVirtual) {
	rest := YMM()
	VPSUBQ(id, last, rest)
	VPOR(id, rest, rest)
	VPOR(rest, y, y)
}

// told returns the signs.
func told(outside []reg.VecVirtual) {
	Label("done")
	signs := GP64()
	VPOR(outside[0], outside[1], outside[0])
	VMOVMSKPD(outside[0], signs.As32())
	VZEROUPPER()
	Store(signs, ReturnIndex(0))
	RET()
}
