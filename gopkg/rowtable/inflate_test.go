package rowtable

import (
	"bytes"
	"compress/flate"
	"compress/zlib"
	"io"
	"math/rand/v2"
	"testing"
)

// texts are bytes of all kinds that compressors treat differently.
func texts(rng *rand.Rand) []byte {
	b := make([]byte, rng.IntN(1<<rng.IntN(18)))
	switch rng.IntN(5) {
	case 0:
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
	case 1: // skewed: codes longer than a table's first part
		for i := range b {
			b[i] = byte(rng.ExpFloat64() * 12)
		}
	case 2: // short distances
		for i := range b {
			b[i] = byte(i % (1 + rng.IntN(7)))
		}
	case 3: // copies from everywhere
		for i := 0; i < len(b); {
			n := 1 + rng.IntN(300)
			if i > 0 && rng.IntN(3) > 0 {
				i += copy(b[i:min(len(b), i+n)], b[rng.IntN(i):i])
			} else if b[i] = byte(rng.Uint32()); true {
				i++
			}
		}
	}
	return b
}

func deflated(t testing.TB, b []byte, level int) []byte {
	var out bytes.Buffer
	w, err := zlib.NewWriterLevel(&out, level)
	sure(t, err)
	_, err = w.Write(b)
	sure(t, err)
	sure(t, w.Close())
	return out.Bytes()
}

func TestInflateDecodesWhatAnyLevelWrites(t *testing.T) {
	f := new(inflater)
	rounds := uint64(400)
	if raceEnabled {
		rounds = 80
	}
	for seed := range rounds {
		rng := rand.New(rand.NewPCG(seed, 20))
		plain := texts(rng)
		packed := deflated(t, plain, []int{flate.HuffmanOnly, 0, 1, 6, 9}[rng.IntN(5)])
		got := bytes.Repeat([]byte{0xEE}, len(plain)+16)
		if err := f.inflate(got[:len(plain):len(plain)], packed, true); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if !bytes.Equal(got[:len(plain)], plain) || !bytes.Equal(got[len(plain):], bytes.Repeat([]byte{0xEE}, 16)) {
			t.Fatalf("seed %d: other bytes", seed)
		}
		if len(plain) == 0 {
			continue
		}
		for _, size := range []int{0, len(plain) - 1, len(plain) + 1, len(plain) + 300} {
			if f.inflate(make([]byte, size), packed, true) == nil {
				t.Fatalf("seed %d: %d bytes into %d", seed, len(plain), size)
			}
		}
		for _, bad := range [][]byte{packed[:rng.IntN(len(packed))], append(bytes.Clone(packed[:len(packed)-4]), 0, 1, 2, 3, 4)} {
			if f.inflate(make([]byte, len(plain)), bad, true) == nil {
				t.Fatalf("seed %d: a damaged stream", seed)
			}
		}
	}
}

// againstStandard compares with the standard library, which says what a stream
// of the right size is.
func againstStandard(t *testing.T, f *inflater, src []byte, size int) {
	var want []byte
	r, err := zlib.NewReader(bytes.NewReader(src))
	if err == nil {
		want, err = io.ReadAll(io.LimitReader(r, int64(size)+1))
	}
	if err == nil {
		_, err = io.Copy(io.Discard, r)
	}
	got := make([]byte, size)
	mine := f.inflate(got, src, true)
	switch {
	case mine == nil && (err != nil || !bytes.Equal(got, want)):
		t.Fatalf("accepted what the standard library does not: %v", err)
	case mine != nil && err == nil && len(want) == size && mine != errTrailing:
		t.Fatalf("refused what the standard library accepts: %v", mine)
	}
}

func TestInflateOfMutatedStreamsAgreesWithTheStandardLibrary(t *testing.T) {
	f := new(inflater)
	rounds := 20000
	if raceEnabled || testing.Short() {
		rounds = 2000
	}
	for seed := range uint64(rounds) {
		rng := rand.New(rand.NewPCG(seed, 21))
		plain := texts(rng)
		plain = plain[:min(len(plain), 3000)]
		packed := deflated(t, plain, []int{flate.HuffmanOnly, 1, 9}[rng.IntN(3)])
		for range rng.IntN(3) {
			packed[2+rng.IntN(min(len(packed)-2, 80))] ^= 1 << rng.IntN(8)
		}
		againstStandard(t, f, packed, len(plain))
	}
}

func FuzzInflate(f *testing.F) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 22))
		plain := texts(rng)
		plain = plain[:min(len(plain), 600)]
		f.Add(deflated(f, plain, []int{flate.HuffmanOnly, 0, 1, 9}[seed%4]), uint16(len(plain)))
	}
	state := new(inflater)
	f.Fuzz(func(t *testing.T, src []byte, size uint16) { againstStandard(t, state, src, int(size)) })
}

func BenchmarkInflate(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 23))
	plain := someRows(rng, 256, 512)
	packed := deflated(b, plain, 6)
	dst := make([]byte, len(plain))
	f := new(inflater)
	b.SetBytes(int64(len(plain)))
	b.ReportAllocs()
	for b.Loop() {
		sure(b, f.inflate(dst, packed, true))
	}
}
