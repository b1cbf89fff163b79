// Package rowtable keeps immutable tables of fixed-width rows in MEFTNAT1
// files: rows are addressed by their original number for ever, read straight
// into the caller's memory, and may be many times larger than it. FORMAT.md
// describes the file.
package rowtable

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/bits"

	"loaderx/gopkg/errs"
)

// Layout of a table; FORMAT.md explains it.
const (
	magic = "MEFTNAT1"
	// MaxVersion is the newest version that this package reads.
	MaxVersion = 3

	headerBytes     = 128
	mapEntryBytes   = 8
	descriptorBytes = 32
	headerSumAt     = headerBytes - 4
	kindAt          = 96

	// MaxRowBytes is the widest row.
	MaxRowBytes = 1 << 30
	// MaxBlockBytes is the largest block, decoded.
	MaxBlockBytes = 1 << 28
)

// flags of a header.
const (
	// flagIdentity: there is no map, every row is stored at its own number.
	flagIdentity = 1 << iota
	// flagRaw: all blocks are raw and lie one behind the other.
	flagRaw
	flagsKnown = flagIdentity | flagRaw
)

// Codec says how a block's bytes are compressed.
type Codec uint8

// The codecs. The numbers are part of the format.
const (
	Raw  Codec = 0
	Zlib Codec = 1
	Zstd Codec = 2 // version 3
)

// Predictor says what was done to a block's rows before they were compressed.
type Predictor uint8

// The predictors. The numbers are part of the format.
const (
	// None leaves rows as they are.
	None Predictor = 0
	// XOR replaces each row but a block's first by its exclusive or with the
	// row before. Version 2.
	XOR Predictor = 1
	// Shuffle sorts a block's bytes by their place in an element: the first
	// bytes of all elements, then the second ones, and so on. Version 3.
	Shuffle Predictor = 2
	// XORShuffle is XOR and then Shuffle. Version 3.
	XORShuffle Predictor = 3
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header is the beginning of a file.
type header struct {
	version      uint32
	flags        uint32
	rows         int64 // original row numbers
	stored       int64 // rows in blocks: fewer when some are shared
	rowBytes     int64
	blocks       int64
	blockRows    int64 // in every block but the last
	elementBytes int64 // of Shuffle; 1 to 16, 0 where nothing is shuffled
	mapAt        int64 // 0 with flagIdentity
	descriptors  int64
	payloadAt    int64
	payloadBytes int64
	kind         RowKind // version 3
	indexSum     uint32  // of the map and the descriptors, as they lie in the file
}

// fileBytes is how long the file is.
func (h *header) fileBytes() int64 { return h.payloadAt + h.payloadBytes }

func (h *header) identity() bool { return h.flags&flagIdentity != 0 }

func (h *header) raw() bool { return h.flags&flagRaw != 0 }

// rowsIn returns the number of rows in a block.
func (h *header) rowsIn(block int64) int64 {
	return min(h.blockRows, h.stored-block*h.blockRows)
}

func (h *header) append(b []byte) []byte {
	at := len(b)
	le := binary.LittleEndian
	b = append(b, magic...)
	b = le.AppendUint32(b, h.version)
	b = le.AppendUint32(b, headerBytes)
	b = le.AppendUint32(b, h.flags)
	b = le.AppendUint32(b, uint32(h.elementBytes))
	for _, v := range []int64{
		h.rows, h.stored, h.rowBytes, h.blocks, h.blockRows, h.mapAt, h.descriptors, h.payloadAt, h.payloadBytes,
	} {
		b = le.AppendUint64(b, uint64(v))
	}
	b = le.AppendUint32(b, uint32(h.kind))
	b = append(b, make([]byte, headerSumAt-4-(len(b)-at))...)
	b = le.AppendUint32(b, h.indexSum)
	return le.AppendUint32(b, crc32.Checksum(b[at:], castagnoli))
}

// parseHeader reads a header and checks everything that does not need another
// byte of the file, which has size bytes. Errors lack the path.
func parseHeader(b []byte, size int64) (*header, error) {
	le := binary.LittleEndian
	if len(b) < headerBytes || string(b[:len(magic)]) != magic {
		return nil, fmt.Errorf("does not begin with a header of %d bytes and %q: %w", headerBytes, magic, errs.ErrFormat)
	}
	h := &header{version: le.Uint32(b[8:]), flags: le.Uint32(b[16:]), elementBytes: int64(le.Uint32(b[20:]))}
	if h.version < 1 || h.version > MaxVersion {
		return nil, fmt.Errorf("table of version %d, this build reads 1 to %d: %w", h.version, MaxVersion, errs.ErrFormat)
	}
	if crc32.Checksum(b[:headerSumAt], castagnoli) != le.Uint32(b[headerSumAt:]) || le.Uint32(b[12:]) != headerBytes {
		return nil, fmt.Errorf("its header is damaged: %w", errs.ErrCorrupt)
	}
	for i, field := range []*int64{
		&h.rows, &h.stored, &h.rowBytes, &h.blocks, &h.blockRows, &h.mapAt, &h.descriptors, &h.payloadAt, &h.payloadBytes,
	} {
		*field = int64(le.Uint64(b[24+8*i:]))
	}
	h.kind = RowKind(le.Uint32(b[kindAt:]))
	h.indexSum = le.Uint32(b[headerSumAt-4:])
	if h.version >= 3 && !h.kind.valid() {
		return nil, fmt.Errorf("rows of kind %d, which this build does not know: %w", uint32(h.kind), errs.ErrFormat)
	}
	return h, h.check(size)
}

// check returns ErrCorrupt unless every part lies in the file, behind the one
// before it.
func (h *header) check(size int64) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errs.ErrCorrupt)
	}
	switch {
	case h.rowBytes < 1 || h.rowBytes > MaxRowBytes:
		return bad("rows of %d bytes, want 1 to %d", h.rowBytes, MaxRowBytes)
	case h.rows < 0 || h.stored < 0 || h.stored > h.rows || (h.stored == 0) != (h.rows == 0):
		return bad("%d rows, of which %d are stored", h.rows, h.stored)
	case h.blockRows < 1 || h.blockRows > MaxBlockBytes/h.rowBytes && h.blockRows != 1:
		return bad("blocks of %d rows of %d bytes", h.blockRows, h.rowBytes)
	case h.blocks < 0 || h.blocks != h.stored/h.blockRows+min(1, h.stored%h.blockRows):
		return bad("%d blocks of %d rows for %d rows", h.blocks, h.blockRows, h.stored)
	case h.flags&^flagsKnown != 0 || h.identity() && (h.version < 3 || h.stored != h.rows):
		return bad("flags %#x", h.flags)
	case h.elementBytes < 0 || h.elementBytes > 16 || h.elementBytes > 0 && h.rowBytes%h.elementBytes != 0:
		return bad("elements of %d bytes in rows of %d", h.elementBytes, h.rowBytes)
	case h.kind != UnknownKind && h.version < 3:
		return bad("rows of kind %d in version %d, which has none", uint32(h.kind), h.version)
	}
	if err := h.kind.check(h.rowBytes); err != nil {
		return bad("%v", err)
	}
	end := int64(headerBytes)
	part := func(at, count, each int64) bool {
		hi, lo := bits.Mul64(uint64(count), uint64(each))
		if at < end || hi != 0 || lo > uint64(size) || at > size-int64(lo) {
			return false
		}
		end = at + int64(lo)
		return true
	}
	switch {
	case h.identity() && h.mapAt != 0, !h.identity() && !part(h.mapAt, h.rows, mapEntryBytes):
		return bad("a map of %d rows at byte %d of %d", h.rows, h.mapAt, size)
	case !part(h.descriptors, h.blocks, descriptorBytes):
		return bad("%d block descriptors at byte %d of %d", h.blocks, h.descriptors, size)
	case h.payloadBytes < 0 || !part(h.payloadAt, h.payloadBytes, 1) || end != size:
		return bad("%d bytes of blocks from byte %d of %d (truncated?)", h.payloadBytes, h.payloadAt, size)
	case h.raw() && (h.payloadBytes%h.rowBytes != 0 || h.payloadBytes/h.rowBytes != h.stored):
		return bad("%d bytes for %d raw rows of %d bytes", h.payloadBytes, h.stored, h.rowBytes)
	}
	return nil
}

// descriptor says where a block's bytes are and how they encode its rows.
type descriptor struct {
	at        int64 // from the beginning of the file
	bytes     int64 // as stored
	rows      int64
	codec     Codec
	predictor Predictor
	sum       uint32 // of the stored bytes; version 3
}

func (d *descriptor) append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, uint64(d.at))
	b = le.AppendUint64(b, uint64(d.bytes))
	b = le.AppendUint32(b, uint32(d.rows))
	b = append(b, byte(d.codec), byte(d.predictor), 0, 0)
	b = le.AppendUint32(b, d.sum)
	return le.AppendUint32(b, 0)
}

// descriptorOf parses and checks the descriptor of a block. Errors lack the path.
func (h *header) descriptorOf(block int64, b []byte) (descriptor, error) {
	le := binary.LittleEndian
	_ = b[descriptorBytes-1]
	d := descriptor{
		at: int64(le.Uint64(b)), bytes: int64(le.Uint64(b[8:])), rows: int64(le.Uint32(b[16:])),
		codec: Codec(b[20]), predictor: Predictor(b[21]), sum: le.Uint32(b[24:]),
	}
	size := h.rowsIn(block) * h.rowBytes
	switch {
	case d.at < h.payloadAt || d.bytes < 0 || d.bytes > h.payloadBytes || d.at-h.payloadAt > h.payloadBytes-d.bytes:
		return d, fmt.Errorf("block %d has %d bytes at %d, blocks are at %d to %d: %w",
			block, d.bytes, d.at, h.payloadAt, h.fileBytes(), errs.ErrCorrupt)
	case d.rows != h.rowsIn(block):
		return d, fmt.Errorf("block %d has %d rows, want %d: %w", block, d.rows, h.rowsIn(block), errs.ErrCorrupt)
	case d.codec > Zstd || d.predictor > XORShuffle || d.version() > h.version:
		return d, fmt.Errorf("block %d has codec %d and predictor %d in version %d: %w",
			block, d.codec, d.predictor, h.version, errs.ErrCorrupt)
	case d.codec == Raw && (d.predictor != None || d.bytes != size), d.codec != Raw && (h.raw() || d.bytes >= size):
		return d, fmt.Errorf("block %d of %d bytes is stored in %d with codec %d and predictor %d: %w",
			block, size, d.bytes, d.codec, d.predictor, errs.ErrCorrupt)
	case d.predictor >= Shuffle && h.elementBytes == 0:
		return d, fmt.Errorf("block %d is shuffled by elements of unknown size: %w", block, errs.ErrCorrupt)
	}
	return d, nil
}

// version is the lowest that knows the block's codec and predictor.
func (d *descriptor) version() uint32 {
	switch {
	case d.codec == Zstd || d.predictor >= Shuffle:
		return 3
	case d.predictor == XOR:
		return 2
	}
	return 1
}
