//go:build unix

package mem

import (
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"loaderx/gopkg/errs"
)

// Mapping is a read-only, shared view of a file: it shows what any process
// writes to the file. Bytes may be read from many goroutines at once; Close
// must come after the last of them, which the owner ensures.
type Mapping struct {
	data []byte
}

// Map maps the first size bytes of f for reading. The file may be closed
// afterwards. Reading a part that the file does not reach (any more) faults:
// run such reads under Guard.
func Map(f *os.File, size int64) (*Mapping, error) {
	if size < 0 || size > math.MaxInt {
		return nil, fmt.Errorf("map %s: size %d: %w", f.Name(), size, errs.ErrArgument)
	}
	if size == 0 {
		return &Mapping{}, nil
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", f.Name(), err)
	}
	var data []byte
	var mapErr error
	err = raw.Control(func(fd uintptr) {
		data, mapErr = unix.Mmap(int(fd), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	})
	if err == nil {
		err = mapErr
	}
	if err != nil {
		return nil, &os.PathError{Op: "mmap", Path: f.Name(), Err: err}
	}
	return &Mapping{data: data}, nil
}

// Bytes returns the mapped bytes; they belong to the mapping and end with
// Close. They must not be written to.
func (m *Mapping) Bytes() []byte { return m.data }

// Close unmaps the file; a second call does nothing.
func (m *Mapping) Close() error {
	if m.data == nil {
		return nil
	}
	data := m.data
	m.data = nil
	return unix.Munmap(data)
}
