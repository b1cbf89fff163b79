//go:build unix

package zrecord

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"loaderx/gopkg/errs"
)

const errNotDirectory = unix.ENOTDIR

// lock takes flock's exclusive lock. It belongs to the open file, so it ends
// with the process that took it, however that dies; a second handle in the
// same process is refused as well.
func lock(f *os.File) error {
	err := control(f, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	switch {
	case err == nil, errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP):
		// Some cluster file systems have no locks: writing there is on trust.
		return nil
	case errors.Is(err, unix.EWOULDBLOCK):
		return fmt.Errorf("%s: another process, or another handle of this one, has the store open for writing: %w",
			f.Name(), errs.ErrLocked)
	}
	return &os.PathError{Op: "flock", Path: f.Name(), Err: err}
}

// unlock gives the lock back explicitly: closing does not while a forked child
// holds the file open too.
func unlock(f *os.File) error {
	return control(f, func(fd int) error { return unix.Flock(fd, unix.LOCK_UN) })
}

func control(f *os.File, call func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var callErr error
	if err := raw.Control(func(fd uintptr) {
		for {
			callErr = call(int(fd))
			if callErr != unix.EINTR {
				return
			}
		}
	}); err != nil {
		return err
	}
	return callErr
}

// syncUnsupported reports whether a file system can't sync a directory at all.
func syncUnsupported(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP)
}

// allHole reports whether a file has no bytes on disk: its length was set but
// nothing was ever written to it.
func allHole(path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && st.Blocks == 0
}
