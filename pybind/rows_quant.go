package pybind

import (
	"loaderx/gopkg/mem"
	"loaderx/gopkg/quant"
)

// RowsEncode encodes n float32 numbers at src, rows of dim columns, into dst,
// which is exactly as long as the encoded rows. kind is one of quant's. Errors
// count rows from first on.
func RowsEncode(src uint64, n, dim int64, dst uint64, dstLen, kind, first int64) (status int64) {
	enter()
	defer guard(&status)
	numbers, rows, err := quantArgs(src, n, dst, dstLen)
	if err != nil {
		return fail(err)
	}
	return done(0, quant.Kind(small(kind)).EncodeRowsFrom(first, rows, numbers, int(dim)))
}

// RowsDecode decodes the rows at src, srcLen bytes, into dst, which has room
// for exactly their n numbers.
func RowsDecode(dst uint64, n, dim int64, src uint64, srcLen, kind int64) (status int64) {
	enter()
	defer guard(&status)
	numbers, rows, err := quantArgs(dst, n, src, srcLen)
	if err != nil {
		return fail(err)
	}
	return done(0, quant.Kind(small(kind)).DecodeRows(numbers, rows, int(dim)))
}

func quantArgs(numbers uint64, n int64, rows uint64, size int64) (floats []float32, bytes []byte, err error) {
	if floats, err = mem.Slice[float32](numbers, n); err == nil {
		bytes, err = mem.Slice[byte](rows, size)
	}
	return floats, bytes, err
}
