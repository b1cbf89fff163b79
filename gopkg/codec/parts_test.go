package codec

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"loaderx/gopkg/codec/purezstd"
)

// Parts come back through both decoders, and planes of floats take less room
// than in one piece.
func TestPartsAreFramesAndSmaller(t *testing.T) {
	second, err := purezstd.Backend{}.NewDecoder(nil)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, level := range []int{0, 1, 9, 19} {
		e, err := NewPartEncoder(level)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := NewEncoder(Zstd, level, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{1, 63, 1000, 6000, 32 << 10, 70_000, 300_000} {
			for _, parts := range []int{1, 2, 4, 16} {
				src := make([]byte, n*parts)
				for i := range n {
					bits := math.Float32bits(float32(rng.NormFloat64()) / 20)
					for p := range parts {
						src[p*n+i] = byte(bits >> (8 * (p % 4)))
					}
				}
				got, err := e.Encode([]byte("before"), src, parts)
				if err != nil || !bytes.HasPrefix(got, []byte("before")) {
					t.Fatal(err)
				}
				got = got[len("before"):]
				back := make([]byte, len(src))
				if err := Decode(back, got, nil); err != nil || !bytes.Equal(back, src) {
					t.Fatalf("level %d, %d parts of %d: %v", level, parts, n, err)
				}
				clear(back)
				if size, err := second(back, got); err != nil || size != len(src) || !bytes.Equal(back, src) {
					t.Fatalf("level %d, %d parts of %d, second decoder: %v", level, parts, n, err)
				}
				plain, err := whole(make([]byte, 0, Bound(len(src))), src)
				if err != nil {
					t.Fatal(err)
				}
				if parts == 4 && n == 32<<10 && level < 9 && len(got)*100 > len(plain)*95 {
					t.Errorf("level %d: %d bytes in parts, %d in one piece, of %d", level, len(got), len(plain), len(src))
				}
			}
		}
	}
	if _, err := NewPartEncoder(99); err == nil {
		t.Error("level 99 is taken")
	}
}
