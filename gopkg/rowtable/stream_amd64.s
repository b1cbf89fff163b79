#include "textflag.h"

// func streamRows(out, base []byte, to, from []int64, width int)
TEXT ·streamRows(SB), NOSPLIT, $0-104
	MOVQ out_base+0(FP), R10
	MOVQ base_base+24(FP), SI
	MOVQ to_base+48(FP), R11
	MOVQ from_base+72(FP), R8
	MOVQ from_len+80(FP), R9
	MOVQ width+96(FP), DX

row:
	TESTQ R9, R9
	JZ    done
	MOVQ  (R8), AX
	ADDQ  SI, AX
	MOVQ  (R11), DI
	ADDQ  R10, DI
	MOVQ  AX, BX        // what to prefetch: the row eight ahead, or this one
	CMPQ  R9, $9
	JLT   copy
	MOVQ  64(R8), BX
	ADDQ  SI, BX

copy:
	MOVQ DX, CX

line:
	PREFETCHT0 (BX)
	MOVOU (AX), X0
	MOVOU 16(AX), X1
	MOVOU 32(AX), X2
	MOVOU 48(AX), X3
	MOVNTO X0, (DI)
	MOVNTO X1, 16(DI)
	MOVNTO X2, 32(DI)
	MOVNTO X3, 48(DI)
	ADDQ $64, AX
	ADDQ $64, BX
	ADDQ $64, DI
	SUBQ $64, CX
	JNZ  line
	ADDQ $8, R8
	ADDQ $8, R11
	DECQ R9
	JMP  row

done:
	SFENCE
	RET
