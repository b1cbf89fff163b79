package rowtable

import (
	"fmt"
	"hash/crc32"
	"sync"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
)

// block is a decoded block in a lane's memory, valid until the next one.
type block struct {
	rows     []byte // as they are, or shuffled
	size     int    // of the shuffled elements; 0 if they are not
	rowBytes int
}

// row returns one row, which is valid until the next call.
func (b *block) row(l *lane, i int64) (row []byte, err error) {
	if b.size == 0 {
		at := int(i) * b.rowBytes
		return b.rows[at : at+b.rowBytes], nil
	}
	if l.row, err = grow(l.row, int64(b.rowBytes)); err != nil {
		return nil, err
	}
	per := b.rowBytes / b.size
	unshuffle(l.row, b.rows, b.size, int(i)*per, per)
	return l.row, nil
}

// all returns all rows.
func (b *block) all(l *lane) (rows []byte, err error) {
	if b.size == 0 {
		return b.rows, nil
	}
	if l.plain, err = grow(l.plain, int64(len(b.rows))); err != nil {
		return nil, err
	}
	unshuffle(l.plain, b.rows, b.size, 0, len(b.rows)/b.size)
	return l.plain, nil
}

// descriptor returns the checked descriptor of a block.
func (t *Table) descriptor(number int64) (descriptor, error) {
	at := t.h.descriptors + number*descriptorBytes
	return t.h.descriptorOf(number, t.data[at:at+descriptorBytes])
}

// Most bytes that one stored byte can stand for: a deflate symbol of two bits
// for 258 bytes, a zstd block of four bytes for 128 KiB. What claims more is
// refused before memory is taken for it.
var expansion = [...]int64{Zlib: 1032, Zstd: 32 << 10}

// decode decodes a compressed block, of whose rows those up to last are
// needed. Errors lack the path.
func (t *Table) decode(l *lane, number int64, d *descriptor, last int64) (block, error) {
	rb := t.h.rowBytes
	size := d.rows * rb
	b := block{rowBytes: int(rb)}
	bad := func(err error) error { return fmt.Errorf("block %d: %w", number, err) }
	if (size-1)/expansion[d.codec] > d.bytes {
		return b, bad(fmt.Errorf("%d bytes can't hold %d: %w", d.bytes, size, errs.ErrCorrupt))
	}
	// A private copy: what is checked is what is decoded, and a fault on the
	// mapped file inside C code would end the process.
	var err error
	if l.packed, err = grow(l.packed, d.bytes); err != nil {
		return b, bad(err)
	}
	copy(l.packed, t.data[d.at:d.at+d.bytes])
	if t.h.version >= 3 && crc32.Checksum(l.packed, castagnoli) != d.sum {
		return b, bad(fmt.Errorf("its checksum does not fit: %w", errs.ErrCorrupt))
	}
	if l.decoded, err = grow(l.decoded, size); err != nil {
		return b, bad(err)
	}
	if d.codec == Zstd {
		err = codec.Decode(l.decoded, l.packed, nil)
	} else {
		// The table's checksum of the block covers what zlib's would.
		err = inflate(l.decoded, l.packed, t.h.version < 3)
	}
	if err != nil {
		return b, bad(err)
	}
	b.rows = l.decoded
	switch d.predictor {
	case Shuffle:
		b.size = int(t.h.elementBytes)
	case XORShuffle:
		b.size = int(t.h.elementBytes)
		if l.plain, err = grow(l.plain, size); err != nil {
			return b, bad(err)
		}
		unshuffle(l.plain, b.rows, b.size, 0, int((last+1)*rb)/b.size)
		b.rows, b.size = l.plain, 0
		undoXOR(b.rows[:(last+1)*rb], b.rowBytes)
	case XOR:
		undoXOR(b.rows[:(last+1)*rb], b.rowBytes)
	}
	return b, nil
}

var inflaters = sync.Pool{New: func() any { return new(inflater) }}

// inflate decodes a zlib stream that is all of src and must fill dst exactly;
// sum says whether to check the stream's own checksum.
func inflate(dst, src []byte, sum bool) error {
	f := inflaters.Get().(*inflater)
	err := f.inflate(dst, src, sum)
	inflaters.Put(f)
	if err != nil {
		return fmt.Errorf("%w: %w", errs.ErrCorrupt, err)
	}
	return nil
}
