package rowtable

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"slices"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
)

// DefaultBlockRows is how many rows a block has when nothing else is asked for.
const DefaultBlockRows = 256

// Auto, in PackOptions, has every predictor tried that the version allows.
const Auto Predictor = 0xff

// PackOptions say how a table is written. The zero value of a field stands for
// its default.
type PackOptions struct {
	RowBytes int64 // of each row; has no default
	// BlockRows is how many rows a block has: DefaultBlockRows if it is 0. It
	// is lowered until a block has no more than MaxBlockBytes, but not below 1.
	BlockRows int64
	// MaxBlockBytes bounds a decoded block; 0 leaves the format's own limit.
	MaxBlockBytes int64
	// Codec compresses blocks; a block that no candidate makes smaller is raw.
	Codec Codec
	// Level of the codec: 1 to 9 for Zlib, 6 if it is 0; 1 to 22 for Zstd, 3 if
	// it is 0.
	Level int
	// Predictor is tried beside the plain codec on each block: Auto for all. It needs a codec
	// other than Raw, for which Auto stands for None.
	Predictor Predictor
	// ElementBytes is how many bytes an element has that Shuffle takes apart,
	// 1 to 16 and a divisor of RowBytes; if it is 0, the largest of 4, 2 and 1
	// that divides RowBytes.
	ElementBytes int64
	// Kind says what rows consist of, where that is known; it needs version 3.
	Kind RowKind
	// Version is the newest that the table may have, 0 for MaxVersion. Version
	// 3 has checksums, and no map where it can be left out; with 1 or 2 the
	// table has the lowest version that its blocks need.
	Version int
	// Rows is how many rows will be written, 0 if that is not known. Where it
	// is, nothing has to be moved at the end.
	Rows int64
	// Deduplicate stores equal rows once.
	Deduplicate bool
	// Threads is how many goroutines compress, 0 for GOMAXPROCS.
	Threads int
	// SHA256 has the report tell the finished file's hash, which costs reading
	// it once while it is synced.
	SHA256 bool
}

// Report tells what was written.
type Report struct {
	Rows         int64      `json:"rows"`
	StoredRows   int64      `json:"stored_rows"`
	SharedRows   int64      `json:"shared_rows"` // rows that are found at another one's place
	RowBytes     int64      `json:"row_bytes"`
	Blocks       int64      `json:"blocks"`
	BlockRows    int64      `json:"block_rows"`
	RawBytes     int64      `json:"raw_bytes"` // of all rows as they were given
	FileBytes    int64      `json:"file_bytes"`
	BlockBytes   int64      `json:"block_bytes"` // of all blocks as they are stored
	Version      int        `json:"version"`
	Identity     bool       `json:"identity"`      // there is no map
	Kind         RowKind    `json:"dtype"`         // of the rows, as it is recorded
	ElementBytes int64      `json:"element_bytes"` // of shuffled blocks, 0 if there are none
	Encodings    []Encoding `json:"encodings"`
	SHA256       string     `json:"sha256,omitempty"`
}

// Encoding tells about the blocks that have one codec and one predictor.
type Encoding struct {
	Codec     string `json:"codec"`
	Predictor string `json:"predictor"`
	Blocks    int64  `json:"blocks"`
	Bytes     int64  `json:"bytes"`     // as they are stored
	RawBytes  int64  `json:"raw_bytes"` // decoded
}

var (
	codecNames     = []string{Raw: "raw", Zlib: "zlib", Zstd: "zstd"}
	predictorNames = []string{None: "none", XOR: "xor", Shuffle: "shuffle", XORShuffle: "xor+shuffle"}
)

// ParseCodec returns the codec of a name.
func ParseCodec(name string) (Codec, error) {
	if i := slices.Index(codecNames, name); i >= 0 {
		return Codec(i), nil
	}
	return 0, fmt.Errorf("unknown codec %q: want one of %q: %w", name, codecNames, errs.ErrArgument)
}

// ParsePredictor returns the predictor of a name, which may be "auto".
func ParsePredictor(name string) (Predictor, error) {
	if name == "auto" {
		return Auto, nil
	}
	if i := slices.Index(predictorNames, name); i >= 0 {
		return Predictor(i), nil
	}
	return 0, fmt.Errorf("unknown predictor %q: want \"auto\" or one of %q: %w", name, predictorNames, errs.ErrArgument)
}

// settled returns the options with every default in its place, or ErrArgument.
func (o PackOptions) settled() (PackOptions, error) {
	bad := func(format string, args ...any) (PackOptions, error) {
		return o, fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errs.ErrArgument)
	}
	switch {
	case o.RowBytes < 1 || o.RowBytes > MaxRowBytes:
		return bad("rows of %d bytes: want 1 to %d", o.RowBytes, MaxRowBytes)
	case o.BlockRows < 0:
		return bad("blocks of %d rows: want 1 or more", o.BlockRows)
	case o.MaxBlockBytes < 0:
		return bad("blocks of at most %d bytes: want 1 or more", o.MaxBlockBytes)
	case o.Codec > Zstd:
		return bad("unknown codec %d", o.Codec)
	case o.Predictor > XORShuffle && o.Predictor != Auto:
		return bad("unknown predictor %d", o.Predictor)
	case o.ElementBytes < 0 || o.ElementBytes > 16 || o.ElementBytes > 0 && o.RowBytes%o.ElementBytes != 0:
		return bad("elements of %d bytes in rows of %d: want a divisor of up to 16", o.ElementBytes, o.RowBytes)
	case o.Version < 0 || o.Version > MaxVersion:
		return bad("version %d: want 1 to %d", o.Version, MaxVersion)
	case o.Rows < 0 || o.Rows > maxRows:
		return bad("%d rows: want up to %d", o.Rows, int64(maxRows))
	case o.Threads < 0:
		return bad("%d threads", o.Threads)
	case !o.Kind.valid():
		return o, fmt.Errorf("unknown kind %d of rows: %w", uint32(o.Kind), errs.ErrType)
	}
	if err := o.Kind.check(o.RowBytes); err != nil {
		return bad("%v", err)
	}
	if o.Version == 0 {
		o.Version = MaxVersion
	}
	switch {
	case o.Codec == Zstd && o.Version < 3:
		return bad("codec zstd needs version 3, and the version is to be %d", o.Version)
	case o.Predictor != Auto && (&descriptor{predictor: o.Predictor}).version() > uint32(o.Version):
		return bad("predictor %s does not go with version %d", predictorNames[o.Predictor], o.Version)
	case o.Kind != UnknownKind && o.Version < 3:
		return bad("the kind of rows, %s, is recorded from version 3 on, and the version is to be %d", o.Kind, o.Version)
	case o.Codec == Raw && o.Predictor != None && o.Predictor != Auto:
		return bad("predictor %s needs a codec, and blocks are to be raw: want zlib or zstd", predictorNames[o.Predictor])
	case o.Codec == Raw && o.Level != 0:
		return bad("level %d: raw blocks have none", o.Level)
	case o.Codec == Zlib && (o.Level < 0 || o.Level > 9):
		return bad("level %d: want 1 to 9 for zlib, or 0 for the default", o.Level)
	case o.Codec == Zstd:
		if err := codec.CheckLevel(o.Level); err != nil {
			return o, err
		}
	}
	if o.BlockRows == 0 {
		o.BlockRows = DefaultBlockRows
	}
	most := int64(MaxBlockBytes)
	if o.MaxBlockBytes > 0 {
		most = min(most, o.MaxBlockBytes)
	}
	o.BlockRows = min(o.BlockRows, max(1, most/o.RowBytes))
	if o.ElementBytes == 0 {
		o.ElementBytes = 1
		for _, n := range []int64{2, 4} {
			if o.RowBytes%n == 0 {
				o.ElementBytes = n
			}
		}
	}
	if o.Threads == 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	// A gigabyte of blocks under way is enough for anybody.
	const underWay = 1 << 30
	o.Threads = int(min(int64(o.Threads), max(1, underWay/(5*o.batchRows()*o.RowBytes))))
	return o, nil
}

// maxRows keeps sizes within 63 bits, whatever a caller announces.
const maxRows = 1 << 56

// batchBytes is about how many bytes a goroutine compresses at a time.
const batchBytes = 512 << 10

// batchRows is how many rows a goroutine compresses at a time: whole blocks.
func (o *PackOptions) batchRows() int64 {
	return o.BlockRows * max(1, batchBytes/(o.BlockRows*o.RowBytes))
}

// predictors returns what is tried on each block beside leaving it raw, the
// simplest first: among equally small ones the first is kept.
func (o *PackOptions) predictors() []Predictor {
	if o.Codec == Raw {
		return nil
	}
	try := []Predictor{None}
	for _, p := range []Predictor{XOR, Shuffle, XORShuffle} {
		useless := p >= Shuffle && o.ElementBytes == 1 || p != Shuffle && o.BlockRows == 1
		allowed := (&descriptor{predictor: p}).version() <= uint32(o.Version)
		if (o.Predictor == p || o.Predictor == Auto) && allowed && !useless {
			try = append(try, p)
		}
	}
	return try
}

// Pack writes the rows that lie back to back in src as a table at path. With
// order the table keeps row order[s] of src at place s; rows are still
// addressed by their number in src. src may be a mapped file. progress, which
// may be nil, is called now and then with the bytes of src that are done.
func Pack(ctx context.Context, src []byte, path string, opt PackOptions, order []int64, progress func(done, total int64)) (*Report, error) {
	return pack(ctx, path, opt, func(w *Writer) error {
		return w.WriteFrom(ctx, bytes.NewReader(src), int64(len(src)), order, progress)
	})
}

// PackFile does the same with the rows of a raw file, which may be larger than
// memory.
func PackFile(ctx context.Context, source, path string, opt PackOptions, order []int64, progress func(done, total int64)) (*Report, error) {
	return pack(ctx, path, opt, func(w *Writer) error {
		return w.WriteFile(ctx, source, order, progress)
	})
}

func pack(ctx context.Context, path string, opt PackOptions, write func(*Writer) error) (*Report, error) {
	w, err := NewWriter(path, opt)
	if err != nil {
		return nil, err
	}
	defer w.Abort()
	if err := write(w); err != nil {
		return nil, err
	}
	return w.Finish(ctx)
}
