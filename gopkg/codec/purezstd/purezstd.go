// Package purezstd compresses in pure Go with klauspost/compress: for builds
// without cgo, and as the second, independent decoder in tests.
package purezstd

import (
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/klauspost/compress/dict"
	"github.com/klauspost/compress/zstd"
)

// maxRecord bounds what a decoder may allocate for one frame.
const maxRecord = 1 << 32

// Backend is klauspost/compress.
type Backend struct{}

// Name returns the implementation's name.
func (Backend) Name() string { return "klauspost" }

// NewEncoder returns an encoder that is safe for concurrent use.
func (Backend) NewEncoder(content []byte, level int) (func(dst, src []byte) ([]byte, error), error) {
	options := []zstd.EOption{
		zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(level)),
		zstd.WithEncoderCRC(false),
		// One segment: the decoder needs no window, and the size is declared.
		zstd.WithSingleSegment(true),
		zstd.WithEncoderConcurrency(runtime.GOMAXPROCS(0)),
	}
	if content != nil {
		options = append(options, zstd.WithEncoderDict(content))
	}
	encoder, err := zstd.NewWriter(nil, options...)
	if err != nil {
		return nil, err
	}
	return func(dst, src []byte) ([]byte, error) { return encoder.EncodeAll(src, dst), nil }, nil
}

// NewPartEncoder returns a compressor of frames whose blocks end with each
// part, for one goroutine.
func (Backend) NewPartEncoder(level int) (func(w io.Writer, parts [][]byte) error, error) {
	s, err := zstd.NewWriter(nil,
		zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(level)),
		zstd.WithEncoderCRC(false),
		zstd.WithEncoderConcurrency(1),
	)
	if err != nil {
		return nil, err
	}
	return func(w io.Writer, parts [][]byte) error {
		s.Reset(w)
		for i, part := range parts {
			if _, err := s.Write(part); err != nil {
				return err
			}
			if i < len(parts)-1 {
				if err := s.Flush(); err != nil {
					return err
				}
			}
		}
		return s.Close()
	}, nil
}

// NewDecoder returns a decoder that is safe for concurrent use.
func (Backend) NewDecoder(content []byte) (func(dst, src []byte) (int, error), error) {
	options := []zstd.DOption{
		zstd.WithDecoderConcurrency(0),
		zstd.WithDecoderMaxMemory(maxRecord),
		zstd.WithDecodeAllCapLimit(true),
	}
	if content != nil {
		options = append(options, zstd.WithDecoderDicts(content))
	}
	decoder, err := zstd.NewReader(nil, options...)
	if err != nil {
		return nil, err
	}
	return func(dst, src []byte) (int, error) {
		if len(dst) == 0 {
			return 0, errors.New("no room for the frame")
		}
		out, err := decoder.DecodeAll(src, dst[:0:len(dst)])
		if err != nil {
			return 0, err
		}
		if len(out) > 0 && &out[0] != &dst[0] {
			return 0, errors.New("the frame holds more than it declares")
		}
		return len(out), nil
	}, nil
}

// Train builds a dictionary of at most target bytes.
func (Backend) Train(samples [][]byte, target int) (content []byte, err error) {
	// The builder panics on some degenerate samples.
	defer func() {
		if v := recover(); v != nil {
			content, err = nil, fmt.Errorf("klauspost: %v", v)
		}
	}()
	return dict.BuildZstdDict(samples, dict.Options{
		MaxDictSize: target,
		HashBytes:   6,
		ZstdLevel:   zstd.SpeedDefault,
	})
}
