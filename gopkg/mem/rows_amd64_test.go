//go:build unix

package mem

import (
	"bytes"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// fenced returns memory of whole pages, at least size bytes, between two pages
// that nothing may touch.
func fenced(t *testing.T, size int) []byte {
	t.Helper()
	page := os.Getpagesize()
	size = (size + page - 1) / page * page
	all, err := unix.Mmap(-1, 0, size+2*page, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(all); err != nil {
			t.Error(err)
		}
	})
	inner := all[page : page+size : page+size]
	if err := unix.Mprotect(inner, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		t.Fatal(err)
	}
	return inner
}

// The assembly reads and writes no byte beside the rows, whatever their length
// and wherever they begin in a cache line: at both ends of its memory the next
// byte faults.
func TestCopyGroupTouchesNothingBesideRows(t *testing.T) {
	if !together {
		t.Skip("the processor has no AVX")
	}
	const most = 700
	sources, target := fenced(t, group*most), fenced(t, group*(most+lineBytes))
	for i := range sources {
		sources[i] = byte(i*7 + i>>8)
	}
	blank, want := bytes.Repeat([]byte{0xa5}, len(target)), make([]byte, len(target))
	for _, c := range []struct {
		name string
		copy func(dst *byte, from *[group]*byte, n, stride int)
		gap  int // bytes between rows of the destination
	}{
		{"up", copyGroup, 0},
		{"down", copyGroupDown, 0},
		{"up, apart", copyGroup, 13},
		{"down, apart", copyGroupDown, 13},
	} {
		t.Run(c.name, func(t *testing.T) {
			for n := lineBytes; n <= most; n++ {
				stride := n + c.gap
				size := (group-1)*stride + n
				for _, at := range []struct{ src, dst int }{
					{0, 0},
					{len(sources) - group*n, 0},
					{0, len(target) - size},
					{len(sources) - group*n, len(target) - size},
				} {
					var from [group]*byte
					for k := range from {
						from[k] = &sources[at.src+k*n]
					}
					copy(target, blank)
					copy(want, blank)
					for k := range group {
						copy(want[at.dst+k*stride:], sources[at.src+k*n:at.src+(k+1)*n])
					}
					if err := Guard(func() error { c.copy(&target[at.dst], &from, n, stride); return nil }); err != nil {
						t.Fatalf("%d bytes from %d to %d: %v", n, at.src, at.dst, err)
					}
					if !bytes.Equal(target, want) {
						t.Fatalf("%d bytes from %d to %d differ", n, at.src, at.dst)
					}
				}
			}
		})
	}
}
