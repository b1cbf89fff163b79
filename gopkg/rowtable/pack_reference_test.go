package rowtable

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"hash/crc32"
	"io"
	"os"
	"testing"

	"loaderx/gopkg/codec/purezstd"
)

// reference is a table as FORMAT.md describes it, read by other code than the
// package's: encoding/binary, the standard zlib, zstd in pure Go.
type reference struct {
	version, flags, element, kind   uint32
	rows, stored, rowBytes          int64
	blocks, blockRows               int64
	mapAt, descriptorsAt, payloadAt int64
	payloadBytes                    int64
	places                          []int64
	rowsOf                          [][]byte // stored rows
	codecs, predictors              []byte   // of each block
}

func nofail(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// reading reads a whole table and fails the test on anything that FORMAT.md
// does not allow.
func reading(t testing.TB, path string) *reference {
	t.Helper()
	file, err := os.ReadFile(path)
	nofail(t, err)
	le := binary.LittleEndian
	table := crc32.MakeTable(crc32.Castagnoli)
	if len(file) < 128 || string(file[:8]) != "MEFTNAT1" || le.Uint32(file[12:]) != 128 {
		t.Fatalf("%s: %d bytes, begins with %q", path, len(file), file[:min(16, len(file))])
	}
	if crc32.Checksum(file[:124], table) != le.Uint32(file[124:]) {
		t.Fatal("header checksum")
	}
	word := func(at int) int64 { return int64(le.Uint64(file[at:])) }
	r := &reference{
		version: le.Uint32(file[8:]), flags: le.Uint32(file[16:]), element: le.Uint32(file[20:]),
		rows: word(24), stored: word(32), rowBytes: word(40), blocks: word(48), blockRows: word(56),
		mapAt: word(64), descriptorsAt: word(72), payloadAt: word(80), payloadBytes: word(88), kind: le.Uint32(file[96:]),
	}
	if r.kind > 7 && r.kind != 255 || r.kind != 0 && r.version < 3 {
		t.Fatalf("kind %d in version %d", r.kind, r.version)
	}
	if !bytes.Equal(file[100:120], make([]byte, 20)) {
		t.Fatal("reserved bytes of the header are not zero")
	}
	if int64(len(file)) != r.payloadAt+r.payloadBytes || r.blocks != (r.stored+r.blockRows-1)/r.blockRows {
		t.Fatalf("%d bytes: %+v", len(file), *r)
	}
	var index []byte
	if r.flags&1 == 0 {
		index = file[r.mapAt:][:8*r.rows]
	} else if r.mapAt != 0 || r.version < 3 || r.stored != r.rows {
		t.Fatal("identity")
	}
	for row := range r.rows {
		place := row
		if r.flags&1 == 0 {
			place = int64(le.Uint64(index[8*row:]))
		}
		if place < 0 || place >= r.stored {
			t.Fatalf("row %d is at %d", row, place)
		}
		r.places = append(r.places, place)
	}
	descriptors := file[r.descriptorsAt:][:32*r.blocks]
	if crc32.Update(crc32.Checksum(index, table), table, descriptors) != le.Uint32(file[120:]) {
		t.Fatal("index checksum")
	}
	end, allRaw, needs, shuffled := r.payloadAt, true, uint32(1), false
	for i := range r.blocks {
		d := descriptors[32*i:]
		at, size, rows := int64(le.Uint64(d)), int64(le.Uint64(d[8:])), int64(le.Uint32(d[16:]))
		codec, predictor := d[20], d[21]
		if at != end || rows != min(r.blockRows, r.stored-i*r.blockRows) || le.Uint16(d[22:]) != 0 || le.Uint32(d[28:]) != 0 {
			t.Fatalf("descriptor %d: % x", i, d[:32])
		}
		end += size
		stored := file[at:][:size]
		switch sum := le.Uint32(d[24:]); {
		case r.version >= 3 && sum != crc32.Checksum(stored, table), r.version < 3 && sum != 0:
			t.Fatalf("checksum of block %d", i)
		}
		block := decodeReference(t, stored, codec, rows*r.rowBytes)
		if codec != 0 && size >= rows*r.rowBytes {
			t.Fatalf("block %d is larger than raw", i)
		}
		if predictor&2 != 0 {
			n := int(r.element)
			plain := make([]byte, len(block))
			for k := range block {
				plain[k%(len(block)/n)*n+k/(len(block)/n)] = block[k]
			}
			block, shuffled = plain, true
		}
		if predictor&1 != 0 {
			for k := int(r.rowBytes); k < len(block); k++ {
				block[k] ^= block[k-int(r.rowBytes)]
			}
		}
		if codec == 2 || predictor >= 2 {
			needs = 3
		} else if predictor == 1 {
			needs = max(needs, 2)
		}
		allRaw = allRaw && codec == 0
		r.codecs, r.predictors = append(r.codecs, codec), append(r.predictors, predictor)
		for k := range rows {
			r.rowsOf = append(r.rowsOf, block[k*r.rowBytes:][:r.rowBytes])
		}
	}
	if end != int64(len(file)) || allRaw != (r.flags&2 != 0) || shuffled != (r.element != 0) {
		t.Fatalf("end %d of %d, all raw %v, flags %b, element %d", end, len(file), allRaw, r.flags, r.element)
	}
	if r.version < 3 && r.version != needs || r.version > 3 {
		t.Fatalf("version %d, its blocks need %d", r.version, needs)
	}
	return r
}

func decodeReference(t testing.TB, stored []byte, codec byte, size int64) []byte {
	t.Helper()
	switch codec {
	case 0:
		return stored
	case 1:
		z, err := zlib.NewReader(bytes.NewReader(stored))
		nofail(t, err)
		block, err := io.ReadAll(z)
		nofail(t, err)
		if int64(len(block)) != size {
			t.Fatalf("%d bytes decode to %d, want %d", len(stored), len(block), size)
		}
		return block
	case 2:
		decode, err := purezstd.Backend{}.NewDecoder(nil)
		nofail(t, err)
		block := make([]byte, size)
		n, err := decode(block, stored)
		nofail(t, err)
		if int64(n) != size {
			t.Fatalf("%d bytes decode to %d, want %d", len(stored), n, size)
		}
		return block
	}
	t.Fatalf("codec %d", codec)
	return nil
}

// all returns the rows of a table by their original numbers.
func (r *reference) all() []byte {
	var out []byte
	for _, place := range r.places {
		out = append(out, r.rowsOf[place]...)
	}
	return out
}
