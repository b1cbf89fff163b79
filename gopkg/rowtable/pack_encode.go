package rowtable

import (
	"bytes"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/adler32"
	"hash/crc32"

	"github.com/klauspost/compress/flate"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
)

// defaultZlibLevel is zlib's own.
const defaultZlibLevel = 6

// encoder compresses blocks. For one goroutine.
type encoder struct {
	opt        *PackOptions
	predictors []Predictor
	zstd       codec.Encoder
	planes     *codec.PartEncoder
	match      *flate.Writer // finds repetitions
	entropy    *flate.Writer // only codes frequent bytes shorter
	best, next bytes.Buffer
	segment    [2]bytes.Buffer
	xored      []byte
	shuffled   []byte
}

func newEncoder(opt *PackOptions) (*encoder, error) {
	e := &encoder{opt: opt, predictors: opt.predictors()}
	var err error
	switch opt.Codec {
	case Zlib:
		level := opt.Level
		if level == 0 {
			level = defaultZlibLevel
		}
		if e.match, err = flate.NewWriter(nil, level); err == nil {
			e.entropy, err = flate.NewWriter(nil, flate.HuffmanOnly)
		}
	case Zstd:
		if e.zstd, err = codec.NewEncoder(codec.Zstd, opt.Level, nil); err == nil {
			e.planes, err = codec.NewPartEncoder(opt.Level)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("begin to compress: %w: %w", errs.ErrInternal, err)
	}
	return e, nil
}

// encode fills b.stored with the blocks of b.src and b.blocks with what there
// is to say about them, with offsets into b.stored.
func (e *encoder) encode(b *batch) error {
	b.blocks, b.stored, b.out = b.blocks[:0], b.src, b.out[:0]
	blockBytes := int(e.opt.BlockRows * e.opt.RowBytes)
	at := int64(0)
	for src := b.src; len(src) > 0; {
		block := src[:min(blockBytes, len(src))]
		src = src[len(block):]
		d := descriptor{at: at, rows: int64(len(block)) / e.opt.RowBytes}
		stored := block
		if e.opt.Codec != Raw {
			var err error
			if d.codec, d.predictor, stored, err = e.smallest(block); err != nil {
				return err
			}
			b.out = append(b.out, stored...)
		}
		d.bytes = int64(len(stored))
		at += d.bytes
		if e.opt.Version >= 3 {
			d.sum = crc32.Checksum(stored, castagnoli)
		}
		b.blocks = append(b.blocks, d)
	}
	if e.opt.Codec != Raw {
		b.stored = b.out
	}
	return nil
}

// smallest returns the smallest form of a block, valid until the next call.
func (e *encoder) smallest(block []byte) (Codec, Predictor, []byte, error) {
	stored, how, with := block, None, Raw
	for _, p := range e.predictors {
		src := e.predict(block, p)
		for _, planes := range e.splits(len(src), p) {
			e.next.Reset()
			if err := e.compress(&e.next, src, planes); err != nil {
				return 0, 0, nil, err
			}
			if e.next.Len() < len(stored) {
				e.best, e.next = e.next, e.best
				stored, how, with = e.best.Bytes(), p, e.opt.Codec
			}
		}
	}
	return with, how, stored, nil
}

// predict returns the block's bytes behind a predictor.
func (e *encoder) predict(block []byte, p Predictor) []byte {
	if p == XOR || p == XORShuffle {
		// The predictors come in an order in which XOR is done once for both,
		// but doing it again costs nothing beside compressing.
		e.xored = append(e.xored[:0], block...)
		row := min(int(e.opt.RowBytes), len(block))
		subtle.XORBytes(e.xored[row:], block[row:], block[:len(block)-row])
		block = e.xored
	}
	if p >= Shuffle {
		e.shuffled = append(e.shuffled[:0], block...)
		shuffle(e.shuffled, block, int(e.opt.ElementBytes))
		block = e.shuffled
	}
	return block
}

// shuffle writes the first bytes of all elements of src to dst, then the
// second ones, and so on. Both have the same length, a multiple of element.
func shuffle(dst, src []byte, element int) {
	n := len(src) / element
	switch element {
	case 2:
		lo, hi := dst[:n], dst[n:2*n]
		for i := range lo {
			v := binary.LittleEndian.Uint16(src[2*i:])
			lo[i], hi[i] = byte(v), byte(v>>8)
		}
	case 4:
		a, b, c, d := dst[:n], dst[n:2*n], dst[2*n:3*n], dst[3*n:4*n]
		for i := range a {
			v := binary.LittleEndian.Uint32(src[4*i:])
			a[i], b[i], c[i], d[i] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
		}
	default:
		for j := range element {
			plane := dst[j*n : (j+1)*n]
			for i := range plane {
				plane[i] = src[i*element+j]
			}
		}
	}
}

// splits returns into how many planes to take n bytes behind a predictor apart,
// each to be compressed by itself: one that no code makes shorter is left as it
// is then, which is read the fastest, and does not spoil the code of another.
// Each costs a few bytes for a code of its own, so that with small ones both
// ways must be tried.
func (e *encoder) splits(n int, p Predictor) []int {
	planes := int(e.opt.ElementBytes)
	switch {
	case p < Shuffle || planes == 1 || n/planes < minPlane:
		return []int{1}
	case n/planes < surePlane:
		return []int{1, planes}
	}
	return []int{planes}
}

// The fewest bytes of a plane with which compressing it by itself may pay, and
// with which it does.
const (
	minPlane  = 64
	surePlane = 2 << 10
)

// compress appends src, which is behind a predictor and consists of planes, to
// out.
func (e *encoder) compress(out *bytes.Buffer, src []byte, planes int) error {
	if e.opt.Codec == Zlib {
		return e.deflate(out, src, planes)
	}
	out.Grow(codec.Bound(len(src)))
	var done []byte
	var err error
	if planes > 1 {
		done, err = e.planes.Encode(out.AvailableBuffer(), src, planes)
	} else {
		done, err = e.zstd(out.AvailableBuffer(), src)
	}
	if err != nil {
		return fmt.Errorf("compress a block of %d bytes: %w: %w", len(src), errs.ErrInternal, err)
	}
	_, _ = out.Write(done)
	return nil
}

// deflate appends src as a zlib stream. Each of the planes that src consists
// of is compressed by itself in the better of two ways. Embeddings hardly ever
// repeat, so that most of the gain is in short codes for the exponents: what
// looks for repetitions first finds none, and often gives up.
func (e *encoder) deflate(out *bytes.Buffer, src []byte, planes int) error {
	// RFC 1950: a window of 32 KiB, the default algorithm.
	_, _ = out.Write([]byte{0x78, 0x9c})
	size := len(src) / planes
	for i := range planes {
		plane := src[i*size : (i+1)*size]
		for k, w := range []*flate.Writer{e.entropy, e.match} {
			e.segment[k].Reset()
			w.Reset(&e.segment[k])
			_, err := w.Write(plane)
			if i == planes-1 {
				err = errors.Join(err, w.Close())
			} else {
				err = errors.Join(err, w.Flush())
			}
			if err != nil {
				return fmt.Errorf("compress a block of %d bytes: %w: %w", len(src), errs.ErrInternal, err)
			}
		}
		smaller := &e.segment[0]
		if e.segment[1].Len() < smaller.Len() {
			smaller = &e.segment[1]
		}
		_, _ = out.Write(smaller.Bytes())
	}
	_, _ = out.Write(binary.BigEndian.AppendUint32(nil, adler32.Checksum(src)))
	return nil
}
