package mem

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"loaderx/gopkg/errs"
)

func TestCopyRows(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	src := make([]byte, 3*maxTogether)
	for i := range src {
		src[i] = byte(rng.Uint32())
	}
	for _, row := range []int{1, 31, 63, 64, 65, 100, 127, 128, 129, 512, 1000, 4096, 12289, maxTogether, maxTogether + 1, maxTogether + 777} {
		for n := range 2*group + 2 {
			offsets := make([]uint32, n)
			for i := range offsets {
				offsets[i] = uint32(rng.IntN(len(src) - row + 1))
			}
			if n > 1 {
				offsets[0], offsets[1] = uint32(len(src)-row), 0
			}
			const guard = 256
			got := bytes.Repeat([]byte{0xa5}, n*row+2*guard)
			CopyRows(got[guard:len(got)-guard], src, offsets, row)
			want := bytes.Repeat([]byte{0xa5}, len(got))
			for i, at := range offsets {
				copy(want[guard+i*row:], src[at:int(at)+row])
			}
			if !bytes.Equal(got, want) {
				t.Fatalf("%d rows of %d bytes differ", n, row)
			}
		}
	}
}

func TestCopyRowsStaysInItsSlices(t *testing.T) {
	src := make([]byte, 1000)
	for name, f := range map[string]func(){
		"source":      func() { CopyRows(make([]byte, 8*100), src, []uint32{0, 0, 0, 0, 0, 0, 0, 901}, 100) },
		"tail":        func() { CopyRows(make([]byte, 900), src, []uint32{0, 0, 0, 0, 0, 0, 0, 0, 901}, 100) },
		"short":       func() { CopyRows(make([]byte, 80), src, []uint32{0, 0, 0, 0, 0, 0, 0, 991}, 10) },
		"destination": func() { CopyRows(make([]byte, 799), src, make([]uint32, 8), 100) },
	} {
		if err := Guard(func() error { f(); return nil }); !errors.Is(err, errs.ErrInternal) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A file that was shortened under the copy is an error, also in assembly.
func TestCopyRowsOfATruncatedFile(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "x"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const row = 4096
	if err := f.Truncate(64 * row); err != nil {
		t.Fatal(err)
	}
	m, err := Map(f, 64*row)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := f.Truncate(row); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		offsets := []uint32{0, 0, 0, 0, 0, 32 * row, 0, 0}
		err := Guard(func() error { CopyRows(make([]byte, len(offsets)*row), m.Bytes(), offsets, row); return nil })
		if !errors.Is(err, errs.ErrFault) {
			t.Fatalf("%v", err)
		}
	}
}

func BenchmarkCopyRows(b *testing.B) {
	src := make([]byte, 256<<20)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < len(src); i += 4096 {
		src[i] = 1
	}
	for _, row := range []int{64, 1 << 10, 12 << 10, 600 << 10} {
		n := max(1, min(256, (3<<20)/row))
		dst, offsets := make([]byte, n*row), make([]uint32, n)
		for _, fast := range []bool{true, false} {
			name := "together"
			if !fast {
				name = "one by one"
			}
			b.Run(name+"/"+strconv.Itoa(row), func(b *testing.B) {
				b.SetBytes(int64(n * row))
				for range b.N {
					b.StopTimer()
					for i := range offsets {
						offsets[i] = uint32(rng.IntN(len(src) - row))
					}
					b.StartTimer()
					if fast {
						CopyRows(dst, src, offsets, row)
					} else {
						for i, at := range offsets {
							copy(dst[i*row:(i+1)*row], src[at:int(at)+row])
						}
					}
				}
			})
		}
	}
}
