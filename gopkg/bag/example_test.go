package bag_test

import (
	"encoding/binary"
	"fmt"
	"math"

	"loaderx/gopkg/bag"
	"loaderx/gopkg/quant"
)

// Two bags of rows of a small table: rows 0 and 2, and row 1 twice.
func ExampleReducer_ReduceAll() {
	table := make([]byte, 3*8)
	if err := quant.Float32.EncodeRows(table, []float32{1, 2, 3, 4, 5, 6}, 2); err != nil {
		panic(err)
	}
	r, err := bag.New(bag.Spec{Kind: quant.Float32, Dim: 2, Mode: bag.Mean})
	if err != nil {
		panic(err)
	}
	dst := make([]byte, 2*r.OutBytes())
	in := bag.Lookups{Base: table, Places: []int64{0, 16, 8, 8}}
	if err := r.ReduceAll(0, dst, in, []int64{0, 2, 4}); err != nil {
		panic(err)
	}
	for i := 0; i < len(dst); i += 4 {
		fmt.Print(math.Float32frombits(binary.LittleEndian.Uint32(dst[i:])), " ")
	}
	// Output: 3 4 3 4
}
