package rowtable

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/quant"
)

// packedRows makes rows of one of several kinds: noise, floats, repetitions,
// slopes, small steps from row to row, and a mixture of all in long runs.
func packedRows(rng *rand.Rand, rows, rowBytes int64) []byte {
	b := make([]byte, rows*rowBytes)
	kind := rng.IntN(6)
	for row := range rows {
		line := b[row*rowBytes:][:rowBytes]
		what := kind
		if kind == 5 {
			what = int(row / 50 % 5)
		}
		for i := range line {
			switch what {
			case 0:
				line[i] = byte(rng.Uint32())
			case 1:
				if i%4 == 3 {
					line[i] = 0x3c + byte(rng.IntN(3))
				} else {
					line[i] = byte(rng.Uint32())
				}
			case 2:
				line[i] = byte(row/3) & 7
			case 3:
				line[i] = byte(i*7) + byte(row)
			case 4:
				if row == 0 || i%4 == 0 {
					line[i] = byte(rng.Uint32())
				} else {
					line[i] = b[(row-1)*rowBytes+int64(i)]
				}
			}
		}
	}
	return b
}

// packed writes rows in one of the ways that there are.
func packed(t *testing.T, path string, src []byte, opt PackOptions, order []int64, chunks func() int64) *Report {
	t.Helper()
	if chunks == nil {
		r, err := Pack(t.Context(), src, path, opt, order, nil)
		nofail(t, err)
		return r
	}
	w, err := NewWriter(path, opt)
	nofail(t, err)
	defer w.Abort()
	for len(src) > 0 {
		n := min(int64(len(src)), chunks()*opt.RowBytes)
		chunk := bytes.Clone(src[:n])
		nofail(t, w.Write(t.Context(), chunk))
		clear(chunk) // it is the caller's again
		src = src[n:]
	}
	r, err := w.Finish(t.Context())
	nofail(t, err)
	return r
}

func TestRandomTablesReadBack(t *testing.T) {
	rounds := 150
	if testing.Short() {
		rounds = 60
	}
	rng := rand.New(rand.NewPCG(20, 26))
	dir := t.TempDir()
	seen := map[string]int{}
	for round := range rounds {
		rowBytes := int64(1) << rng.IntN(14)
		if rng.IntN(2) == 0 {
			rowBytes = 1 + rng.Int64N(rowBytes)
		}
		rows := rng.Int64N(1 + (1<<20)/rowBytes/4)
		if rng.IntN(4) == 0 {
			rows = rng.Int64N(4)
		}
		rows = min(rows, 6000)
		opt := PackOptions{
			RowBytes: rowBytes, BlockRows: []int64{0, 1, 2, 7, 256, 1 << 40}[rng.IntN(6)], Codec: Codec(rng.IntN(3)),
			Predictor:   []Predictor{None, XOR, Shuffle, XORShuffle, Auto}[rng.IntN(5)],
			Deduplicate: rng.IntN(3) == 0, Threads: rng.IntN(4), SHA256: rng.IntN(2) == 0,
		}
		if opt.Codec != Zstd && (opt.Predictor < Shuffle || opt.Predictor == Auto) {
			opt.Version = rng.IntN(4)
			if opt.Version == 1 && opt.Predictor == XOR {
				opt.Version = 2
			}
		}
		if opt.Codec == Raw && opt.Predictor != Auto {
			opt.Predictor = None
		}
		if kind := quant.Kind(round % 7); opt.Version%3 == 0 && kind.Dim(rowBytes) > 0 {
			opt.Kind = KindOf(kind)
		}
		if rng.IntN(3) == 0 {
			opt.MaxBlockBytes = 1 + rng.Int64N(10_000)
		}
		src := packedRows(rng, rows, rowBytes)
		var order []int64
		var chunks func() int64
		switch rng.IntN(3) {
		case 0:
			for _, i := range rng.Perm(int(rows)) {
				order = append(order, int64(i))
			}
		case 1:
			chunks = func() int64 { return rng.Int64N(2 + rows/3) } // also none
			if rng.IntN(2) == 0 && rows > 0 {
				opt.Rows = rows
			}
		}
		path := filepath.Join(dir, "table")
		report := packed(t, path, src, opt, order, chunks)
		name := fmt.Sprintf("round %d: %d rows, order %v, chunks %v, %+v, %+v", round, rows, order != nil, chunks != nil, opt, *report)
		r := reading(t, path)
		if !bytes.Equal(r.all(), src) {
			t.Fatalf("%s: other rows", name)
		}
		checkReport(t, name, path, report, r)
		distinct := map[string]bool{}
		for row := range rows {
			distinct[string(src[row*rowBytes:][:rowBytes])] = true
		}
		if opt.Deduplicate && r.stored != int64(len(distinct)) || !opt.Deduplicate && r.stored != rows {
			t.Fatalf("%s: %d stored rows, %d are distinct", name, r.stored, len(distinct))
		}
		if natural := r.stored == rows && (order == nil || increasing(order)); (r.flags&1 != 0) != (natural && r.version == 3) {
			t.Fatalf("%s: flags %b", name, r.flags)
		}
		want := int64(DefaultBlockRows)
		if opt.BlockRows > 0 {
			want = opt.BlockRows
		}
		most := int64(MaxBlockBytes)
		if opt.MaxBlockBytes > 0 {
			most = opt.MaxBlockBytes
		}
		if r.blockRows != min(want, max(1, most/rowBytes)) || r.payloadAt%4096 != 0 {
			t.Fatalf("%s: blocks of %d rows at %d", name, r.blockRows, r.payloadAt)
		}
		for i, codec := range r.codecs {
			seen[codecNames[codec]+"+"+predictorNames[r.predictors[i]]]++
		}
		seen[fmt.Sprintf("version %d", r.version)]++
	}
	t.Log(seen)
	if len(seen) != 3+9 && !testing.Short() { // which tries too few to meet all
		t.Errorf("some kinds of blocks or versions were not tried: %v", seen)
	}
}

func checkReport(t *testing.T, name, path string, report *Report, r *reference) {
	t.Helper()
	file, err := os.ReadFile(path)
	nofail(t, err)
	blocks, size := int64(0), int64(0)
	for _, e := range report.Encodings {
		blocks, size = blocks+e.Blocks, size+e.Bytes
	}
	sum := sha256.Sum256(file)
	switch {
	case report.Rows != r.rows, report.StoredRows != r.stored, report.SharedRows != r.rows-r.stored,
		report.RowBytes != r.rowBytes, report.Blocks != r.blocks || blocks != r.blocks, report.BlockRows != r.blockRows,
		report.RawBytes != r.rows*r.rowBytes, report.FileBytes != int64(len(file)), report.BlockBytes != r.payloadBytes || size != r.payloadBytes,
		report.Version != int(r.version), report.Identity != (r.flags&1 != 0), report.ElementBytes != int64(r.element),
		report.SHA256 != "" && report.SHA256 != hex.EncodeToString(sum[:]):
		t.Fatalf("%s: the report does not fit", name)
	}
}

// The way in which rows come leaves no trace in the file.
func TestChunksAndArraysGiveTheSameFile(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	dir := t.TempDir()
	for _, dedup := range []bool{false, true} {
		for _, version := range []int{1, 3} {
			for _, rows := range []int64{0, 1, 300, 70_000} {
				src := packedRows(rng, rows, 100)
				opt := PackOptions{RowBytes: 100, BlockRows: 5, Codec: Zlib, Deduplicate: dedup, Version: version}
				if rows > 10_000 {
					opt.Codec = Raw // enough that blocks are moved within the file
				}
				first := packed(t, filepath.Join(dir, "array"), src, opt, nil, nil)
				want, err := os.ReadFile(filepath.Join(dir, "array"))
				nofail(t, err)
				for _, known := range []int64{0, rows} {
					opt.Rows = known
					opt.Threads = 1 + int(known&3)
					again := packed(t, filepath.Join(dir, "chunks"), src, opt, nil, func() int64 { return 777 })
					got, err := os.ReadFile(filepath.Join(dir, "chunks"))
					nofail(t, err)
					if !bytes.Equal(got, want) || fmt.Sprint(*first) != fmt.Sprint(*again) {
						at := 0
						for at < min(len(got), len(want)) && got[at] == want[at] {
							at++
						}
						t.Errorf("dedup %v, version %d, %d rows, announced %d: %d and %d bytes differ at %d; %+v, %+v",
							dedup, version, rows, known, len(got), len(want), at, *first, *again)
					}
				}
			}
		}
	}
}

// Hashes that always agree cost time and nothing else.
func TestRowsAreComparedAndNotHashesAlone(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	src := make([]byte, 3000*4)
	for i := range 3000 {
		src[4*i] = byte(rng.IntN(20))
		src[4*i+2] = byte(rng.IntN(20))
	}
	for _, chunks := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "table")
		w, err := NewWriter(path, PackOptions{RowBytes: 4, Deduplicate: true})
		nofail(t, err)
		w.share.hash = func(row []byte) uint64 { return uint64(row[0]) & 1 }
		if chunks {
			for i := 0; i < len(src); i += 1000 {
				nofail(t, w.Write(t.Context(), src[i:i+1000]))
			}
		} else {
			nofail(t, w.WriteFrom(t.Context(), bytes.NewReader(src), int64(len(src)), nil, nil))
		}
		report, err := w.Finish(t.Context())
		nofail(t, err)
		if r := reading(t, path); !bytes.Equal(r.all(), src) || report.StoredRows > 400 {
			t.Fatalf("%+v", *report)
		}
	}
}

func TestBadOptionsAndOrdersAreRefused(t *testing.T) {
	src := make([]byte, 64)
	good := PackOptions{RowBytes: 8}
	with := func(change func(o *PackOptions)) PackOptions {
		o := good
		change(&o)
		return o
	}
	cases := []struct {
		name  string
		opt   PackOptions
		order []int64
		text  string
	}{
		{"no width", with(func(o *PackOptions) { o.RowBytes = 0 }), nil, "rows of 0 bytes: want 1 to"},
		{"negative width", with(func(o *PackOptions) { o.RowBytes = -8 }), nil, "rows of -8 bytes"},
		{"huge width", with(func(o *PackOptions) { o.RowBytes = MaxRowBytes + 1 }), nil, "want 1 to 1073741824"},
		{"half a row", with(func(o *PackOptions) { o.RowBytes = 7 }), nil, "64 bytes, which are not whole rows of 7"},
		{"negative block", with(func(o *PackOptions) { o.BlockRows = -1 }), nil, "blocks of -1 rows"},
		{"negative bound", with(func(o *PackOptions) { o.MaxBlockBytes = -1 }), nil, "at most -1 bytes"},
		{"unknown codec", with(func(o *PackOptions) { o.Codec = 3 }), nil, "unknown codec 3"},
		{"unknown predictor", with(func(o *PackOptions) { o.Predictor = 4 }), nil, "unknown predictor 4"},
		{"wide element", with(func(o *PackOptions) { o.ElementBytes = 17 }), nil, "elements of 17 bytes"},
		{"element that does not fit", with(func(o *PackOptions) { o.ElementBytes = 3 }), nil, "elements of 3 bytes in rows of 8"},
		{"future version", with(func(o *PackOptions) { o.Version = 4 }), nil, "version 4: want 1 to 3"},
		{"zstd in version 2", with(func(o *PackOptions) { o.Codec, o.Version = Zstd, 2 }), nil, "zstd needs version 3"},
		{"shuffle in version 2", with(func(o *PackOptions) { o.Predictor, o.Version = Shuffle, 2 }), nil, "shuffle does not go with version 2"},
		{"xor in version 1", with(func(o *PackOptions) { o.Predictor, o.Version = XOR, 1 }), nil, "xor does not go with version 1"},
		{"level of raw", with(func(o *PackOptions) { o.Level = 1 }), nil, "level 1: raw blocks have none"},
		{"level of zlib", with(func(o *PackOptions) { o.Codec, o.Level = Zlib, 10 }), nil, "level 10: want 1 to 9"},
		{"level of zstd", with(func(o *PackOptions) { o.Codec, o.Level = Zstd, 23 }), nil, "level 23: want 1 to 22"},
		{"threads", with(func(o *PackOptions) { o.Threads = -1 }), nil, "-1 threads"},
		{"too many rows", with(func(o *PackOptions) { o.Rows = 1 << 60 }), nil, "want up to"},
		{"rows that do not come", with(func(o *PackOptions) { o.Rows = 9 }), nil, "8 rows were written, and 9 were announced"},
		{"short order", good, []int64{0, 1}, "names 2 rows, and there are 8"},
		{"row outside", good, []int64{0, 1, 2, 3, 4, 5, 6, 8}, "row 8 at place 7: want 0 to 7"},
		{"negative row", good, []int64{0, 1, 2, 3, 4, 5, 6, -1}, "row -1 at place 7"},
		{"row twice", good, []int64{0, 1, 2, 3, 4, 2, 6, 7}, "row 2 at places 2 and 5"},
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "table")
	nofail(t, os.WriteFile(path, []byte("old"), 0o600))
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := Pack(t.Context(), src, path, c.opt, c.order, nil)
			if !errors.Is(err, errs.ErrArgument) || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), path) {
				t.Errorf("err = %v", err)
			}
			only(t, dir, "table", "old")
		})
	}
}

// only fails unless the directory holds one file with that content.
func only(t *testing.T, dir, name, content string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	nofail(t, err)
	got, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil || string(got) != content || len(entries) != 1 {
		t.Fatalf("%d files, %d bytes, %v", len(entries), len(got), err)
	}
}

func TestAWriterThatFailedOrEndedTakesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "table")
	w, err := NewWriter(path, PackOptions{RowBytes: 4})
	nofail(t, err)
	if err := w.Write(t.Context(), make([]byte, 5)); !errors.Is(err, errs.ErrArgument) {
		t.Fatal(err)
	}
	if err := w.Write(t.Context(), make([]byte, 4)); !errors.Is(err, errs.ErrArgument) {
		t.Fatal(err)
	}
	if _, err := w.Finish(t.Context()); !errors.Is(err, errs.ErrArgument) {
		t.Fatal(err)
	}
	w, err = NewWriter(path, PackOptions{RowBytes: 4})
	nofail(t, err)
	nofail(t, w.Close())
	nofail(t, w.Close())
	if err := w.Write(t.Context(), make([]byte, 4)); !errors.Is(err, errs.ErrClosed) {
		t.Fatal(err)
	}
	w, err = NewWriter(path, PackOptions{RowBytes: 4})
	nofail(t, err)
	nofail(t, w.Write(t.Context(), make([]byte, 4)))
	if err := w.WriteFrom(t.Context(), bytes.NewReader(nil), 0, nil, nil); !errors.Is(err, errs.ErrArgument) {
		t.Fatal(err)
	}
	w.Abort()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Fatal("a table is there")
	}
}

func TestCancelledWorkLeavesTheOldTable(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "table")
	nofail(t, os.WriteFile(path, []byte("old"), 0o600))
	src := packedRows(rand.New(rand.NewPCG(1, 1)), 40_000, 128)
	for _, dedup := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		calls := 0
		_, err := Pack(ctx, src, path, PackOptions{RowBytes: 128, Codec: Zlib, Deduplicate: dedup}, nil, func(done, total int64) {
			if calls++; calls == 3 {
				cancel()
			}
			if total != int64(len(src)) || done > total {
				t.Errorf("progress %d of %d", done, total)
			}
		})
		cancel()
		if !errors.Is(err, errs.ErrCancelled) {
			t.Errorf("dedup %v: %v", dedup, err)
		}
		only(t, dir, "table", "old")
	}
	ctx, cancel := context.WithCancel(t.Context())
	w, err := NewWriter(path, PackOptions{RowBytes: 128, SHA256: true})
	nofail(t, err)
	nofail(t, w.Write(ctx, src))
	cancel()
	if _, err := w.Finish(ctx); !errors.Is(err, errs.ErrCancelled) {
		t.Error(err)
	}
	only(t, dir, "table", "old")
}

// Of numbers as a trained table has them only the exponents compress, so that
// each byte plane has to be compressed by itself, in small blocks as well.
func TestSmallBlocksOfNumbersCompressByPlanes(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	src := make([]byte, 0, 1000*128*4)
	for range cap(src) / 4 {
		src = binary.LittleEndian.AppendUint32(src, math.Float32bits(float32(rng.NormFloat64()*0.05)))
	}
	for _, c := range []struct {
		codec     Codec
		blockRows int64
		most      float64
	}{{Zstd, 2, 0.93}, {Zstd, 4, 0.9}, {Zstd, 64, 0.86}, {Zlib, 4, 0.92}, {Zlib, 64, 0.86}} {
		path := filepath.Join(t.TempDir(), "t.men")
		report, err := Pack(t.Context(), src, path, PackOptions{
			RowBytes: 512, BlockRows: c.blockRows, Codec: c.codec, Predictor: Shuffle, ElementBytes: 4,
		}, nil, nil)
		sure(t, err)
		if got := float64(report.BlockBytes) / float64(len(src)); got > c.most {
			t.Errorf("codec %d, blocks of %d rows: %.3f of the bytes, want at most %.3f", c.codec, c.blockRows, got, c.most)
		}
		content, err := os.ReadFile(path)
		sure(t, err)
		table := opened(t, content, Options{})
		ids := someIDs(rng, 500, 1000)
		out := make([]byte, len(ids)*512)
		sure(t, table.GatherAll(t.Context(), ids, false, out))
		if !bytes.Equal(out, want(src, 512, ids)) {
			t.Fatal("wrong rows")
		}
	}
}
