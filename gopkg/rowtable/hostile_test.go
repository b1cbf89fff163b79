package rowtable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/quant"
)

// known are the kinds of errors that a damaged file may lead to.
var known = []error{errs.ErrCorrupt, errs.ErrFormat, errs.ErrIndex, errs.ErrFault}

func allowed(err error) bool {
	if err == nil {
		return true
	}
	for _, k := range known {
		if errors.Is(err, k) {
			return true
		}
	}
	return false
}

// exercise does with a file whatever one can do.
func exercise(t *testing.T, path string) {
	t.Helper()
	for i, opt := range []Options{{}, {CacheBytes: 1 << 16, CachePolicy: Rows}, {CacheBytes: 1 << 16}} {
		table, err := Open(path, opt)
		if err != nil {
			if !allowed(err) || !strings.Contains(err.Error(), path) {
				t.Fatal(err)
			}
			return
		}
		w := table.RowBytes()
		n := min(table.Rows(), 200, 1<<22/w)
		ids := make([]int64, 0, 2*n)
		for i := range n {
			ids = append(ids, i, table.Rows()-1-i)
		}
		out := make([]byte, int64(len(ids))*w+1)
		out[len(out)-1] = 0xAB
		for range 2 {
			if _, err := table.Gather(ids, false, out[:len(out)-1], 0, 0); !allowed(err) || err != nil && !strings.Contains(err.Error(), path) {
				t.Fatal(err)
			}
		}
		for j := 0; j < len(ids); j += 17 {
			if _, err := table.Gather(ids[j:j+1], false, out[:w], 0, 0); !allowed(err) {
				t.Fatal(err)
			}
		}
		if out[len(out)-1] != 0xAB {
			t.Fatal("wrote behind the rows")
		}
		kind, known := table.Kind().Kind()
		if !known {
			kind = quant.Int8
		}
		if dim := kind.Dim(w); known && dim < 1 {
			t.Fatalf("%s rows of %d bytes", kind, w)
		} else if dim > 0 && len(ids) > 0 {
			each := 4
			if !kind.Quantised() {
				each = kind.Bits() / 8
			}
			r := &BagRequest{IDs: ids, Offsets: []int64{0, n}, Out: make([]byte, 2*dim*each), Kind: kind, Dim: dim}
			if err := table.EmbeddingBag(t.Context(), r); !allowed(err) || err != nil && !strings.Contains(err.Error(), path) {
				t.Fatal(err)
			}
		}
		sure(t, table.Prefetch(ids, false))
		if i == 0 {
			_, err := table.Verify(t.Context(), func(block int64, err error) {
				if !allowed(err) || block < IndexFault || block >= table.Info().Blocks {
					t.Errorf("block %d: %v", block, err)
				}
			}, nil)
			sure(t, err)
		}
		sure(t, table.Close())
	}
}

// seal gives a file the header checksum that fits, so that what is wrong with
// it must be found otherwise.
func seal(b []byte) []byte {
	if len(b) >= headerBytes {
		binary.LittleEndian.PutUint32(b[headerSumAt:], crc32.Checksum(b[:headerSumAt], castagnoli))
	}
	return b
}

func TestMutatedFilesGiveErrorsOrRows(t *testing.T) {
	rounds := 3000
	if testing.Short() || raceEnabled {
		rounds = 300
	}
	path := keep(t, nil)
	for round := range rounds {
		rng := rand.New(rand.NewPCG(uint64(round), 10))
		n := 1 + rng.IntN(60)
		f := anyForge(rng, n)
		f.rowBytes, f.anyKind = max(1, f.rowBytes%200)*f.element, true
		content := f.make(t, rng, someRows(rng, n, f.rowBytes))
		for range 1 + rng.IntN(4) {
			at := rng.IntN(len(content))
			if rng.IntN(2) == 0 {
				at = rng.IntN(min(len(content), headerBytes+n*8+200))
			}
			content[at] ^= byte(1 << rng.IntN(8))
		}
		if rng.IntN(8) == 0 {
			content = content[:rng.IntN(len(content))]
		}
		if rng.IntN(4) > 0 {
			seal(content)
		}
		sure(t, os.WriteFile(path, content, 0o600))
		exercise(t, path)
		if t.Failed() {
			t.Fatalf("round %d", round)
		}
	}
}

func TestEveryTruncationIsRefused(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 11))
	f := forge{rowBytes: 16, blockRows: 4, codecs: []Codec{Zlib}, predictors: []Predictor{XOR}, mapped: true}
	content := f.make(t, rng, someRows(rng, 30, 16))
	path := keep(t, nil)
	for n := range content {
		sure(t, os.WriteFile(path, content[:n], 0o600))
		if _, err := Open(path, Options{}); !errors.Is(err, errs.ErrFormat) && !errors.Is(err, errs.ErrCorrupt) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
}

func TestHostileHeadersAreRefusedBeforeMemoryIsTaken(t *testing.T) {
	rng := rand.New(rand.NewPCG(12, 12))
	f := forge{rowBytes: 16, blockRows: 4, codecs: []Codec{Zlib}, predictors: []Predictor{None}, mapped: true}
	content := f.make(t, rng, someRows(rng, 30, 16))
	path := keep(t, nil)
	for _, at := range []int{16, 20, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96} {
		for _, v := range []uint64{0, 1, 1 << 20, 1 << 31, 1 << 32, 1 << 40, 1<<60 + 1, 1<<63 - 1, 1 << 63, 1<<64 - 1} {
			bad := bytes.Clone(content)
			if at < 24 || at == kindAt {
				binary.LittleEndian.PutUint32(bad[at:], uint32(v))
			} else {
				binary.LittleEndian.PutUint64(bad[at:], v)
			}
			sure(t, os.WriteFile(path, seal(bad), 0o600))
			exercise(t, path)
		}
	}
}

// bomb is a table of one block that claims to be of size bytes.
func bomb(t *testing.T, size int, content []byte, c Codec) []byte {
	f := forge{rowBytes: 1 << 10, blockRows: size >> 10}
	h := header{version: 3, flags: flagIdentity, rows: int64(size >> 10), stored: int64(size >> 10), rowBytes: 1 << 10, blockRows: int64(size >> 10), blocks: 1}
	d := descriptor{bytes: int64(len(content)), rows: int64(size >> 10), codec: c, sum: crc32.Checksum(content, castagnoli)}
	return f.assemble(h, nil, []descriptor{d}, content)
}

func TestBlocksThatHoldMoreOrLessThanTheirRowsAreRefused(t *testing.T) {
	big := make([]byte, 8<<20)
	var before, after runtime.MemStats
	for _, c := range []Codec{Zlib, Zstd} {
		packed := compress(t, big, c)
		for name, content := range map[string][]byte{
			"too many bytes":     bomb(t, 1<<20, packed, c),
			"too few bytes":      bomb(t, 1<<20, compress(t, make([]byte, 1<<19), c), c),
			"trailing bytes":     bomb(t, 1<<20, append(compress(t, make([]byte, 1<<20), c), 0), c),
			"cut short":          bomb(t, 1<<20, compress(t, make([]byte, 1<<20), c)[:20], c),
			"an empty block":     bomb(t, 1<<20, nil, c),
			"more than can hold": bomb(t, MaxBlockBytes, []byte("abcdef"), c),
		} {
			t.Run(fmt.Sprint(name, c), func(t *testing.T) {
				table := opened(t, content, Options{})
				runtime.ReadMemStats(&before)
				_, err := table.Gather([]int64{0, 7}, false, make([]byte, 2048), 0, 0)
				runtime.ReadMemStats(&after)
				if !errors.Is(err, errs.ErrCorrupt) || !strings.Contains(err.Error(), "block 0") {
					t.Fatal(err)
				}
				if taken := after.TotalAlloc - before.TotalAlloc; taken > 24<<20 {
					t.Fatalf("took %d bytes", taken)
				}
			})
		}
	}
}

func TestOverlappingBlocksAndMapEntriesOutsideAreReported(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 13))
	f := forge{rowBytes: 16, blockRows: 4, codecs: []Codec{Raw}, mapped: true}
	rows := someRows(rng, 30, 16)
	content := f.make(t, rng, rows)
	le := binary.LittleEndian

	outside := bytes.Clone(content)
	le.PutUint64(outside[headerBytes+8*7:], 30)
	table := opened(t, outside, Options{})
	_, err := table.Gather([]int64{3, 7}, false, make([]byte, 32), 0, 0)
	if !errors.Is(err, errs.ErrCorrupt) || !strings.Contains(err.Error(), "row 7 is said to be stored row 30 of 30") {
		t.Fatal(err)
	}
	sure(t, table.GatherAll(t.Context(), []int64{3, 8}, false, make([]byte, 32)))

	le.PutUint32(content[16:], 0) // not known to be raw throughout
	at := headerBytes + 30*8 + 3*descriptorBytes
	le.PutUint64(content[at:], le.Uint64(content[at-descriptorBytes:])+16)
	table = opened(t, seal(content), Options{})
	var found []int64
	bad, err := table.Verify(t.Context(), func(block int64, err error) { found = append(found, block) }, nil)
	sure(t, err)
	if bad != 2 || !strings.Contains(fmt.Sprint(found), "3") || !strings.Contains(fmt.Sprint(found), "-1") {
		t.Fatalf("found %v", found)
	}
	if _, err := Open(keep(t, content), Options{Verify: true}); !errors.Is(err, errs.ErrCorrupt) {
		t.Fatal(err)
	}
}

func TestAFileShortenedUnderGathersIsAFault(t *testing.T) {
	rng := rand.New(rand.NewPCG(14, 14))
	for _, codecs := range [][]Codec{{Raw}, {Zlib}, {Zstd}} {
		f := forge{rowBytes: 1024, blockRows: 16, codecs: codecs, predictors: []Predictor{None}, mapped: true}
		content := f.make(t, rng, someRows(rng, 3000, 1024))
		path := keep(t, content)
		table, err := Open(path, Options{})
		sure(t, err)
		ids := make([]int64, 20000)
		for i := range ids {
			ids[i] = int64(rng.IntN(3000))
		}
		out := make([]byte, len(ids)*1024)
		time.AfterFunc(5*time.Millisecond, func() { _ = os.Truncate(path, 4*int64(os.Getpagesize())) })
		for err == nil {
			_, err = table.Gather(ids, false, out, 0, 0)
		}
		if !errors.Is(err, errs.ErrFault) || !strings.Contains(err.Error(), path) {
			t.Fatal(err)
		}
		bad, err := table.Verify(t.Context(), nil, nil)
		if err != nil || bad == 0 {
			t.Fatal(bad, err)
		}
		if _, err = table.Checksum(t.Context(), nil); !errors.Is(err, errs.ErrFault) {
			t.Fatal(err)
		}
		sure(t, table.Prefetch(ids, false))
		sure(t, table.Close())
	}
}

// Any file: errors of the right kind, never a crash, a hang or a write outside
// the buffer.
func FuzzTable(f *testing.F) {
	for seed := range uint64(24) {
		rng := rand.New(rand.NewPCG(seed, 15))
		n := 1 + rng.IntN(20)
		kind := anyForge(rng, n)
		kind.rowBytes, kind.anyKind = (1+kind.rowBytes%8)*kind.element, seed%2 > 0
		f.Add(kind.make(f, rng, someRows(rng, n, kind.rowBytes)))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		path := keep(t, content)
		exercise(t, path)
		sure(t, os.WriteFile(path, seal(bytes.Clone(content)), 0o600))
		exercise(t, path)
	})
}
