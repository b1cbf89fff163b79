//go:build !amd64

package rowtable

// interleave does most of unshuffle's work for the usual sizes and returns how
// many elements it did.
func interleave(dst, planes []byte, size, count, first, n int) int {
	return interleaveWords(dst, planes, size, count, first, n)
}
