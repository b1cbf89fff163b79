package rowtable

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/quant"
)

// kindNames are the names of FORMAT.md by their numbers, which never change.
var kindNames = map[RowKind]string{
	0: "unknown", 1: "fp32", 2: "fp64", 3: "fp16", 4: "bf16", 5: "int8", 6: "uint8_rowwise", 7: "int4_rowwise", 255: "other",
}

func TestKindsHaveTheNumbersOfTheFormat(t *testing.T) {
	text, err := os.ReadFile("FORMAT.md")
	nofail(t, err)
	for number, name := range kindNames {
		if got := number.String(); got != name {
			t.Errorf("kind %d is %s, want %s", number, got, name)
		}
		if row := fmt.Sprintf("| %d | %s |", number, name); !strings.Contains(string(text), row) {
			t.Errorf("FORMAT.md has no %q", row)
		}
	}
	for number := range RowKind(1000) {
		if _, known := kindNames[number]; number.valid() != known {
			t.Errorf("kind %d is valid: %v, in FORMAT.md: %v", number, number.valid(), known)
		}
	}
	for number, name := range kindNames {
		if number == UnknownKind {
			name = ""
		}
		if got, err := ParseRowKind(name); err != nil || got != number {
			t.Errorf("%q is kind %d: %v", name, got, err)
		}
	}
	if _, err := ParseRowKind("unknown"); !errors.Is(err, errs.ErrType) && !errors.Is(err, errs.ErrArgument) {
		t.Errorf("the name unknown: %v", err)
	}
}

// packKind writes 10 rows of zeros and returns the path.
func packKind(t *testing.T, opt PackOptions) (string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "t.men")
	_, err := Pack(t.Context(), make([]byte, 10*opt.RowBytes), path, opt, nil, nil)
	return path, err
}

func TestTheKindOfRowsIsRecorded(t *testing.T) {
	for number := range kindNames {
		path, err := packKind(t, PackOptions{RowBytes: 16, Codec: Zlib, Kind: number})
		nofail(t, err)
		table, err := Open(path, Options{Verify: true})
		nofail(t, err)
		want := `"dtype":null`
		if number != UnknownKind {
			want = fmt.Sprintf(`"dtype":%q`, kindNames[number])
		}
		text, err := json.Marshal(table.Info())
		nofail(t, err)
		if table.Kind() != number || !strings.Contains(string(text), want) || reading(t, path).kind != uint32(number) {
			t.Errorf("kind %d: opened as %s, %s", number, table.Kind(), text)
		}
		nofail(t, table.Close())
	}
}

func TestKindsThatCanNotBeRecordedAreRefused(t *testing.T) {
	for _, c := range []struct {
		opt  PackOptions
		want error
		text string
	}{
		{PackOptions{RowBytes: 12, Kind: KindOf(quant.Float64)}, errs.ErrArgument, "rows of 12 bytes are no fp64"},
		{PackOptions{RowBytes: 4, Kind: KindOf(quant.Int8)}, errs.ErrArgument, "rows of 4 bytes are no int8"},
		{PackOptions{RowBytes: 16, Kind: KindOf(quant.Float32), Version: 2}, errs.ErrArgument, "version is to be 2"},
		{PackOptions{RowBytes: 16, Kind: 8}, errs.ErrType, "unknown kind 8"},
		{PackOptions{RowBytes: 16, Kind: 1 << 31}, errs.ErrType, "unknown kind"},
	} {
		if _, err := packKind(t, c.opt); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: %v", c.opt, err)
		}
	}
}

func TestHeadersWithAKindThatCanNotBeAreRefused(t *testing.T) {
	for _, c := range []struct {
		version, kind uint32
		rowBytes      int64
		want          error
		text          string
	}{
		{3, 8, 16, errs.ErrFormat, "kind 8"},
		{3, 257, 16, errs.ErrFormat, "kind 257"},
		{3, 1<<32 - 1, 16, errs.ErrFormat, "kind 4294967295"},
		{3, 2, 12, errs.ErrCorrupt, "rows of 12 bytes are no fp64"},
		{3, 3, 7, errs.ErrCorrupt, "rows of 7 bytes are no fp16"},
		{3, 6, 8, errs.ErrCorrupt, "rows of 8 bytes are no uint8_rowwise"},
		{1, 1, 16, errs.ErrCorrupt, "kind 1 in version 1"},
		{2, 99, 16, errs.ErrCorrupt, "kind 99 in version 2"},
	} {
		opt := PackOptions{RowBytes: c.rowBytes, Codec: Zlib, Version: int(min(c.version, 3))}
		if c.version == 2 {
			opt.Predictor = XOR
		}
		path, err := packKind(t, opt)
		nofail(t, err)
		content, err := os.ReadFile(path)
		nofail(t, err)
		binary.LittleEndian.PutUint32(content[8:], c.version)
		binary.LittleEndian.PutUint32(content[kindAt:], c.kind)
		nofail(t, os.WriteFile(path, seal(content), 0o600))
		if _, err := Open(path, Options{}); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestRowsAreNotReadAsAnotherKindThanIsRecorded(t *testing.T) {
	for recorded := range kindNames {
		path, err := packKind(t, PackOptions{RowBytes: 16, Codec: Raw, Kind: recorded})
		nofail(t, err)
		table, err := Open(path, Options{})
		nofail(t, err)
		for kind := quant.Kind(0); kind.Valid(); kind++ {
			dim := kind.Dim(16)
			floats := &FloatRequest{IDs: []int64{1}, Out: make([]float32, dim), Kind: kind, Dim: dim}
			each := 4
			if !kind.Quantised() {
				each = kind.Bits() / 8
			}
			bags := &BagRequest{IDs: []int64{1}, Offsets: []int64{0}, Out: make([]byte, dim*each), Kind: kind, Dim: dim}
			for _, err := range []error{table.GatherFloats(t.Context(), floats), table.EmbeddingBag(t.Context(), bags)} {
				if recorded == UnknownKind || recorded == KindOf(kind) {
					nofail(t, err)
				} else if !errors.Is(err, errs.ErrType) || !strings.Contains(err.Error(), fmt.Sprintf("as %s, and they are recorded as %s", kind, recorded)) {
					t.Errorf("%s as %s: %v", recorded, kind, err)
				}
			}
		}
		nofail(t, table.GatherAll(t.Context(), []int64{1}, false, make([]byte, 16)))
		nofail(t, table.Close())
	}
}

func TestRawBlocksHaveNoPredictor(t *testing.T) {
	for _, p := range []Predictor{XOR, Shuffle, XORShuffle} {
		_, err := packKind(t, PackOptions{RowBytes: 16, Codec: Raw, Predictor: p})
		if !errors.Is(err, errs.ErrArgument) || !strings.Contains(err.Error(), "needs a codec") {
			t.Errorf("predictor %d: %v", p, err)
		}
	}
	_, err := packKind(t, PackOptions{RowBytes: 16, Codec: Raw, Predictor: Auto})
	nofail(t, err)
}
