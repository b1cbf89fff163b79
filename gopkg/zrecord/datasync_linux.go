package zrecord

import (
	"os"

	"golang.org/x/sys/unix"
)

// datasync leaves out metadata, such as times, that reading does not need.
func datasync(f *os.File) error {
	if err := control(f, unix.Fdatasync); err != nil {
		return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
	}
	return nil
}
