package codec

import (
	"encoding/binary"
	"fmt"

	"loaderx/gopkg/errs"
)

const (
	frameMagic = 0xFD2FB528 // RFC 8878, 3.1.1
	dictMagic  = 0xEC30A437 // RFC 8878, 5
)

// frame is what a zstd frame's header says.
type frame struct {
	size   uint64
	sized  bool
	dictID uint32
}

// parseFrame reads a frame header, so that a frame which declares an absurd
// size is refused before a decoder may allocate for it.
func parseFrame(src []byte) (frame, error) {
	var f frame
	if len(src) < 5 || binary.LittleEndian.Uint32(src) != frameMagic {
		return f, fmt.Errorf("%d stored bytes are no zstd frame: %w", len(src), errs.ErrCorrupt)
	}
	descriptor := src[4]
	rest := src[5:]
	single := descriptor&0x20 != 0
	if !single {
		rest = rest[min(1, len(rest)):]
	}
	idBytes := [4]int{0, 1, 2, 4}[descriptor&3]
	sizeBytes := [4]int{0, 2, 4, 8}[descriptor>>6]
	if sizeBytes == 0 && single {
		sizeBytes = 1
	}
	if len(rest) < idBytes+sizeBytes {
		return f, fmt.Errorf("zstd frame header cut short: %w", errs.ErrCorrupt)
	}
	f.dictID = uint32(little(rest[:idBytes]))
	f.sized = sizeBytes > 0
	f.size = little(rest[idBytes : idBytes+sizeBytes])
	if sizeBytes == 2 {
		f.size += 256
	}
	return f, nil
}

func little(b []byte) uint64 {
	var v uint64
	for i, c := range b {
		v |= uint64(c) << (8 * i)
	}
	return v
}
