//go:build cgo

// Package libzstd compresses with the C library through gozstd, which keeps
// compression and decompression contexts in pools.
package libzstd

import (
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/valyala/gozstd"
)

// Backend is the C library.
type Backend struct{}

// Name returns the implementation's name.
func (Backend) Name() string { return "libzstd" }

// NewEncoder returns an encoder that is safe for concurrent use.
func (Backend) NewEncoder(dict []byte, level int) (func(dst, src []byte) ([]byte, error), error) {
	if dict == nil {
		return func(dst, src []byte) ([]byte, error) {
			return guarded(func() []byte { return gozstd.CompressLevel(dst, src, level) })
		}, nil
	}
	digested, err := gozstd.NewCDictLevel(dict, level)
	if err != nil {
		return nil, err
	}
	encode := func(dst, src []byte) ([]byte, error) {
		return guarded(func() []byte { return gozstd.CompressDict(dst, src, digested) })
	}
	// gozstd does not say when libzstd refuses a dictionary; using it does.
	if _, err := encode(make([]byte, 0, 256), []byte("probe")); err != nil {
		return nil, errors.New("libzstd refuses the dictionary")
	}
	return encode, nil
}

// NewPartEncoder returns a compressor of frames whose blocks end with each
// part, for one goroutine. A finalizer frees what it holds.
func (Backend) NewPartEncoder(level int) (func(w io.Writer, parts [][]byte) error, error) {
	s := gozstd.NewWriterLevel(nil, level)
	return func(w io.Writer, parts [][]byte) (err error) {
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("libzstd: %v", v)
			}
		}()
		s.Reset(w, nil, level)
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

// guarded turns gozstd's panics into errors.
func guarded(f func() []byte) (out []byte, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("libzstd: %v", v)
		}
	}()
	return f(), nil
}

// NewDecoder returns a decoder that is safe for concurrent use.
func (Backend) NewDecoder(dict []byte) (func(dst, src []byte) (int, error), error) {
	if dict == nil {
		return func(dst, src []byte) (int, error) { return decode(dst, src, nil) }, nil
	}
	digested, err := gozstd.NewDDict(dict)
	if err != nil {
		return nil, err
	}
	return func(dst, src []byte) (int, error) {
		n, err := decode(dst, src, digested)
		// The dictionary is freed by a finalizer: not while C code reads it.
		runtime.KeepAlive(digested)
		return n, err
	}, nil
}

// decode fills dst in place. gozstd appends to what it is given and moves to
// larger memory when the frame needs more, so the result's place is checked;
// the limit keeps that larger memory from being allocated.
func decode(dst, src []byte, dict *gozstd.DDict) (int, error) {
	if len(dst) == 0 {
		return 0, errors.New("no room for the frame")
	}
	out, err := gozstd.DecompressDictLimited(dst[:0:len(dst)], src, dict, len(dst))
	if err != nil {
		return 0, err
	}
	if len(out) > 0 && &out[0] != &dst[0] {
		return 0, errors.New("the frame holds more than it declares")
	}
	return len(out), nil
}

// Train builds a dictionary of at most target bytes with zstd's default
// trainer.
func (Backend) Train(samples [][]byte, target int) ([]byte, error) {
	dict := gozstd.BuildDict(samples, target)
	if len(dict) == 0 {
		return nil, errors.New("libzstd found nothing to make a dictionary of")
	}
	return dict, nil
}
