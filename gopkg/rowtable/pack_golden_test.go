package rowtable

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"loaderx/gopkg/quant"
)

var writeGolden = flag.Bool("write-golden", false, "write the golden tables that are missing")

// goldenRows are the rows of testdata/golden/README.md.
func goldenRows() []byte {
	noise := func(row, i int) byte {
		x := uint32(row*16+i+1) * 2654435761
		x = (x ^ x>>15) * 2246822519
		return byte(x >> 24)
	}
	var src []byte
	for row := range 80 {
		for i := range 16 {
			b := noise(row, i)
			switch {
			case row%10 == 7:
				b = 0xee
			case row/20 == 1 && i%2 > 0:
				b = noise(20, i)
			case row/20 == 2 && i%4 > 1:
				b = 0x3f
			case row/20 == 3 && i%4 > 0:
				b = noise(60, i)
			}
			src = append(src, b)
		}
	}
	return src
}

// goldens are the tables, the order in which they keep the rows, and the
// encodings that are in them.
var goldens = []struct {
	name      string
	opt       PackOptions
	order     []int64
	version   uint32
	stored    int64
	encodings []string
	kind      uint32
}{
	{"1_raw", PackOptions{Codec: Raw, BlockRows: 32, Version: 1}, nil, 1, 80, []string{"raw+none"}, 0},
	{"1_zlib_shared", PackOptions{Codec: Zlib, BlockRows: 20, Version: 1, Deduplicate: true}, nil, 1, 73, []string{"raw+none", "zlib+none"}, 0},
	{"2_xor_reversed", PackOptions{Codec: Zlib, Predictor: XOR, BlockRows: 20, Version: 2}, reversed(80), 2, 80, []string{"zlib+none", "zlib+xor"}, 0},
	{"3_zlib_auto", PackOptions{Codec: Zlib, Predictor: Auto, BlockRows: 20}, nil, 3, 80, []string{"raw+none", "zlib+shuffle"}, 0},
	{"3_zlib_xor_shuffle", PackOptions{Codec: Zlib, Predictor: XORShuffle, BlockRows: 20}, nil, 3, 80, []string{"zlib+xor+shuffle"}, 0},
	{"3_zstd_xor", PackOptions{Codec: Zstd, Predictor: XOR, BlockRows: 20}, nil, 3, 80, []string{"zstd+xor"}, 0},
	{"3_zstd_shared", PackOptions{Codec: Zstd, Predictor: Auto, BlockRows: 20, Deduplicate: true}, reversed(80), 3, 73, []string{"raw+none", "zstd+shuffle"}, 0},
	{"3_raw", PackOptions{Codec: Raw, BlockRows: 32}, nil, 3, 80, []string{"raw+none"}, 0},
	{"3_empty", PackOptions{Codec: Zstd}, nil, 3, 0, nil, 0},
	{"3_raw_fp32", PackOptions{Codec: Raw, BlockRows: 32, Kind: KindOf(quant.Float32)}, nil, 3, 80, []string{"raw+none"}, 1},
	{"3_zlib_int4", PackOptions{Codec: Zlib, Predictor: Auto, BlockRows: 20, Kind: KindOf(quant.Int4)}, nil, 3, 80, []string{"zlib+shuffle"}, 7},
}

func goldenFile(name string) string { return filepath.Join("testdata", "golden", name+".men") }

func TestGoldenTablesRead(t *testing.T) {
	for _, g := range goldens {
		t.Run(g.name, func(t *testing.T) {
			src := goldenRows()
			if g.stored == 0 {
				src = nil
			}
			r := reading(t, goldenFile(g.name))
			if !bytes.Equal(r.all(), src) || r.version != g.version || r.stored != g.stored || r.kind != g.kind {
				t.Fatalf("version %d, %d stored rows, kind %d, or other rows", r.version, r.stored, r.kind)
			}
			found := map[string]bool{}
			for i := range r.codecs {
				found[codecNames[r.codecs[i]]+"+"+predictorNames[r.predictors[i]]] = true
			}
			for _, e := range g.encodings {
				if !found[e] {
					t.Errorf("no block is %s: %v", e, found)
				}
			}
		})
	}
}

// What is written today is what was written when the golden tables were made;
// compressed bytes may change with their codecs.
func TestGoldenRawTablesAreWrittenAgain(t *testing.T) {
	for _, g := range goldens {
		if g.opt.Codec != Raw && g.stored > 0 {
			continue
		}
		path := filepath.Join(t.TempDir(), "table")
		packGolden(t, path, g.opt, g.order, g.stored)
		got, err := os.ReadFile(path)
		nofail(t, err)
		want, err := os.ReadFile(goldenFile(g.name))
		nofail(t, err)
		if !bytes.Equal(got, want) {
			t.Errorf("%s is written differently", g.name)
		}
	}
}

func packGolden(t *testing.T, path string, opt PackOptions, order []int64, stored int64) {
	t.Helper()
	opt.RowBytes = 16
	src := goldenRows()
	if stored == 0 {
		src = nil
	}
	_, err := Pack(t.Context(), src, path, opt, order, nil)
	nofail(t, err)
}

func TestWriteGoldenTables(t *testing.T) {
	if !*writeGolden {
		return
	}
	for _, g := range goldens {
		if _, err := os.Stat(goldenFile(g.name)); err == nil {
			continue
		}
		packGolden(t, goldenFile(g.name), g.opt, g.order, g.stored)
		nofail(t, os.Chmod(goldenFile(g.name), 0o644))
	}
}

// The dump in FORMAT.md is what is written.
func TestTheDumpInTheFormatIsATable(t *testing.T) {
	text, err := os.ReadFile("FORMAT.md")
	nofail(t, err)
	_, dump, _ := strings.Cut(string(text), "```\n")
	dump, _, _ = strings.Cut(dump, "```")
	var want []byte
	for line := range strings.Lines(dump) {
		place, rest, found := strings.Cut(line, ": ")
		if !found {
			continue
		}
		at, err := strconv.ParseInt(place, 16, 64)
		nofail(t, err)
		numbers, _, _ := strings.Cut(rest, "  ")
		b, err := hex.DecodeString(strings.ReplaceAll(numbers, " ", ""))
		nofail(t, err)
		want = append(append(want, make([]byte, int(at)-len(want))...), b...)
	}
	path := filepath.Join(t.TempDir(), "table")
	opt := PackOptions{RowBytes: 4, BlockRows: 2, Codec: Zlib, Deduplicate: true}
	_, err = Pack(t.Context(), []byte("abcdefghabcdijkl"), path, opt, nil, nil)
	nofail(t, err)
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes, the dump has %d: %v", len(got), len(want), err)
	}
}
