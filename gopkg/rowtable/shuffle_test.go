package rowtable

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
)

func TestUnshuffleIsTheReverseOfShuffling(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 30))
	for size := 1; size <= 16; size++ {
		for count := range 70 {
			plain := make([]byte, size*count)
			for i := range plain {
				plain[i] = byte(rng.Uint32())
			}
			planes := predicted(plain, Shuffle, size, size)
			first := rng.IntN(count + 1)
			n := rng.IntN(count - first + 1)
			want := plain[first*size:][:n*size]
			got := bytes.Repeat([]byte{0xEE}, n*size+32)
			unshuffle(got, planes, size, first, n)
			if !bytes.Equal(got[:n*size], want) || !bytes.Equal(got[n*size:], bytes.Repeat([]byte{0xEE}, 32)) {
				t.Fatalf("elements %d to %d of %d, each of %d bytes", first, first+n, count, size)
			}
			got = make([]byte, n*size)
			done := interleaveWords(got, planes, size, count, first, n)
			if !bytes.Equal(got[:done*size], want[:done*size]) || n-done > 7 && size&(size-1) == 0 && size > 1 && size < 16 {
				t.Fatalf("words: elements %d to %d of %d, each of %d bytes", first, first+n, count, size)
			}
		}
	}
}

func TestXORIsUndone(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 30))
	for width := 1; width < 100; width += 1 + width/10 {
		plain := someRows(rng, 1+rng.IntN(20), width)
		got := predicted(plain, XOR, width, 1)
		undoXOR(got, width)
		if !bytes.Equal(got, plain) {
			t.Fatalf("rows of %d bytes", width)
		}
	}
}

func BenchmarkUnshuffle(b *testing.B) {
	for _, size := range []int{2, 4, 8, 16} {
		src, dst := make([]byte, 128<<10), make([]byte, 128<<10)
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			b.SetBytes(int64(len(src)))
			for b.Loop() {
				unshuffle(dst, src, size, 0, len(src)/size)
			}
		})
		b.Run(fmt.Sprint("words", size), func(b *testing.B) {
			b.SetBytes(int64(len(src)))
			for b.Loop() {
				interleaveWords(dst, src, size, len(src)/size, 0, len(src)/size)
			}
		})
	}
}
