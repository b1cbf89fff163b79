package codec

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
)

// Limits of dictionaries and of what they are trained from. Below the minima
// zstd's trainer fails or makes a dictionary that helps nobody.
const (
	MinDictBytes   = 256
	MaxDictBytes   = 16 << 20
	MinSamples     = 7
	MinSampleBytes = 256
	// MaxSampleBytes bounds the sample: training holds it twice in memory.
	MaxSampleBytes = 1 << 30
)

// Dict is a zstd dictionary, ready to decode; encoders are made when first
// asked for, since digesting a dictionary for a high level is slow. It is safe
// for concurrent use and is freed by the garbage collector.
type Dict struct {
	content []byte
	id      uint32 // which frames made with the dictionary carry
	decode  Decoder

	mu       sync.Mutex
	encoders map[int]Encoder
}

// NewDict reads a dictionary as zstd trains them. It keeps content.
func NewDict(content []byte) (*Dict, error) {
	if len(content) < 8 || binary.LittleEndian.Uint32(content) != dictMagic {
		return nil, fmt.Errorf("%d bytes are no zstd dictionary: %w", len(content), errs.ErrCorrupt)
	}
	if len(content) > MaxDictBytes {
		return nil, fmt.Errorf("dictionary of %d bytes, at most %d: %w", len(content), MaxDictBytes, errs.ErrCorrupt)
	}
	decode, err := zstd.NewDecoder(content)
	if err != nil {
		return nil, fmt.Errorf("dictionary: %w: %v", errs.ErrCorrupt, err)
	}
	return &Dict{
		content:  content,
		id:       binary.LittleEndian.Uint32(content[4:]),
		decode:   decode,
		encoders: map[int]Encoder{},
	}, nil
}

// Bytes returns the dictionary's content, which must not be changed.
func (d *Dict) Bytes() []byte { return d.content }

func (d *Dict) encoder(level int) (Encoder, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if encode, ok := d.encoders[level]; ok {
		return encode, nil
	}
	encode, err := zstd.NewEncoder(d.content, level)
	if err != nil {
		return nil, fmt.Errorf("dictionary for level %d: %w: %v", level, errs.ErrDict, err)
	}
	d.encoders[level] = encode
	return encode, nil
}

// Train builds a dictionary of at most target bytes from samples: record i is
// the next sizes[i] bytes. Empty records are ignored. What can't be trained
// from is ErrDict with the minimum that is needed.
//
// Training can't be interrupted, so a cancelled call returns at once and
// leaves the work, on its own copy of the samples, to end unseen.
func Train(ctx context.Context, samples []byte, sizes []uint64, target int64) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("train dictionary: %w: %v", errs.ErrCancelled, err)
	}
	if target < MinDictBytes || target > MaxDictBytes {
		return nil, errs.ErrDict.Errorf("dictionary size %d: want %d to %d bytes", target, MinDictBytes, MaxDictBytes)
	}
	parts, err := split(samples, sizes)
	if err != nil {
		return nil, err
	}
	type result struct {
		dict []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		r.err = mem.Guard(func() (err error) {
			r.dict, err = zstd.Train(parts, int(target))
			return err
		})
		done <- r
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return nil, errs.ErrDict.Errorf("no dictionary of %d bytes from %d records of %d bytes in all (%v); "+
				"use more, larger or more varied records", target, len(parts), len(samples), r.err)
		}
		return r.dict, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("train dictionary: %w: %v", errs.ErrCancelled, ctx.Err())
	}
}

// split cuts a copy of samples into records.
func split(samples []byte, sizes []uint64) ([][]byte, error) {
	var total uint64
	full := 0
	for i, n := range sizes {
		if n > uint64(len(samples))-total {
			return nil, fmt.Errorf("samples: record %d of %d bytes leaves the buffer of %d bytes: %w",
				i, n, len(samples), errs.ErrArgument)
		}
		total += n
		if n > 0 {
			full++
		}
	}
	if total != uint64(len(samples)) {
		return nil, fmt.Errorf("samples: sizes add up to %d bytes, the buffer has %d: %w",
			total, len(samples), errs.ErrArgument)
	}
	if full < MinSamples || total < MinSampleBytes {
		return nil, errs.ErrDict.Errorf("a dictionary needs at least %d records that are not empty and %d bytes in all, got %d and %d",
			MinSamples, MinSampleBytes, full, total)
	}
	if total > MaxSampleBytes {
		return nil, errs.ErrDict.Errorf("samples of %d bytes, at most %d", total, MaxSampleBytes)
	}
	var own []byte
	if err := mem.Guard(func() error { own = append(own, samples...); return nil }); err != nil {
		return nil, fmt.Errorf("samples: %w", err)
	}
	parts := make([][]byte, 0, full)
	for _, n := range sizes {
		if n > 0 {
			parts = append(parts, own[:n:n])
		}
		own = own[n:]
	}
	return parts, nil
}
