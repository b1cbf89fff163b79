package zrecord

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
)

// Limits of format 3.
const (
	// MaxRecordLen is the largest record in bytes.
	MaxRecordLen = 1 << 20
	// MaxRecords is the largest number of records in a store.
	MaxRecords = 1 << 24
	// MaxChunks is the largest number of chunk files in a store.
	MaxChunks = 4096
)

// Layout of format 3; FORMAT.md explains it.
const (
	metaName = "meta.zr"
	dictName = "dict.zr"
	redoName = "journal.zr"
	// chunkSuffix follows the number of a chunk in its file's name.
	chunkSuffix = ".zr"
	magic3      = "ZREC"
	version3    = 3
	header3     = 16
	entry3      = 16
	tagAt3      = 14 // of the codec in an entry
	metaSize3   = header3 + MaxRecords*entry3
	chunkSize   = 1 << 32
)

func chunkName(id int) string { return strconv.Itoa(id) + chunkSuffix }

// chunkID is the number of the chunk file with a name, -1 if it is none.
func chunkID(name string) int {
	number, _ := strings.CutSuffix(name, chunkSuffix)
	if id, err := strconv.Atoi(number); err == nil && name == chunkName(id) {
		return id
	}
	return -1
}

func chunkPath(store string, id int) string { return filepath.Join(store, chunkName(id)) }

// tail3 is the end of a store: where the next record goes, and its index.
type tail3 struct {
	chunk  int
	offset int64
	length int64
}

func (t tail3) header() []byte {
	b := append(make([]byte, 0, header3), magic3...)
	b = binary.LittleEndian.AppendUint16(b, version3)
	b = binary.LittleEndian.AppendUint16(b, uint16(t.chunk))
	b = binary.LittleEndian.AppendUint32(b, uint32(t.offset))
	return binary.LittleEndian.AppendUint32(b, uint32(t.length))
}

// held is how many bytes the chunk files hold before the end.
func (t tail3) held() int64 { return int64(t.chunk)*chunkSize + t.offset }

// parseHeader3 reads the first bytes of meta.zr. Errors lack the path.
func parseHeader3(b []byte) (tail3, error) {
	if len(b) < header3 || string(b[:4]) != magic3 {
		return tail3{}, fmt.Errorf("does not begin with %q: %w", magic3, errs.ErrFormat)
	}
	if v := binary.LittleEndian.Uint16(b[4:]); v != version3 {
		return tail3{}, errs.ErrFormat.Errorf("store of format %d, this build reads format %d", v, version3)
	}
	t := tail3{
		chunk:  int(binary.LittleEndian.Uint16(b[6:])),
		offset: int64(binary.LittleEndian.Uint32(b[8:])),
		length: int64(binary.LittleEndian.Uint32(b[12:])),
	}
	if t.chunk >= MaxChunks || t.length > MaxRecords {
		return tail3{}, fmt.Errorf("header says %d records and chunk %d, at most %d and %d: %w",
			t.length, t.chunk, MaxRecords, MaxChunks-1, errs.ErrFormat)
	}
	return t, nil
}

// entry3Fields is one decoded table entry.
type entry3Fields struct {
	offset, phys, size uint32
	chunk              uint16
	tag                codec.Tag
}

// end is where the stored bytes end in their chunk.
func (e entry3Fields) end() int64 { return int64(e.offset) + int64(e.phys) }

func appendEntry3(b []byte, e entry3Fields) []byte {
	b = binary.LittleEndian.AppendUint32(b, e.offset)
	b = binary.LittleEndian.AppendUint32(b, e.phys)
	b = binary.LittleEndian.AppendUint32(b, e.size)
	b = binary.LittleEndian.AppendUint16(b, e.chunk)
	return append(b, byte(e.tag), 0)
}

func parseEntry3(b []byte) entry3Fields {
	_ = b[15]
	place, shape := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
	return entry3Fields{
		offset: uint32(place),
		phys:   uint32(place >> 32),
		size:   uint32(shape),
		chunk:  uint16(shape >> 32),
		tag:    codec.Tag(shape >> 48),
	}
}

// check returns what is impossible about an entry, whatever the chunk holds.
func (e entry3Fields) check() error {
	switch {
	case !e.tag.Valid():
		return fmt.Errorf("unknown %s: %w", e.tag, errs.ErrCorrupt)
	case e.size == 0 || e.size > MaxRecordLen:
		return fmt.Errorf("length %d outside 1 to %d: %w", e.size, MaxRecordLen, errs.ErrCorrupt)
	case e.phys == 0 || e.phys > MaxRecordLen:
		return fmt.Errorf("stored length %d outside 1 to %d: %w", e.phys, MaxRecordLen, errs.ErrCorrupt)
	case e.tag == codec.Raw && e.phys != e.size:
		return fmt.Errorf("raw record of %d bytes stored in %d: %w", e.size, e.phys, errs.ErrCorrupt)
	case e.chunk >= MaxChunks:
		return fmt.Errorf("chunk %d, at most %d: %w", e.chunk, MaxChunks-1, errs.ErrCorrupt)
	}
	return nil
}
