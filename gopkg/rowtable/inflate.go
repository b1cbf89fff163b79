package rowtable

import (
	"encoding/binary"
	"errors"
	"hash/adler32"
)

// A zlib stream (RFC 1950, 1951) decoded from memory to memory. A decoder of
// streams keeps a window and copies out of it; here the output is the window,
// eight bytes of input are looked at at once, and one table entry says all
// about a literal or a length.

var (
	errInflate   = errors.New("not a valid zlib stream")
	errTooLong   = errors.New("zlib stream of more bytes than the rows")
	errTooShort  = errors.New("zlib stream of fewer bytes than the rows")
	errTrailing  = errors.New("bytes behind a zlib stream")
	errCutShort  = errors.New("zlib stream cut short")
	errAdler     = errors.New("zlib stream whose own checksum does not fit")
	errFarBehind = errors.New("zlib stream that copies from before its beginning")
)

// inflater is a decoder's memory, to be used again, by one goroutine at a time.
type inflater struct {
	literals  literalTable
	distances distanceTable
	lens      [288 + 32]uint8

	src    []byte
	at     int    // of the next byte that is not in buf
	buf    uint64 // the next bits, lowest first
	have   uint   // how many of them are counted; those above are right or zero
	absent uint   // bytes among them that are beyond the end of src
}

// inflate decodes the zlib stream that is all of src and must fill dst exactly.
// sum says whether to check the stream's own checksum.
func (f *inflater) inflate(dst, src []byte, sum bool) error {
	if len(src) < 6 {
		return errCutShort
	}
	head := uint(src[0])<<8 | uint(src[1])
	if head%31 != 0 || src[0]&15 != 8 || src[0]>>4 > 7 || src[1]&32 != 0 {
		return errInflate
	}
	f.src, f.at, f.buf, f.have, f.absent = src[2:len(src)-4], 0, 0, 0, 0
	n, err := f.blocks(dst)
	unread := len(f.src) - f.at + int(f.have/8) - int(f.absent)
	f.src = nil
	switch {
	case err != nil:
		return err
	case n < len(dst):
		return errTooShort
	case unread > 0:
		return errTrailing
	case sum && adler32.Checksum(dst) != binary.BigEndian.Uint32(src[len(src)-4:]):
		return errAdler
	}
	return nil
}

// refill brings at least 56 bits into buf; beyond the end they are zero.
func (f *inflater) refill() {
	if f.at+8 <= len(f.src) {
		f.buf |= binary.LittleEndian.Uint64(f.src[f.at:]) << (f.have & 63)
		f.at += int((63 - f.have) >> 3)
		f.have |= 56
		return
	}
	for f.have < 56 {
		if f.at < len(f.src) {
			f.buf |= uint64(f.src[f.at]) << f.have
			f.at++
		} else {
			f.absent++
		}
		f.have += 8
	}
}

// take returns the next n bits; refill came before.
func (f *inflater) take(n uint) uint {
	v := uint(f.buf) & (1<<(n&63) - 1)
	f.buf >>= n & 63
	f.have -= n
	return v
}

// overrun reports whether bits were taken that the input does not have.
func (f *inflater) overrun() bool { return f.have < 8*f.absent }

// blocks decodes all blocks and returns how many bytes they hold.
func (f *inflater) blocks(dst []byte) (out int, err error) {
	for last := false; !last; {
		f.refill()
		last = f.take(1) == 1
		switch f.take(2) {
		case 0:
			out, err = f.stored(dst, out)
		case 1:
			if err = f.fixed(); err == nil {
				out, err = f.block(dst, out)
			}
		case 2:
			if err = f.dynamic(); err == nil {
				out, err = f.block(dst, out)
			}
		default:
			err = errInflate
		}
		if err == nil && f.overrun() {
			err = errCutShort
		}
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

// stored copies a block that is not compressed.
func (f *inflater) stored(dst []byte, out int) (int, error) {
	f.take(f.have & 7)
	if f.overrun() {
		return out, errCutShort
	}
	f.at -= int(f.have/8 - f.absent)
	f.buf, f.have, f.absent = 0, 0, 0
	rest := f.src[f.at:]
	if len(rest) < 4 {
		return out, errCutShort
	}
	n := binary.LittleEndian.Uint16(rest)
	if n != ^binary.LittleEndian.Uint16(rest[2:]) {
		return out, errInflate
	}
	rest = rest[4:]
	switch {
	case int(n) > len(rest):
		return out, errCutShort
	case int(n) > len(dst)-out:
		return out, errTooLong
	}
	copy(dst[out:], rest[:n])
	f.at += 4 + int(n)
	return out + int(n), nil
}

// fixed makes the tables of the code that needs none in the input.
func (f *inflater) fixed() error {
	for i := range f.lens {
		switch {
		case i >= 288:
			f.lens[i] = 5
		case i >= 144 && i < 256:
			f.lens[i] = 9
		case i >= 256 && i < 280:
			f.lens[i] = 7
		default:
			f.lens[i] = 8
		}
	}
	return errors.Join(
		fill(f.literals[:], f.lens[:288], literalSymbols[:], literalBits),
		fill(f.distances[:], f.lens[288:], distanceSymbols[:], distanceBits))
}

// lengthsOrder is in which order the lengths of the lengths' code are given.
var lengthsOrder = [19]uint8{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}

// dynamic reads the tables of a block.
func (f *inflater) dynamic() error {
	f.refill()
	literals, distances, given := f.take(5)+257, f.take(5)+1, f.take(4)+4
	if literals > 286 || distances > 30 {
		return errInflate
	}
	lens := f.lens[:19]
	clear(lens)
	for _, symbol := range lengthsOrder[:given] {
		f.refill()
		lens[symbol] = uint8(f.take(3))
	}
	if err := fill(f.distances[:], lens, lengthsSymbols[:], lengthsBits); err != nil {
		return err
	}
	lens = f.lens[:literals+distances]
	for i := uint(0); i < uint(len(lens)); {
		f.refill()
		entry := f.distances[f.buf&(1<<lengthsBits-1)]
		if entry&entryBad != 0 {
			return errInflate
		}
		f.take(uint(entry & 63))
		symbol, value, times := entry>>16, uint8(0), uint(1)
		switch symbol {
		case 16:
			if i == 0 {
				return errInflate
			}
			value, times = lens[i-1], 3+f.take(2)
		case 17:
			times = 3 + f.take(3)
		case 18:
			times = 11 + f.take(7)
		default:
			value = uint8(symbol)
		}
		if times > uint(len(lens))-i {
			return errInflate
		}
		for ; times > 0; times-- {
			lens[i] = value
			i++
		}
	}
	if f.overrun() {
		return errCutShort
	}
	if err := fill(f.literals[:], lens[:literals], literalSymbols[:], literalBits); err != nil {
		return err
	}
	return fill(f.distances[:], lens[literals:], distanceSymbols[:], distanceBits)
}

// fastRoom is how much room the fast loop needs: two literals, the longest
// copy, and what copies of eight bytes write behind it.
const fastRoom = 2 + 258 + 8

// block decodes a compressed block with the present tables.
func (f *inflater) block(dst []byte, out int) (int, error) {
	for {
		var end bool
		var err error
		if out+fastRoom <= len(dst) && f.at+16 <= len(f.src) {
			out, end, err = f.fast(dst, out)
		} else {
			out, end, err = f.slow(dst, out)
		}
		if end || err != nil {
			return out, err
		}
	}
}

// fast decodes while there is room and input for any symbol.
func (f *inflater) fast(dst []byte, out int) (n int, end bool, err error) {
	src, at, buf, have := f.src, f.at, f.buf, f.have
	literals, distances := &f.literals, &f.distances
	for out+fastRoom <= len(dst) && at+16 <= len(src) {
		buf |= binary.LittleEndian.Uint64(src[at:]) << (have & 63)
		at += int((63 - have) >> 3)
		have |= 56
		e := literals[buf&(1<<literalBits-1)]
		if e&entryLiteral != 0 {
			buf >>= e & 63
			have -= uint(e & 63)
			dst[out] = byte(e >> 16)
			out++
			e = literals[buf&(1<<literalBits-1)]
			if e&entryLiteral != 0 {
				buf >>= e & 63
				have -= uint(e & 63)
				dst[out] = byte(e >> 16)
				out++
				e = literals[buf&(1<<literalBits-1)]
			}
		}
		if e&entrySub != 0 {
			buf >>= literalBits
			have -= literalBits
			e = literals[(uint64(e>>16)+buf&(1<<(e>>8&15)-1))&(1<<12-1)]
		}
		buf >>= e & 63
		have -= uint(e & 63)
		if e&entryLiteral != 0 {
			dst[out] = byte(e >> 16)
			out++
			continue
		}
		if e&entryOther != 0 {
			end = true
			if e&entryEnd == 0 {
				err = errInflate
			}
			break
		}
		extra := e >> 8 & 15
		length := int(e>>16) + int(buf&(1<<extra-1))
		buf >>= extra
		have -= uint(extra)

		buf |= binary.LittleEndian.Uint64(src[at:]) << (have & 63)
		at += int((63 - have) >> 3)
		have |= 56
		e = distances[buf&(1<<distanceBits-1)]
		if e&entrySub != 0 {
			buf >>= distanceBits
			have -= distanceBits
			e = distances[(uint64(e>>16)+buf&(1<<(e>>8&15)-1))&(1<<9-1)]
		}
		buf >>= e & 63
		have -= uint(e & 63)
		extra = e >> 8 & 15
		distance := int(e>>16) + int(buf&(1<<extra-1))
		buf >>= extra
		have -= uint(extra)
		if e&entryBad != 0 {
			err = errInflate
			break
		}
		if distance > out {
			err = errFarBehind
			break
		}
		repeat(dst, out, distance, length)
		out += length
	}
	f.at, f.buf, f.have = at, buf, have
	return out, end, err
}

// repeat copies length bytes from distance before out to out, byte by byte in
// effect, and may write up to seven bytes behind them.
func repeat(dst []byte, out, distance, length int) {
	from, to := dst[out-distance:], dst[out:]
	switch {
	case distance >= 8:
		for i := 0; i < length; i += 8 {
			binary.LittleEndian.PutUint64(to[i:], binary.LittleEndian.Uint64(from[i:]))
		}
	case distance == 1:
		word := uint64(from[0]) * 0x0101010101010101
		for i := 0; i < length; i += 8 {
			binary.LittleEndian.PutUint64(to[i:], word)
		}
	default:
		for i := range length {
			to[i] = from[i]
		}
	}
}

// slow decodes one symbol, near the end of the room or of the input.
func (f *inflater) slow(dst []byte, out int) (n int, end bool, err error) {
	f.refill()
	e := f.literals[f.buf&(1<<literalBits-1)]
	if e&entrySub != 0 {
		f.take(literalBits)
		e = f.literals[(uint64(e>>16)+f.buf&(1<<(e>>8&15)-1))&(1<<12-1)]
	}
	f.take(uint(e & 63))
	switch {
	case f.overrun():
		return out, true, errCutShort
	case e&entryEnd != 0:
		return out, true, nil
	case e&entryBad != 0:
		return out, true, errInflate
	case e&entryLiteral != 0:
		if out == len(dst) {
			return out, true, errTooLong
		}
		dst[out] = byte(e >> 16)
		return out + 1, false, nil
	}
	length := int(e>>16) + int(f.take(uint(e>>8&15)))
	f.refill()
	e = f.distances[f.buf&(1<<distanceBits-1)]
	if e&entrySub != 0 {
		f.take(distanceBits)
		e = f.distances[(uint64(e>>16)+f.buf&(1<<(e>>8&15)-1))&(1<<9-1)]
	}
	f.take(uint(e & 63))
	distance := int(e>>16) + int(f.take(uint(e>>8&15)))
	switch {
	case f.overrun():
		return out, true, errCutShort
	case e&entryBad != 0:
		return out, true, errInflate
	case distance > out:
		return out, true, errFarBehind
	case length > len(dst)-out:
		return out, true, errTooLong
	}
	for range length {
		dst[out] = dst[out-distance]
		out++
	}
	return out, false, nil
}
