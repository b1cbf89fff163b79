//go:build unix

package mem

import (
	"os"

	"golang.org/x/sys/unix"
)

// WillNeed has the system begin to read a part of the file, and returns
// without waiting for it. It is a hint: parts outside the mapping are cut off.
func (m *Mapping) WillNeed(at, n int64) error {
	page := int64(os.Getpagesize())
	begin := max(at, 0) / page * page
	end := min(at+n, int64(len(m.data)))
	if begin >= end {
		return nil
	}
	return unix.Madvise(m.data[begin:end], unix.MADV_WILLNEED)
}

// Scattered tells the system that reads come in no order, so that it reads
// nothing around them: where 128 KiB would be read for each row of a file
// larger than memory, it is then a page. What WillNeed names is read ahead still.
func (m *Mapping) Scattered() error {
	if len(m.data) == 0 {
		return nil
	}
	return unix.Madvise(m.data, unix.MADV_RANDOM)
}
