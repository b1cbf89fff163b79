#include "textflag.h"

// Bytes of the planes are interleaved in pairs, those pairs in pairs, and so
// on, with what every amd64 has (SSE2).

// func planes2(dst, planes []byte, count, n int)
TEXT ·planes2(SB), NOSPLIT, $0-64
	MOVQ dst_base+0(FP), DI
	MOVQ planes_base+24(FP), SI
	MOVQ count+48(FP), DX
	MOVQ n+56(FP), CX
	ADDQ SI, CX

loop2:
	CMPQ SI, CX
	JGE  done2
	MOVOU (SI), X0
	MOVOU (SI)(DX*1), X1
	MOVO X0, X2
	PUNPCKLBW X1, X0
	PUNPCKHBW X1, X2
	MOVOU X0, (DI)
	MOVOU X2, 16(DI)
	ADDQ $32, DI
	ADDQ $16, SI
	JMP  loop2

done2:
	RET

// func planes4(dst, planes []byte, count, n int)
TEXT ·planes4(SB), NOSPLIT, $0-64
	MOVQ dst_base+0(FP), DI
	MOVQ planes_base+24(FP), SI
	MOVQ count+48(FP), DX
	MOVQ n+56(FP), CX
	LEAQ (SI)(DX*2), R8
	ADDQ SI, CX

loop4:
	CMPQ SI, CX
	JGE  done4
	MOVOU (SI), X0
	MOVOU (SI)(DX*1), X1
	MOVOU (R8), X2
	MOVOU (R8)(DX*1), X3
	MOVO X0, X4
	PUNPCKLBW X1, X0
	PUNPCKHBW X1, X4
	MOVO X2, X5
	PUNPCKLBW X3, X2
	PUNPCKHBW X3, X5
	MOVO X0, X6
	PUNPCKLWL X2, X0
	PUNPCKHWL X2, X6
	MOVO X4, X7
	PUNPCKLWL X5, X4
	PUNPCKHWL X5, X7
	MOVOU X0, (DI)
	MOVOU X6, 16(DI)
	MOVOU X4, 32(DI)
	MOVOU X7, 48(DI)
	ADDQ $64, DI
	ADDQ $16, SI
	ADDQ $16, R8
	JMP  loop4

done4:
	RET

// func planes8(dst, planes []byte, count, n int)
TEXT ·planes8(SB), NOSPLIT, $0-64
	MOVQ dst_base+0(FP), DI
	MOVQ planes_base+24(FP), SI
	MOVQ count+48(FP), DX
	MOVQ n+56(FP), CX
	LEAQ (SI)(DX*2), R8
	LEAQ (SI)(DX*4), R9
	LEAQ (R8)(DX*4), R10
	ADDQ SI, CX

loop8:
	CMPQ SI, CX
	JGE  done8
	MOVQ (SI), X0
	MOVQ (SI)(DX*1), X1
	MOVQ (R8), X2
	MOVQ (R8)(DX*1), X3
	MOVQ (R9), X4
	MOVQ (R9)(DX*1), X5
	MOVQ (R10), X6
	MOVQ (R10)(DX*1), X7
	PUNPCKLBW X1, X0
	PUNPCKLBW X3, X2
	PUNPCKLBW X5, X4
	PUNPCKLBW X7, X6
	MOVO X0, X8
	PUNPCKLWL X2, X0
	PUNPCKHWL X2, X8
	MOVO X4, X9
	PUNPCKLWL X6, X4
	PUNPCKHWL X6, X9
	MOVO X0, X10
	PUNPCKLLQ X4, X0
	PUNPCKHLQ X4, X10
	MOVO X8, X11
	PUNPCKLLQ X9, X8
	PUNPCKHLQ X9, X11
	MOVOU X0, (DI)
	MOVOU X10, 16(DI)
	MOVOU X8, 32(DI)
	MOVOU X11, 48(DI)
	ADDQ $64, DI
	ADDQ $8, SI
	ADDQ $8, R8
	ADDQ $8, R9
	ADDQ $8, R10
	JMP  loop8

done8:
	RET
