package rowtable

import "math/bits"

// Bits that index a table's first part; longer codes continue in a second one.
const (
	literalBits  = 11
	distanceBits = 8
	lengthsBits  = 7
)

// A table entry is value<<16 | kind | extra<<8 | bits: so many bits of the
// input are the code, and for a length or distance so many bits behind it are
// to be added to the value. That of entrySub is where the second part begins,
// which extra bits index; it takes the bits of the first.
const (
	entryLiteral = 1 << 15
	entrySub     = 1 << 14
	entryEnd     = 1 << 13 // of the block
	entryBad     = 1 << 12 // no code
	entryOther   = entrySub | entryEnd | entryBad
)

// Tables with the most entries that codes of 15 bits can need, rounded up.
type (
	literalTable  [1 << 12]uint32
	distanceTable [1 << 9]uint32
)

// What the symbols of each alphabet mean, as entries without bits.
var literalSymbols, distanceSymbols, lengthsSymbols = func() (literals [288]uint32, distances [32]uint32, lengths [19]uint32) {
	for i := range 256 {
		literals[i] = uint32(i)<<16 | entryLiteral
	}
	literals[256] = entryEnd
	base := uint32(3)
	for i := range uint32(29) {
		extra := uint32(max(int(i)-4, 0) / 4)
		if i == 28 { // 258 has a symbol of its own
			base, extra = 258, 0
		}
		literals[257+i] = base<<16 | extra<<8
		base += 1 << extra
	}
	literals[286], literals[287] = entryBad, entryBad
	base = 1
	for i := range 30 {
		extra := uint32(max(i-2, 0) / 2)
		distances[i] = base<<16 | extra<<8
		base += 1 << extra
	}
	distances[30], distances[31] = entryBad, entryBad
	for i := range lengths {
		lengths[i] = uint32(i) << 16
	}
	return literals, distances, lengths
}()

// fill makes the table of a code, whose symbols have codes of lens bits, at
// most 15 and 0 for none. Codes that are no tree are refused, except for none
// and for a single one of one bit, which encoders make.
func fill(table []uint32, lens []uint8, symbols []uint32, first uint) error {
	var count, begin [16]int
	for _, n := range lens {
		count[n&15]++
	}
	used := len(lens) - count[0]
	count[0] = 0
	left := 1
	for n := 1; n < 16; n++ {
		if left = 2*left - count[n]; left < 0 {
			return errInflate
		}
		begin[n] = begin[n-1] + count[n-1]
	}
	if left > 0 && (used > 1 || used == 1 && count[1] != 1) {
		return errInflate
	}
	if left > 0 {
		for i := range table[:1<<first] {
			table[i] = entryBad
		}
	}
	var sorted [288]uint16
	for symbol, n := range lens {
		if n > 0 {
			sorted[begin[n]] = uint16(symbol)
			begin[n]++
		}
	}
	code, next, prefix, sub, at := 0, 1<<first, -1, uint(0), 0
	i := 0
	for n := uint(1); n < 16; n, code = n+1, code<<1 {
		for ; count[n] > 0; count[n], i, code = count[n]-1, i+1, code+1 {
			reversed := int(bits.Reverse16(uint16(code)) >> (16 - n))
			entry := symbols[sorted[i]]
			if n <= first {
				for j := reversed; j < 1<<first; j += 1 << n {
					table[j] = entry | uint32(n)
				}
				continue
			}
			if p := reversed & (1<<first - 1); p != prefix {
				// As large as the codes that begin like this one need.
				prefix, sub = p, n-first
				for room := 1<<sub - count[n]; room > 0 && first+sub < 15; {
					sub++
					room = room<<1 - count[first+sub]
				}
				at, next = next, next+1<<sub
				if next > len(table) {
					return errInflate
				}
				table[p] = uint32(at)<<16 | entrySub | uint32(sub)<<8 | uint32(first)
			}
			for j := reversed >> first; j < 1<<sub; j += 1 << (n - first) {
				table[at+j] = entry | uint32(n-first)
			}
		}
	}
	return nil
}
