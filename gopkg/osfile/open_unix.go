//go:build unix

// Package osfile opens and replaces files in the ways that a library inside
// somebody else's process needs: without taking more descriptors than asked
// for, without blocking on what is no regular file, and durably.
package osfile

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"loaderx/gopkg/errs"
)

// Open opens a regular file. Unlike os.Open it leaves the run-time's poller
// alone, which would take two more descriptors when it is first used and end
// the process if it can't have them; and a pipe in a file's place is an error,
// not a wait. Anything that is no regular file is errs.ErrFormat.
func Open(name string, flag int, perm fs.FileMode) (*os.File, error) {
	fd, err := open(name, flag|unix.O_NONBLOCK, perm)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errs.ErrFormat.Errorf("it is no regular file")
	}
	if err == nil {
		err = unix.SetNonblock(fd, false)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

func open(name string, flag int, perm fs.FileMode) (int, error) {
	for {
		fd, err := unix.Open(name, flag|unix.O_CLOEXEC, uint32(perm.Perm()))
		if err == nil {
			return fd, nil
		}
		if !errors.Is(err, unix.EINTR) {
			return -1, &fs.PathError{Op: "open", Path: name, Err: err}
		}
	}
}

// Identity returns what changes when a file is replaced or written to: device,
// inode, size, and when its content changed last, in nanoseconds since 1970.
func Identity(info fs.FileInfo) [4]int64 {
	id := [4]int64{2: info.Size(), 3: info.ModTime().UnixNano()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		id[0], id[1] = int64(st.Dev), int64(st.Ino)
	}
	return id
}

// Spare returns an error unless the process may open n more descriptors.
func Spare(n int) error {
	var taken []int
	defer func() {
		for _, fd := range taken {
			_ = unix.Close(fd)
		}
	}()
	for range n {
		fd, err := open(os.DevNull, unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		taken = append(taken, fd)
	}
	return nil
}

// SyncDir makes a directory's entries durable. File systems that can't do that
// keep them in their own way, and a directory that may be written but not read
// can't be synced at all; neither is an error.
func SyncDir(path string) error {
	fd, err := open(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, unix.EACCES) {
		return nil
	}
	if err != nil {
		return err
	}
	err = unix.Fsync(fd)
	_ = unix.Close(fd)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.ENOSYS) {
		return &fs.PathError{Op: "sync directory", Path: path, Err: err}
	}
	return nil
}
