// Package bag reduces bags of rows: the sum, the mean or the maximum of rows
// that lie at given places of a base slice, without copying them out first.
// Rows are of the kinds of package quant. A [Reducer] does one reduction; it
// is safe for concurrent use.
//
// # Arithmetic
//
// Torch is bit-equal to the CPU kernels of torch 2.15 (compared on AVX-512
// hardware; testdata holds results of torch). Rows are combined one after the
// other in the order of the lookups, in float32 (float64 for Float64 rows),
// beginning with +0; an empty bag is all zeros, whatever the mode.
//
//   - Sum of Float32, Float64: plain sums.
//   - Sum of Float16, BFloat16: summed in float32 and rounded to nearest
//     even; BFloat16 without PaddingIndex instead rounds ties away from zero, as
//     FBGEMM does.
//   - Mean: the rounded sum divided by the number of lookups and rounded again,
//     both in the rows' type. The number is rounded to that type first: 257 BFloat16 rows
//     are divided by 256, and beyond 65519 Float16 rows the mean is 0.
//   - Weighted sums: fma(row, weight, sum); with PaddingIndex, and for Float64,
//     sum + row*weight, the product rounded.
//   - Max: the first row, replaced by each later number that is greater. A
//     NaN in the first row stays and later ones are passed over; of two
//     zeros the first stays.
//   - UInt8, Int4: sum = fma(w*scale, code, sum + w*bias), with w = 1 for sums without
//     weights: embedding_bag_byte_rowwise_offsets and
//     embedding_bag_4bit_rowwise_offsets. Int8 is the same without a bias. Torch has no mean (its
//     mode argument has no effect) and no max of these: Mean divides the sum by the number of
//     lookups, Max compares decoded columns.
//
// F64 sums in float64, the products with weights and scales rounded to
// float64, divides there, and rounds once at the end. Max has nothing to
// round and is the same.
//
// Results are float32 for quantised kinds and of the rows' type for the others.
// NaNs have unspecified sign and payload. Else the assembly, used where there are
// AVX2, FMA and F16C, gives the same bits as the Go code, and a bag that is
// continued over many calls, or reduced by many goroutines, the bits of one pass.
//
// # Mapped memory
//
// Rows may lie in a mapped file. [Reducer.ReduceAll] and [Stream] turn a fault
// into errs.ErrFault; who calls [Reducer.Reduce] or [Bag.Add] does that with
// mem.Guard, which works for the assembly as it does for Go code.
package bag

//go:generate go -C asm run . -part bag -table ../kernels_table_amd64.go -out ../kernels_amd64.s -stubs ../kernels_amd64.go -pkg bag
//go:generate gofmt -w kernels_table_amd64.go
