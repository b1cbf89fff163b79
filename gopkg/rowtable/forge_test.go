package rowtable

import (
	"bytes"
	"compress/zlib"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/quant"
)

// forge makes tables for the reader's tests, plainly and slowly, and without a
// line in common with the writer.
type forge struct {
	rowBytes, blockRows, element int
	codecs                       []Codec // each block has one of them, where it gains by it
	predictors                   []Predictor
	order                        []int // rows in the order of their storing; nil: their own
	share                        bool  // equal rows are stored once
	mapped                       bool  // a map also where none is needed
	anyKind                      bool  // version 3 records a kind, where one fits
}

func (f forge) make(t testing.TB, rng *rand.Rand, rows []byte) []byte {
	t.Helper()
	n := len(rows) / f.rowBytes
	row := func(i int) []byte { return rows[i*f.rowBytes : (i+1)*f.rowBytes] }
	forward := make([]int64, n)
	known := map[string]int64{}
	var stored []byte
	count := int64(0)
	for i := range n {
		if f.order != nil {
			i = f.order[i]
		}
		if at, ok := known[string(row(i))]; ok && f.share {
			forward[i] = at
			continue
		}
		known[string(row(i))] = count
		forward[i] = count
		stored = append(stored, row(i)...)
		count++
	}
	h := header{
		version: 1, rows: int64(n), stored: count, rowBytes: int64(f.rowBytes), blockRows: int64(f.blockRows),
		elementBytes: int64(f.element), blocks: (count + int64(f.blockRows) - 1) / int64(f.blockRows),
	}
	var payload []byte
	var descriptors []descriptor
	allRaw := true
	for at := 0; at < len(stored); at += f.blockRows * f.rowBytes {
		plain := stored[at:min(len(stored), at+f.blockRows*f.rowBytes)]
		d := descriptor{at: int64(len(payload)), rows: int64(len(plain) / f.rowBytes)}
		d.codec = f.codecs[rng.IntN(len(f.codecs))]
		content := plain
		if d.codec != Raw {
			d.predictor = f.predictors[rng.IntN(len(f.predictors))]
			content = compress(t, predicted(plain, d.predictor, f.rowBytes, f.element), d.codec)
		}
		if len(content) >= len(plain) {
			content, d.codec, d.predictor = plain, Raw, None
		}
		d.bytes, d.sum = int64(len(content)), crc32.Checksum(content, castagnoli)
		h.version = max(h.version, d.version())
		allRaw = allRaw && d.codec == Raw
		payload = append(payload, content...)
		descriptors = append(descriptors, d)
	}
	own := !f.mapped
	for i, at := range forward {
		own = own && int64(i) == at
	}
	if own {
		h.version, h.flags = 3, flagIdentity
	}
	if allRaw {
		h.flags |= flagRaw
	}
	if f.anyKind && h.version == 3 {
		if kind := quant.Kind(rng.IntN(7)); kind.Dim(h.rowBytes) > 0 {
			h.kind = KindOf(kind)
		}
	}
	return f.assemble(h, forward, descriptors, payload)
}

func (f forge) assemble(h header, forward []int64, descriptors []descriptor, payload []byte) []byte {
	end := int64(headerBytes)
	if !h.identity() {
		h.mapAt = end
		end += int64(len(forward)) * mapEntryBytes
	}
	h.descriptors = end
	h.payloadAt = end + int64(len(descriptors))*descriptorBytes
	h.payloadBytes = int64(len(payload))
	var index []byte
	if !h.identity() {
		for _, at := range forward {
			index = append(index, byte(at), byte(at>>8), byte(at>>16), byte(at>>24), byte(at>>32), byte(at>>40), byte(at>>48), byte(at>>56))
		}
	}
	for _, d := range descriptors {
		d.at += h.payloadAt
		if h.version < 3 {
			d.sum = 0
		}
		index = d.append(index)
	}
	h.indexSum = crc32.Checksum(index, castagnoli)
	return append(append(h.append(nil), index...), payload...)
}

// predicted returns rows with a predictor applied, byte by byte.
func predicted(rows []byte, p Predictor, rowBytes, element int) []byte {
	out := bytes.Clone(rows)
	if p == XOR || p == XORShuffle {
		for i := len(out) - 1; i >= rowBytes; i-- {
			out[i] ^= out[i-rowBytes]
		}
	}
	if p == Shuffle || p == XORShuffle {
		in, count := bytes.Clone(out), len(out)/element
		for i, c := range in {
			out[i%element*count+i/element] = c
		}
	}
	return out
}

func compress(t testing.TB, b []byte, c Codec) []byte {
	t.Helper()
	if c == Zlib {
		var out bytes.Buffer
		w := zlib.NewWriter(&out)
		_, err := w.Write(b)
		sure(t, err)
		sure(t, w.Close())
		return out.Bytes()
	}
	encode, err := codec.NewEncoder(codec.Zstd, 3, nil)
	sure(t, err)
	out, err := encode(make([]byte, 0, codec.Bound(len(b))), b)
	sure(t, err)
	return out
}

// someRows returns n rows that compress, some of them equal.
func someRows(rng *rand.Rand, n, rowBytes int) []byte {
	rows := make([]byte, n*rowBytes)
	kinds := 1 + rng.IntN(255)
	for i := range rows {
		rows[i] = byte(rng.IntN(kinds)) & byte(rng.IntN(256))
	}
	for range n / 3 {
		copy(rows[rng.IntN(n)*rowBytes:][:rowBytes], rows[rng.IntN(n)*rowBytes:])
	}
	return rows
}

// anyForge returns one of all kinds of tables.
func anyForge(rng *rand.Rand, n int) forge {
	f := forge{
		rowBytes: 1 << rng.IntN(14), blockRows: 1 + rng.IntN(40), codecs: []Codec{Raw, Zlib, Zstd},
		predictors: []Predictor{None, XOR, Shuffle, XORShuffle}, share: rng.IntN(2) == 0, mapped: rng.IntN(2) == 0,
	}
	f.rowBytes = max(1, f.rowBytes-rng.IntN(f.rowBytes)*rng.IntN(2))
	f.element = 1 + rng.IntN(16)
	for f.rowBytes%f.element != 0 {
		f.element--
	}
	if rng.IntN(3) == 0 {
		f.codecs = f.codecs[rng.IntN(3):][:1]
	}
	switch rng.IntN(4) {
	case 0: // version 1
		f.codecs, f.predictors, f.mapped = []Codec{Raw, Zlib}, []Predictor{None}, true
	case 1: // version 2
		f.codecs, f.predictors, f.mapped = []Codec{Raw, Zlib}, []Predictor{None, XOR}, true
	}
	if rng.IntN(2) == 0 {
		f.order = rng.Perm(n)
	}
	return f
}

func sure(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func keep(t testing.TB, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "t.men")
	sure(t, os.WriteFile(path, content, 0o600))
	return path
}

func opened(t testing.TB, content []byte, opt Options) *Table {
	t.Helper()
	table, err := Open(keep(t, content), opt)
	sure(t, err)
	t.Cleanup(func() { sure(t, table.Close()) })
	return table
}
