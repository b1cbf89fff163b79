package rowtable

import "loaderx/gopkg/mem"

// streamRows copies the rows of width bytes, a multiple of 64, at places in
// base to out, whose address is a multiple of 16. What it writes goes past the
// caches, and rows are fetched eight ahead. The caller has made sure that all
// of it lies within the slices.
//
//go:noescape
func streamRows(out, base []byte, places []int64, width int)

// stream copies rows as copyRows does, for results larger than the caches:
// memory is not read before it is overwritten, which leaves more of its
// bandwidth to the rows. It returns false if the rows are not of a kind for it.
func stream(l *lane, out, base []byte, places []int64, width int64) bool {
	if width%64 != 0 || mem.Address(out)%16 != 0 || int64(len(out)) != int64(len(places))*width {
		return false
	}
	last := int64(len(base)) - width
	var outside uint64
	for _, p := range places {
		outside |= uint64(p) | uint64(last-p)
	}
	if outside>>63 != 0 {
		return false
	}
	l.touch(base, places[:min(len(places), 8)], width)
	streamRows(out, base, places, int(width))
	return true
}
