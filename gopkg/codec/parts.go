package codec

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"

	"loaderx/gopkg/errs"
)

// PartEncoder compresses records whose parts have little in common, such as
// the byte planes of shuffled numbers: each part begins a block of its own and
// so has codes of its own, which zstd's lower levels would not give it. Frames
// are like those of an Encoder. For one goroutine.
type PartEncoder struct {
	encode func(w io.Writer, parts [][]byte) error
	buf    bytes.Buffer
	parts  [][]byte
}

// NewPartEncoder returns an encoder for zstd; level 0 means the default.
func NewPartEncoder(level int) (*PartEncoder, error) {
	if level == 0 {
		level = Zstd.DefaultLevel()
	}
	if err := CheckLevel(level); err != nil {
		return nil, err
	}
	encode, err := zstd.NewPartEncoder(level)
	return &PartEncoder{encode: encode}, err
}

// Encode appends the compressed form of src, which consists of equal parts and
// has fewer than 2^32 bytes, to dst.
func (e *PartEncoder) Encode(dst, src []byte, parts int) ([]byte, error) {
	e.buf.Reset()
	e.parts = e.parts[:0]
	size := len(src) / parts
	for i := range parts {
		e.parts = append(e.parts, src[i*size:(i+1)*size])
	}
	if err := e.encode(&e.buf, e.parts); err != nil {
		return dst, err
	}
	made := e.buf.Bytes()
	if f, err := parseFrame(made); err == nil && f.size == uint64(len(src)) {
		return append(dst, made...), nil
	}
	// A stream does not declare its size and wants a window. A frame of one
	// segment does with itself as the window, and its blocks are the same.
	const plain = 6 // magic, a descriptor without flags, the window
	if len(made) < plain || binary.LittleEndian.Uint32(made) != frameMagic || made[4] != 0 {
		return dst, fmt.Errorf("zstd began a stream in an unknown way: %w", errs.ErrInternal)
	}
	const oneSegmentSize32 = 0x20 | 2<<6
	start := len(dst)
	dst = append(dst, made[:4]...)
	dst = append(dst, oneSegmentSize32)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(src)))
	dst = append(dst, made[plain:]...)
	if f, err := parseFrame(dst[start:]); err != nil || f.size != uint64(len(src)) {
		return dst, fmt.Errorf("a zstd frame of %d bytes is wrong: %w: %v", len(src), errs.ErrInternal, err)
	}
	return dst, nil
}
