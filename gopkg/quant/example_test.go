package quant

import "fmt"

// FORMAT.md shows these bytes.
func ExampleKind_EncodeRows() {
	src := []float32{0, 1.5, 3, 7.5}
	for _, k := range []Kind{Float16, BFloat16, Int8, UInt8, Int4} {
		width, err := k.RowBytes(len(src))
		if err != nil {
			panic(err)
		}
		row := make([]byte, width)
		if err := k.EncodeRows(row, src, len(src)); err != nil {
			panic(err)
		}
		fmt.Printf("%s % x\n", k, row)
	}
	// Output:
	// fp16 00 00 00 3e 00 42 80 47
	// bf16 00 00 c0 3f 40 40 f0 40
	// int8 00 19 33 7f c8 e3 71 3d
	// uint8_rowwise 00 33 66 ff f1 f0 f0 3c 00 00 00 00
	// int4_rowwise 30 f6 00 38 00 00
}
