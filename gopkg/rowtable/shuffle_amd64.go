package rowtable

// Each writes n elements of its size to dst. Their first bytes begin planes,
// the second ones lie count behind them, and so on; n is a multiple of 16, or
// of 8 for elements of 8 bytes, and everything lies within the slices: the
// caller has made sure.

//go:noescape
func planes2(dst, planes []byte, count, n int)

//go:noescape
func planes4(dst, planes []byte, count, n int)

//go:noescape
func planes8(dst, planes []byte, count, n int)

// interleave does most of unshuffle's work for the usual sizes and returns how
// many elements it did.
func interleave(dst, planes []byte, size, count, first, n int) int {
	n &^= 15
	if n == 0 || size != 2 && size != 4 && size != 8 {
		return 0
	}
	from := planes[first:]
	_, _ = from[(size-1)*count+n-1], dst[n*size-1]
	switch size {
	case 2:
		planes2(dst, from, count, n)
	case 4:
		planes4(dst, from, count, n)
	case 8:
		planes8(dst, from, count, n)
	}
	return n
}
