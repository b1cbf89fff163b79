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
	dictID uint32
}

// parseFrame reads a frame header and walks over the blocks. What it returns
// is one frame that declares its size and is all of src, as every writer makes
// them. Decoders meet anything else by streaming it, for which a hostile frame
// may demand a window of 128 MiB.
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
	if sizeBytes == 0 {
		return f, fmt.Errorf("zstd frame does not declare its size: %w", errs.ErrCorrupt)
	}
	f.dictID = uint32(little(rest[:idBytes]))
	f.size = little(rest[idBytes : idBytes+sizeBytes])
	if sizeBytes == 2 {
		f.size += 256
	}
	rest = rest[idBytes+sizeBytes:]
	checksum := 0
	if descriptor&4 != 0 {
		checksum = 4
	}
	for last := false; !last; {
		if len(rest) < 3 {
			return f, fmt.Errorf("zstd frame cut short: %w", errs.ErrCorrupt)
		}
		header := little(rest[:3])
		size := int(header >> 3)
		switch header >> 1 & 3 {
		case 1: // one byte, repeated
			size = 1
		case 3:
			return f, fmt.Errorf("zstd block of a reserved type: %w", errs.ErrCorrupt)
		}
		if rest = rest[3:]; len(rest) < size {
			return f, fmt.Errorf("zstd frame cut short: %w", errs.ErrCorrupt)
		}
		rest = rest[size:]
		last = header&1 != 0
	}
	if len(rest) != checksum {
		return f, fmt.Errorf("%d bytes behind the last block of a zstd frame, want %d: %w", len(rest), checksum, errs.ErrCorrupt)
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
