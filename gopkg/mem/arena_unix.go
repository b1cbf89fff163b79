//go:build unix

package mem

import (
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"loaderx/gopkg/errs"
)

// Arena is zeroed memory outside Go's heap, for what is large and lives long:
// it takes no part in when Go collects its own, takes real memory only where
// it was written to, and gives everything back at Close, which must come after
// the last use of the bytes.
type Arena struct {
	data []byte
}

// NewArena reserves size bytes.
func NewArena(size int64) (*Arena, error) {
	if size < 0 || size > math.MaxInt {
		return nil, fmt.Errorf("arena of %d bytes: %w", size, errs.ErrArgument)
	}
	if size == 0 {
		return &Arena{}, nil
	}
	data, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("arena of %d bytes: %w: %w", size, errs.ErrMemory, os.NewSyscallError("mmap", err))
	}
	return &Arena{data: data}, nil
}

// Bytes returns the memory; it ends with Close.
func (a *Arena) Bytes() []byte { return a.data }

// Close gives the memory back; a second call does nothing.
func (a *Arena) Close() error {
	if a.data == nil {
		return nil
	}
	data := a.data
	a.data = nil
	return unix.Munmap(data)
}

// Spare returns errs.ErrMemory if the system would refuse size more bytes now.
// Go's own allocation ends the process then, so that who is about to ask it for
// much asks here first.
func Spare(size int64) error {
	a, err := NewArena(size)
	if err != nil {
		return err
	}
	return a.Close()
}

// Words views memory as 64-bit numbers in the machine's byte order; bytes
// behind the last whole one are left out. The view lives as long as b does.
func Words(b []byte) ([]uint64, error) {
	return Slice[uint64](Address(b), int64(len(b)/8))
}
