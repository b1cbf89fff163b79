#include "textflag.h"

#define LOAD(source, low, high) \
	VMOVDQU (source)(DX*1), low; \
	VMOVDQU 32(source)(DX*1), high

#define STORE(low, high) \
	VMOVDQU low, (BX); \
	VMOVDQU high, 32(BX); \
	ADDQ R15, BX

// LINE copies 64 bytes of each row, from DX on.
#define LINE \
	LOAD(SI, Y0, Y1); \
	LOAD(DI, Y2, Y3); \
	LOAD(R8, Y4, Y5); \
	LOAD(R9, Y6, Y7); \
	LOAD(R10, Y8, Y9); \
	LOAD(R11, Y10, Y11); \
	LOAD(R12, Y12, Y13); \
	LOAD(R13, Y14, Y15); \
	LEAQ (AX)(DX*1), BX; \
	STORE(Y0, Y1); \
	STORE(Y2, Y3); \
	STORE(Y4, Y5); \
	STORE(Y6, Y7); \
	STORE(Y8, Y9); \
	STORE(Y10, Y11); \
	STORE(Y12, Y13); \
	VMOVDQU Y14, (BX); \
	VMOVDQU Y15, 32(BX)

// ARGUMENTS takes the destination to AX, the sources to SI, DI and R8 to R13,
// where the last line begins to CX, and the stride to R15.
#define ARGUMENTS \
	MOVQ dst+0(FP), AX; \
	MOVQ from+8(FP), BX; \
	MOVQ n+16(FP), CX; \
	MOVQ stride+24(FP), R15; \
	MOVQ 0(BX), SI; \
	MOVQ 8(BX), DI; \
	MOVQ 16(BX), R8; \
	MOVQ 24(BX), R9; \
	MOVQ 32(BX), R10; \
	MOVQ 40(BX), R11; \
	MOVQ 48(BX), R12; \
	MOVQ 56(BX), R13; \
	SUBQ $64, CX

// The second line begins where a line of the destination does, and overlaps
// the first: stores across two cache lines take twice as long. So may the last.

// func copyGroup(dst *byte, from *[8]*byte, n, stride int)
TEXT ·copyGroup(SB), NOSPLIT, $0-32
	ARGUMENTS
	XORQ DX, DX

up:
	LINE
	CMPQ DX, CX
	JEQ  done
	ADDQ $64, DX
	LEAQ (AX)(DX*1), BX
	ANDQ $63, BX
	SUBQ BX, DX
	CMPQ DX, CX
	JLE  up
	MOVQ CX, DX
	JMP  up

done:
	VZEROUPPER
	RET

// func copyGroupDown(dst *byte, from *[8]*byte, n, stride int)
TEXT ·copyGroupDown(SB), NOSPLIT, $0-32
	ARGUMENTS
	MOVQ CX, DX

down:
	LINE
	TESTQ DX, DX
	JEQ   done
	SUBQ  $64, DX
	LEAQ  (AX)(DX*1), BX
	NEGQ  BX
	ANDQ  $63, BX
	ADDQ  BX, DX
	TESTQ DX, DX
	JGE   down
	XORQ  DX, DX
	JMP   down

done:
	VZEROUPPER
	RET
