//go:build !purego

package quant

import "golang.org/x/sys/cpu"

//go:generate go -C ../bag/asm run . -part quant -out ../../quant/decode_amd64.s -stubs ../../quant/decode_amd64.go -pkg quant

// wide says that the assembly may run; tests switch it off.
var wide = cpu.X86.HasAVX2 && cpu.X86.HasFMA && cpu.X86.HasF16C

// decodeWide decodes the first columns of a row with assembly and returns how
// many.
func (k Kind) decodeWide(dst []float32, row []byte) int {
	n := len(dst) &^ 7
	if !wide || n == 0 {
		return 0
	}
	switch k {
	case Float16:
		decodeFloat16(&dst[0], &row[0], n)
	case BFloat16:
		decodeBFloat16(&dst[0], &row[0], n)
	case Int8:
		scale, bias := k.Scale(row, len(dst))
		decodeInt8(&dst[0], &row[0], n, scale, bias)
	case UInt8:
		scale, bias := k.Scale(row, len(dst))
		decodeUInt8(&dst[0], &row[0], n, scale, bias)
	case Int4:
		scale, bias := k.Scale(row, len(dst))
		decodeInt4(&dst[0], &row[0], n, scale, bias)
	default:
		return 0
	}
	return n
}
