//go:build unix

package zrecord

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"loaderx/gopkg/errs"
)

const errNotDirectory = unix.ENOTDIR

// lock takes flock's exclusive lock. It belongs to the open file, so it ends
// with the process that took it, however that dies; a second handle in the
// same process is refused as well.
func lock(f *os.File) error {
	held, err := flock(f, unix.LOCK_EX)
	if held {
		return errs.ErrLocked.Errorf("%s: another process, or another handle of this one, has the store open for writing; "+
			"close that first", filepath.Dir(f.Name()))
	}
	return err
}

// lockShared takes flock's shared lock, or turns an exclusive one into it.
func lockShared(f *os.File) error {
	held, err := flock(f, unix.LOCK_SH)
	if held {
		return errs.ErrInUse.Errorf("%s: records are being deleted from the store, or it is being compacted; try again after that",
			filepath.Dir(f.Name()))
	}
	return err
}

// lockAlone turns a shared lock into an exclusive one.
func lockAlone(f *os.File) error {
	held, err := flock(f, unix.LOCK_EX)
	if held {
		return errs.ErrInUse.Errorf("the store is in use: close the datasets, loaders and handles that have it open, " +
			"in this process or another")
	}
	return err
}

// flock takes a lock without waiting; held says that somebody else's is in
// the way.
func flock(f *os.File, how int) (held bool, err error) {
	err = control(f, func(fd int) error { return unix.Flock(fd, how|unix.LOCK_NB) })
	switch {
	case err == nil, errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOLCK):
		// Some cluster file systems have no locks: they are on trust there.
		return false, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		return true, nil
	}
	return false, &os.PathError{Op: "flock", Path: f.Name(), Err: err}
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

// allHole reports whether a file has no bytes on disk: its length was set but
// nothing was ever written to it.
func allHole(path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && st.Blocks == 0
}
