package rowtable

import "loaderx/gopkg/mem"

// streamRows copies rows of width bytes, a multiple of 64, from their places
// in base to those in out, whose address is a multiple of 16 as the places
// there are. What it writes goes past the caches, and rows are fetched eight
// ahead. The caller has made sure that all of it lies within the slices.
//
//go:noescape
func streamRows(out, base []byte, to, from []int64, width int)

// streamable reports whether stream copies rows of width bytes to out.
func streamable(out []byte, width int64) bool {
	return width%64 == 0 && mem.Address(out)%16 == 0
}

// stream copies rows from their places in base to those in out, for results
// larger than the caches: memory is not read before it is overwritten, which
// leaves more of its bandwidth to the rows. It returns false, and has done
// nothing, if a place is outside.
func stream(l *lane, out, base []byte, to, from []int64, width int64) bool {
	lastTo, lastFrom := int64(len(out))-width, int64(len(base))-width
	var outside uint64
	for i, p := range from {
		q := to[i]
		outside |= uint64(p) | uint64(lastFrom-p) | uint64(q) | uint64(lastTo-q)
	}
	if outside>>63 != 0 {
		return false
	}
	l.touch(base, from[:min(len(from), 8)], width)
	streamRows(out, base, to, from, int(width))
	return true
}
