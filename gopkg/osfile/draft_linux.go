package osfile

import (
	"errors"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// openUnnamed opens a file without a name in a directory, which link can give
// one. It returns nil where the file system or the system can't do that.
func openUnnamed(dir string) (*os.File, error) {
	for {
		fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EISDIR), errors.Is(err, unix.EINVAL):
			return nil, nil
		case err != nil:
			return nil, &fs.PathError{Op: "create a file in", Path: dir, Err: err}
		}
		f := os.NewFile(uintptr(fd), dir)
		if _, err := os.Stat(ownName(f)); err != nil {
			return nil, f.Close() // without /proc it could never get a name
		}
		return f, nil
	}
}

// link gives a file that openUnnamed opened a name, which must be free.
func link(f *os.File, name string) error {
	if err := unix.Linkat(unix.AT_FDCWD, ownName(f), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW); err != nil {
		return &fs.PathError{Op: "link", Path: name, Err: err}
	}
	return nil
}

func ownName(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// Insert makes room of n bytes at the offset at of a file by moving what is
// behind it in the file system's own tables. It returns errors.ErrUnsupported
// where the file system can't do that, or not for these numbers.
func Insert(f *os.File, at, n int64) error {
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_INSERT_RANGE, at, n)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EIO):
		return &fs.PathError{Op: "fallocate", Path: f.Name(), Err: err}
	}
	return errors.ErrUnsupported
}
