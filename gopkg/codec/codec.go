// Package codec compresses and decompresses single records.
//
// Records are independent zstd frames, optionally against a dictionary that a
// store trains once. libzstd does the work when cgo is there; a build without
// cgo uses klauspost/compress, which reads and writes the same frames but
// compresses less at high levels. Everything here is safe for concurrent use.
package codec

import (
	"fmt"
	"io"

	"loaderx/gopkg/errs"
)

// Tag names how the stored bytes of a record are encoded. The numbers are part
// of the store's format.
type Tag uint8

const (
	// Raw records are stored as they are.
	Raw Tag = 0
	// Zstd records are one zstd frame.
	Zstd Tag = 1
	// ZstdDict records are one zstd frame made with the store's dictionary.
	ZstdDict Tag = 2
)

var names = [...]string{Raw: "raw", Zstd: "zstd", ZstdDict: "zstd_dict"}

// NumTags is how many codecs there are; their tags are below it.
const NumTags = len(names)

// Tags returns every codec of the package.
func Tags() []Tag { return []Tag{Raw, Zstd, ZstdDict} }

// Valid reports whether the tag names a codec of this package.
func (t Tag) Valid() bool { return int(t) < len(names) }

// String returns the codec's name, or its number when it has none.
func (t Tag) String() string {
	if t.Valid() {
		return names[t]
	}
	return fmt.Sprintf("codec(%d)", uint8(t))
}

// Levels that a caller may ask for; 0 stands for the codec's default.
const (
	MinLevel = 1
	MaxLevel = 22
)

// DefaultLevel returns the level used when none is asked for: 3 for zstd, and
// 19 with a dictionary, whose stores are written once and read often.
func (t Tag) DefaultLevel() int {
	switch t {
	case Zstd:
		return 3
	case ZstdDict:
		return 19
	}
	return 0
}

// Bound returns the capacity that a compressed record of n bytes never exceeds.
func Bound(n int) int {
	const small = 128 << 10
	bound := n + n>>8 + 64
	if n < small {
		bound += (small - n) >> 11
	}
	return bound
}

// Encoder appends the compressed form of src to dst, which must have room for
// Bound(len(src)) more bytes.
type Encoder func(dst, src []byte) ([]byte, error)

// Decoder decodes src into dst and returns the decoded size. It never writes
// outside dst; a frame that needs more room is an error.
type Decoder func(dst, src []byte) (int, error)

// backend is a zstd implementation.
type backend interface {
	// Name identifies the implementation in reports.
	Name() string
	// NewEncoder returns an encoder for a level, with a dictionary unless dict is nil.
	NewEncoder(dict []byte, level int) (func(dst, src []byte) ([]byte, error), error)
	// NewPartEncoder returns a compressor of frames whose blocks end with each
	// part, for one goroutine.
	NewPartEncoder(level int) (func(w io.Writer, parts [][]byte) error, error)
	// NewDecoder returns a decoder, with a dictionary unless dict is nil.
	NewDecoder(dict []byte) (func(dst, src []byte) (int, error), error)
	// Train builds a dictionary of at most target bytes.
	Train(samples [][]byte, target int) ([]byte, error)
}

// Backend names the zstd implementation of this build.
func Backend() string { return zstd.Name() }

// NewEncoder returns an encoder for zstd or zstd_dict records; dict is needed
// for the latter only. Level 0 means the codec's default.
func NewEncoder(tag Tag, level int, dict *Dict) (Encoder, error) {
	if level == 0 {
		level = tag.DefaultLevel()
	}
	if err := CheckLevel(level); err != nil && tag != Raw {
		return nil, err
	}
	switch {
	case tag == Zstd:
		encode, err := zstd.NewEncoder(nil, level)
		return encode, err
	case tag == ZstdDict && dict != nil:
		return dict.encoder(level)
	case tag == ZstdDict:
		return nil, errs.ErrDict.Errorf("codec %s needs a trained dictionary", tag)
	}
	return nil, fmt.Errorf("codec %s has no encoder: %w", tag, errs.ErrArgument)
}

// CheckLevel returns ErrArgument unless level is allowed; 0 is.
func CheckLevel(level int) error {
	if level != 0 && (level < MinLevel || level > MaxLevel) {
		return fmt.Errorf("level %d: want %d to %d, or 0 for the default: %w",
			level, MinLevel, MaxLevel, errs.ErrArgument)
	}
	return nil
}

// Decode decodes the frame src into dst, whose length must be exactly the
// record's. dict is nil for records without a dictionary. Any other size, and
// any damage that zstd notices, is ErrCorrupt; dst's content is then undefined.
//
// src must be the caller's own memory, not a mapped file: libzstd reads it,
// and a fault there would end the process.
func Decode(dst, src []byte, dict *Dict) error {
	frame, err := parseFrame(src)
	if err != nil {
		return err
	}
	if frame.size != uint64(len(dst)) {
		return fmt.Errorf("frame of %d bytes, want %d: %w", frame.size, len(dst), errs.ErrCorrupt)
	}
	decode := plain
	if dict != nil {
		if frame.dictID != dict.id {
			return fmt.Errorf("frame made with dictionary %d, the store's is %d: %w", frame.dictID, dict.id, errs.ErrCorrupt)
		}
		decode = dict.decode
	}
	n, err := decode(dst, src)
	if err != nil {
		return fmt.Errorf("%w: %v", errs.ErrCorrupt, err)
	}
	if n != len(dst) {
		return fmt.Errorf("decoded %d bytes, want %d: %w", n, len(dst), errs.ErrCorrupt)
	}
	return nil
}

var plain = must(zstd.NewDecoder(nil))

// must is for the decoder without a dictionary, which can't fail to be made.
func must(d Decoder, err error) Decoder {
	if err != nil {
		return func([]byte, []byte) (int, error) { return 0, err }
	}
	return d
}
