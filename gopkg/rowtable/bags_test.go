package rowtable

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"loaderx/gopkg/bag"
	"loaderx/gopkg/errs"
	"loaderx/gopkg/quant"
)

// someKind returns a kind that rows of a width can be of; columns fill it.
func someKind(rng *rand.Rand, rowBytes int) (k quant.Kind, dim int) {
	for {
		k = quant.Kind(rng.IntN(int(quant.Int4) + 1))
		tail, _ := k.RowBytes(1)
		tail -= (k.Bits() + 7) / 8
		dim = (rowBytes - tail) * 8 / k.Bits()
		if width, err := k.RowBytes(dim); err == nil && width == rowBytes {
			return k, dim
		}
		if rowBytes == 1 { // of one byte nothing is
			return 0, 0
		}
	}
}

// someBags returns a request for random bags of rows, some empty and some long.
func someBags(rng *rand.Rand, k quant.Kind, dim, rows int) *BagRequest {
	r := &BagRequest{Kind: k, Dim: dim, Mode: bag.Mode(rng.IntN(3)), Accumulate: bag.Accumulate(rng.IntN(2)), IncludeLast: rng.IntN(2) == 0}
	sizes := []int{0, 0, 1, 2, 20, 300}
	if rng.IntN(4) == 0 && dim < 100 {
		sizes = append(sizes, 2*togetherLookups+3)
	}
	width, _ := k.RowBytes(dim)
	for range rng.IntN(60) {
		if len(r.IDs)*width > 4<<20 {
			break
		}
		r.Offsets = append(r.Offsets, int64(len(r.IDs)))
		r.IDs = append(r.IDs, someIDs(rng, sizes[rng.IntN(len(sizes))], rows)...)
	}
	if r.IncludeLast {
		r.Offsets = append(r.Offsets, int64(len(r.IDs)))
	}
	if rng.IntN(2) == 0 {
		r.HasPadding, r.Padding = true, int64(rng.IntN(rows))
		for i := range r.IDs {
			if rng.IntN(3) == 0 {
				r.IDs[i] = r.Padding
			}
		}
	}
	if r.Mode == bag.Sum && rng.IntN(2) == 0 {
		for range r.IDs {
			if k == quant.Float64 {
				r.Weights64 = append(r.Weights64, rng.NormFloat64())
			} else {
				r.Weights = append(r.Weights, float32(rng.NormFloat64()))
			}
		}
	}
	if k.Quantised() {
		width = 4 * dim
	}
	r.Out = bytes.Repeat([]byte{0xFF}, r.bags()*width)
	return r
}

// reduced is what the bags of a request are, one at a time from rows in memory.
func reduced(t *testing.T, rows []byte, r *BagRequest) []byte {
	t.Helper()
	weighted := r.Weights != nil || r.Weights64 != nil
	red, err := bag.New(bag.Spec{Kind: r.Kind, Dim: r.Dim, Mode: r.Mode, Accumulate: r.Accumulate, Weighted: weighted, PaddingIndex: r.HasPadding})
	sure(t, err)
	out := make([]byte, len(r.Out))
	for b := range r.bags() {
		end := int64(len(r.IDs))
		if b+1 < len(r.Offsets) {
			end = r.Offsets[b+1]
		}
		in := bag.Lookups{Base: rows}
		for i := r.Offsets[b]; i < end; i++ {
			if r.HasPadding && r.IDs[i] == r.Padding {
				continue
			}
			in.Places = append(in.Places, r.IDs[i]*red.RowBytes())
			if r.Weights != nil {
				in.Weights = append(in.Weights, r.Weights[i])
			}
			if r.Weights64 != nil {
				in.Weights64 = append(in.Weights64, r.Weights64[i])
			}
		}
		size := red.OutBytes()
		sure(t, red.Reduce(out[b*size:(b+1)*size], in, []int64{0, int64(len(in.Places))}))
	}
	return out
}

// equalNumbers compares numbers bit by bit, but takes all NaNs for the same.
func equalNumbers(k quant.Kind, a, b []byte) bool {
	if len(a) != len(b) {
		return false
	}
	if k.Quantised() {
		k = quant.Float32
	}
	size := k.Bits() / 8
	for i := 0; i < len(a); i += size {
		if !bytes.Equal(a[i:i+size], b[i:i+size]) && !(isNaN(k, a[i:]) && isNaN(k, b[i:])) {
			return false
		}
	}
	return true
}

func isNaN(k quant.Kind, b []byte) bool {
	if k == quant.Float64 {
		return math.IsNaN(math.Float64frombits(binary.LittleEndian.Uint64(b)))
	}
	var x [1]float32
	k.Unpack(x[:], b, 0)
	return x[0] != x[0]
}

func TestBagsAreThoseOfTheRowsOfAnyTable(t *testing.T) {
	rounds := 60
	if testing.Short() || raceEnabled {
		rounds = 30
	}
	for round := range rounds {
		rng := rand.New(rand.NewPCG(uint64(round), 11))
		n := 1 + rng.IntN(300)
		f := anyForge(rng, n)
		kind, dim := someKind(rng, f.rowBytes)
		if dim == 0 {
			continue
		}
		rows := someRows(rng, n, f.rowBytes)
		table := opened(t, f.make(t, rng, rows), someOptions(rng, 2*len(rows)))
		for range 3 {
			r := someBags(rng, kind, dim, n)
			expected := reduced(t, rows, r)
			sure(t, table.EmbeddingBag(t.Context(), r))
			if !equalNumbers(kind, r.Out, expected) {
				t.Fatalf("round %d: %s %d mode %d: wrong bags of %+v", round, kind, dim, r.Mode, f)
			}
			for i := range r.Out {
				r.Out[i] = 0xFF
			}
			for next := 0; next <= len(r.IDs); {
				var err error
				if next, err = table.EmbeddingBagPart(r, next, time.Duration(rng.IntN(2000))); err != nil {
					t.Fatal(err)
				}
			}
			if !equalNumbers(kind, r.Out, expected) {
				t.Fatalf("round %d: %s %d mode %d: wrong bags in parts of %+v", round, kind, dim, r.Mode, f)
			}
			checkFloats(t, table, rows, r)
		}
	}
}

func checkFloats(t *testing.T, table *Table, rows []byte, r *BagRequest) {
	t.Helper()
	expected := make([]float32, len(r.IDs)*r.Dim)
	sure(t, r.Kind.DecodeRows(expected, want(rows, int(table.RowBytes()), r.IDs), r.Dim))
	for _, budget := range []int{0, 1} {
		got := make([]float32, len(expected))
		f := &FloatRequest{IDs: r.IDs, Out: got, Kind: r.Kind, Dim: r.Dim}
		if budget == 0 {
			sure(t, table.GatherFloats(t.Context(), f))
		}
		for next := 0; budget > 0 && next < len(r.IDs); {
			var err error
			if next, err = table.GatherFloatsPart(f, next, 1); err != nil {
				t.Fatal(err)
			}
		}
		same := slices.EqualFunc(got, expected, func(a, b float32) bool {
			return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
		})
		if !same {
			t.Fatalf("wrong numbers of %s rows", r.Kind)
		}
	}
}

func TestBagsThatCanNotBeAreRefusedBeforeAnyWork(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 12))
	for _, codecs := range [][]Codec{{Raw}, {Zstd}} {
		f := forge{rowBytes: 16, blockRows: 4, codecs: codecs, predictors: []Predictor{None}}
		table := opened(t, f.make(t, rng, make([]byte, 160)), Options{})
		for _, c := range []struct {
			name   string
			change func(*BagRequest)
			kind   error
			text   string
		}{
			{"id", func(r *BagRequest) { r.IDs[2] = 10 }, errs.ErrIndex, "id 10 at position 2: want 0 to 9"},
			{"negative id", func(r *BagRequest) { r.IDs[3] = -1 }, errs.ErrIndex, "id -1 at position 3"},
			{"unsigned id", func(r *BagRequest) { r.IDs[3], r.Unsigned = -1, true }, errs.ErrIndex, "id 18446744073709551615 at position 3"},
			{"first offset", func(r *BagRequest) { r.Offsets[0] = 1 }, errs.ErrArgument, "first offset is 1"},
			{"falling", func(r *BagRequest) { r.Offsets[1] = 3 }, errs.ErrArgument, "offset 2 at position 2 follows 3"},
			{"overflow", func(r *BagRequest) { r.Offsets[1] = math.MinInt64 }, errs.ErrArgument, "follows 0"},
			{"too far", func(r *BagRequest) { r.Offsets[2] = 5 }, errs.ErrArgument, "last offset is 5 of 4"},
			{"not all", func(r *BagRequest) { r.IncludeLast, r.Out = true, r.Out[:32] }, errs.ErrArgument, "last offset is 2, want the number of ids, 4"},
			{"none", func(r *BagRequest) { r.Offsets, r.Out = nil, nil }, errs.ErrArgument, "no offsets for 4 ids"},
			{"none at all", func(r *BagRequest) { *r = BagRequest{Dim: 4, IncludeLast: true} }, errs.ErrArgument, "no offsets"},
			{"short out", func(r *BagRequest) { r.Out = r.Out[:47] }, errs.ErrBuffer, "47 bytes for 3 bags of 16"},
			{"kind", func(r *BagRequest) { r.Kind = 99 }, errs.ErrType, "kind 99"},
			{"dim", func(r *BagRequest) { r.Dim = 5 }, errs.ErrArgument, "5 columns of fp32 are 20 bytes, and rows have 16"},
			{"mode", func(r *BagRequest) { r.Mode = 3 }, errs.ErrArgument, "mode 3"},
			{"arithmetic", func(r *BagRequest) { r.Accumulate = 2 }, errs.ErrArgument, "arithmetic 2"},
			{"weights", func(r *BagRequest) { r.Weights = make([]float32, 3) }, errs.ErrArgument, "3 float32 and 0 float64 weights"},
			{"weights64", func(r *BagRequest) { r.Weights64 = make([]float64, 4) }, errs.ErrArgument, "want 4 and 0"},
			{"weighted mean", func(r *BagRequest) { r.Weights, r.Mode = make([]float32, 4), bag.Mean }, errs.ErrArgument, "weights"},
			{"padding", func(r *BagRequest) { r.HasPadding, r.Padding = true, 10 }, errs.ErrArgument, "padding index 10"},
			{"negative padding", func(r *BagRequest) { r.HasPadding, r.Padding = true, -1 }, errs.ErrArgument, "padding index -1"},
		} {
			out := bytes.Repeat([]byte{7}, 48)
			r := &BagRequest{IDs: []int64{0, 1, 2, 3}, Offsets: []int64{0, 2, 2}, Out: out, Dim: 4}
			c.change(r)
			err := table.EmbeddingBag(t.Context(), r)
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%s: %v", c.name, err)
			}
			if !bytes.Equal(out, bytes.Repeat([]byte{7}, 48)) {
				t.Errorf("%s: wrote before all was checked", c.name)
			}
		}
		for _, r := range []*FloatRequest{
			{IDs: []int64{1}, Out: make([]float32, 4), Dim: 5}, {IDs: []int64{1}, Out: make([]float32, 3), Dim: 4},
			{IDs: []int64{10}, Out: make([]float32, 4), Dim: 4}, {IDs: []int64{1}, Out: make([]float32, 4), Dim: 4, Kind: 77},
		} {
			if err := table.GatherFloats(t.Context(), r); err == nil {
				t.Errorf("decoded %+v", r)
			}
		}
	}
}

func TestLongBagsAreLeftToWhoCanBeCancelled(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 12))
	for _, codecs := range [][]Codec{{Raw}, {Zstd}} {
		f := forge{rowBytes: 4, blockRows: 4, codecs: codecs, predictors: []Predictor{None}}
		table := opened(t, f.make(t, rng, make([]byte, 400)), Options{ChunkRows: 1000})
		ids := make([]int64, 100_000)
		r := &BagRequest{IDs: ids, Offsets: []int64{0, longBag}, Out: make([]byte, 8), Dim: 1}
		if next, err := table.EmbeddingBagPart(r, 0, 0); err != nil || next != TooLong {
			t.Fatal(next, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := table.EmbeddingBag(ctx, r); !errors.Is(err, errs.ErrCancelled) {
			t.Fatal(err)
		}
		sure(t, table.EmbeddingBag(t.Context(), r))
	}
}

func TestBagsOfAFileThatWasShortenedAreFaults(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 12))
	for _, codecs := range [][]Codec{{Raw}, {Zstd}} {
		f := forge{rowBytes: 4096, blockRows: 4, codecs: codecs, predictors: []Predictor{None}}
		path := keep(t, f.make(t, rng, someRows(rng, 200, 4096)))
		table, err := Open(path, Options{})
		sure(t, err)
		defer table.Close()
		sure(t, os.Truncate(path, 4096))
		for _, n := range []int{3, 5000} {
			ids := someIDs(rng, n, 200)
			ids[0] = 199
			r := &BagRequest{IDs: ids, Offsets: []int64{0, 2}, Out: make([]byte, 8192), Dim: 1024}
			if err := table.EmbeddingBag(t.Context(), r); !errors.Is(err, errs.ErrFault) || strings.Count(err.Error(), path) != 1 {
				t.Fatal(err)
			}
			floats := &FloatRequest{IDs: ids, Out: make([]float32, n*1024), Dim: 1024}
			if err := table.GatherFloats(t.Context(), floats); !errors.Is(err, errs.ErrFault) {
				t.Fatal(err)
			}
		}
	}
}

func TestAChunkIsDecodedOnceAndPaddingIsNot(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 12))
	f := forge{rowBytes: 16, blockRows: 1, codecs: []Codec{Zlib}, predictors: []Predictor{None}}
	table := opened(t, f.make(t, rng, make([]byte, 1600)), Options{})
	ids := someIDs(rng, 3000, 100)
	r := &BagRequest{IDs: ids, Offsets: []int64{0, 1, 2000}, Out: make([]byte, 48), Dim: 4, HasPadding: true, Padding: ids[7]}
	sure(t, table.EmbeddingBag(t.Context(), r))
	st := table.Stats()
	if st.Queries != 1 || st.Rows != 3000 || st.LastBlocksDecoded > 99 {
		t.Fatalf("%+v", st)
	}
}
