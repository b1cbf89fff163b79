package rowtable

import (
	"crypto/subtle"
	"encoding/binary"
)

// unshuffle writes n elements of size bytes each to dst, beginning with
// element first of a shuffled block: planes holds the first bytes of all its
// elements, then the second ones, and so on.
func unshuffle(dst, planes []byte, size, first, n int) {
	count := len(planes) / size // elements of the block
	dst = dst[:n*size]
	if size == 1 {
		copy(dst, planes[first:first+n])
		return
	}
	done := interleave(dst, planes, size, count, first, n)
	for j := range size {
		plane := planes[j*count+first:][:n]
		for i := done; i < n; i++ {
			dst[i*size+j] = plane[i]
		}
	}
}

// interleaveWords is interleave for machines without code of their own. Eight
// elements are a matrix of bytes to be transposed: words are read from each
// plane, and what is not in its place is swapped between pairs of them in ever
// larger pieces.
func interleaveWords(dst, planes []byte, size, count, first, n int) int {
	plane := func(j int) []byte { return planes[j*count+first:][:n] }
	switch size {
	case 2:
		return unshuffle2(dst, plane(0), plane(1))
	case 4:
		return unshuffle4(dst, plane(0), plane(1), plane(2), plane(3))
	case 8:
		return unshuffle8(dst, planes[first:], count, n)
	}
	return 0
}

const (
	low8  = 0x00FF00FF00FF00FF
	low16 = 0x0000FFFF0000FFFF
	low32 = 0x00000000FFFFFFFF
)

func unshuffle2(dst, p, q []byte) int {
	le := binary.LittleEndian
	n := len(p) &^ 7
	for i := 0; i < n; i += 8 {
		a, b := le.Uint64(p[i:]), le.Uint64(q[i:])
		t := (a>>8 ^ b) & low8
		a, b = a^t<<8, b^t
		t = (a>>16 ^ b) & low16
		a, b = a^t<<16, b^t
		out := dst[2*i : 2*i+16]
		le.PutUint64(out, a&low32|b<<32)
		le.PutUint64(out[8:], a>>32|b&^low32)
	}
	return n
}

func unshuffle4(dst, p, q, r, s []byte) int {
	le := binary.LittleEndian
	n := len(p) &^ 7
	for i := 0; i < n; i += 8 {
		a, b, c, d := le.Uint64(p[i:]), le.Uint64(q[i:]), le.Uint64(r[i:]), le.Uint64(s[i:])
		t := (a>>8 ^ b) & low8
		u := (c>>8 ^ d) & low8
		a, b, c, d = a^t<<8, b^t, c^u<<8, d^u
		t = (a>>16 ^ c) & low16
		u = (b>>16 ^ d) & low16
		a, c, b, d = a^t<<16, c^t, b^u<<16, d^u
		// a holds elements 0 and 4, b 1 and 5, c 2 and 6, d 3 and 7.
		out := dst[4*i : 4*i+32]
		le.PutUint64(out, a&low32|b<<32)
		le.PutUint64(out[8:], c&low32|d<<32)
		le.PutUint64(out[16:], a>>32|b&^low32)
		le.PutUint64(out[24:], c>>32|d&^low32)
	}
	return n
}

func unshuffle8(dst, planes []byte, count, n int) int {
	le := binary.LittleEndian
	n &^= 7
	for i := 0; i < n; i += 8 {
		var w [8]uint64
		w[0], w[1] = le.Uint64(planes[i:]), le.Uint64(planes[i+count:])
		w[2], w[3] = le.Uint64(planes[i+2*count:]), le.Uint64(planes[i+3*count:])
		w[4], w[5] = le.Uint64(planes[i+4*count:]), le.Uint64(planes[i+5*count:])
		w[6], w[7] = le.Uint64(planes[i+6*count:]), le.Uint64(planes[i+7*count:])
		w[0], w[1] = swap(w[0], w[1], 8, low8)
		w[2], w[3] = swap(w[2], w[3], 8, low8)
		w[4], w[5] = swap(w[4], w[5], 8, low8)
		w[6], w[7] = swap(w[6], w[7], 8, low8)
		w[0], w[2] = swap(w[0], w[2], 16, low16)
		w[1], w[3] = swap(w[1], w[3], 16, low16)
		w[4], w[6] = swap(w[4], w[6], 16, low16)
		w[5], w[7] = swap(w[5], w[7], 16, low16)
		w[0], w[4] = swap(w[0], w[4], 32, low32)
		w[1], w[5] = swap(w[1], w[5], 32, low32)
		w[2], w[6] = swap(w[2], w[6], 32, low32)
		w[3], w[7] = swap(w[3], w[7], 32, low32)
		out := dst[8*i : 8*i+64]
		for j := range w {
			le.PutUint64(out[8*j:], w[j])
		}
	}
	return n
}

// swap exchanges the pieces of a that mask, moved up by bits, selects for those
// of b that mask selects.
func swap(a, b uint64, bits uint, mask uint64) (uint64, uint64) {
	t := (a>>bits ^ b) & mask
	return a ^ t<<bits, b ^ t
}

// undoXOR turns rows that are exclusive ors with the row before, all but the
// first, back into what they were.
func undoXOR(rows []byte, rowBytes int) {
	if rowBytes < 16 {
		for i := rowBytes; i < len(rows); i++ {
			rows[i] ^= rows[i-rowBytes]
		}
		return
	}
	for at := rowBytes; at < len(rows); at += rowBytes {
		row := rows[at : at+rowBytes]
		subtle.XORBytes(row, row, rows[at-rowBytes:at])
	}
}
