//go:build unix

package osfile

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"loaderx/gopkg/errs"
)

// Draft is the next content of a file: it takes the file's place as a whole
// when it is published, and until then nobody sees it. Where the system can do
// that it has no name, so that nothing of it is left when the process dies;
// else, and for an instant while it is published, it has a name beside the
// file, which is locked. The next draft of the same file removes what dead
// processes left. For one goroutine at a time.
type Draft struct {
	file *os.File
	path string // the file, behind symbolic links
	temp string // the draft's name, empty while it has none
}

// draftID is how many random bytes a draft's name holds, in hexadecimal.
const draftID = 4

// NewDraft begins the next content of the file at path, which need not exist.
// It follows symbolic links: the file behind them is the one that is replaced.
func NewDraft(path string) (*Draft, error) {
	path, err := follow(path)
	if err != nil {
		return nil, err
	}
	if err := replaceable(path); err != nil {
		return nil, err
	}
	sweep(path)
	d := &Draft{path: path}
	if d.file, err = openUnnamed(filepath.Dir(path)); err != nil {
		return nil, err
	}
	if d.file != nil {
		// A lock that is taken now holds from the first instant of a name on.
		if err := lock(d.file); err == nil {
			return d, nil
		}
		_ = d.file.Close()
	}
	for {
		name, err := draftName(path)
		if err != nil {
			return nil, err
		}
		f, err := Open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		// Another draft may have found the name before it was locked.
		_ = lock(f)
		if sameFile(f, name) {
			d.file, d.temp = f, name
			return d, nil
		}
		_ = f.Close()
	}
}

// File returns the draft's file, open for reading and writing; it belongs to
// the draft.
func (d *Draft) File() *os.File { return d.file }

// Path returns the file that the draft will replace.
func (d *Draft) Path() string { return d.path }

// Publish makes the draft durable and puts it in the file's place: with the
// permissions of the one that is there, or for its owner alone. It ends the
// draft; if it fails, the old file is still there, unless the error is that of
// making the directory durable.
func (d *Draft) Publish() error {
	err := d.publish()
	return errors.Join(err, d.Discard())
}

func (d *Draft) publish() error {
	if d.file == nil {
		return fmt.Errorf("publish %s: the draft has ended: %w", d.path, errs.ErrClosed)
	}
	if err := replaceable(d.path); err != nil {
		return err
	}
	old, err := os.Stat(d.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	mode := fs.FileMode(0o600)
	if old != nil {
		mode = old.Mode().Perm()
		keepOwner(d.file, old)
	}
	if err := d.file.Chmod(mode); err != nil {
		return err
	}
	if err := d.file.Sync(); err != nil {
		return err
	}
	if d.temp == "" {
		if old == nil {
			err := link(d.file, d.path)
			if err == nil {
				return SyncDir(filepath.Dir(d.path))
			}
			if !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
		for {
			name, err := draftName(d.path)
			if err == nil {
				err = link(d.file, name)
			}
			if err == nil {
				d.temp = name
				break
			}
			if !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
	}
	if err := os.Rename(d.temp, d.path); err != nil {
		return err
	}
	d.temp = ""
	return SyncDir(filepath.Dir(d.path))
}

// Discard ends the draft and leaves the file as it is; a second call does
// nothing.
func (d *Draft) Discard() error {
	if d.file == nil {
		return nil
	}
	var err error
	if d.temp != "" {
		err = os.Remove(d.temp)
	}
	err = errors.Join(err, d.file.Close())
	d.file = nil
	return err
}

// Scratch opens a file without a name in a directory: its bytes are gone when
// it is closed, or its process is.
func Scratch(dir string) (*os.File, error) {
	f, err := openUnnamed(dir)
	if f != nil || err != nil {
		return f, err
	}
	name, err := draftName(filepath.Join(dir, "scratch"))
	if err != nil {
		return nil, err
	}
	if f, err = Open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return nil, err
	}
	if err = os.Remove(name); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// follow returns the path behind symbolic links, also one where nothing is yet.
func follow(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	for range 40 {
		to, err := os.Readlink(path)
		if err != nil {
			return path, nil
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	return "", &fs.PathError{Op: "open", Path: path, Err: unix.ELOOP}
}

// replaceable returns an error if something is at the path that no file should
// take the place of.
func replaceable(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.IsDir():
		return &fs.PathError{Op: "replace", Path: path, Err: unix.EISDIR}
	case !info.Mode().IsRegular():
		return fmt.Errorf("replace %s: it is no regular file: %w", path, errs.ErrExists)
	}
	return nil
}

// keepOwner gives f the owner and the group of the file that it replaces, as
// far as the process may do that.
func keepOwner(f *os.File, old fs.FileInfo) {
	info, err := f.Stat()
	if err != nil {
		return
	}
	is, _ := info.Sys().(*syscall.Stat_t)
	was, known := old.Sys().(*syscall.Stat_t)
	if is == nil || !known || was.Uid == is.Uid && was.Gid == is.Gid {
		return
	}
	if f.Chown(int(was.Uid), int(was.Gid)) != nil {
		_ = f.Chown(-1, int(was.Gid))
	}
}

func lock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// sameFile reports whether the name is that of the open file.
func sameFile(f *os.File, name string) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(name)
	return err == nil && os.SameFile(open, named)
}

// draftPrefix is what the names of a file's drafts begin with. A name may have
// 255 bytes, so that of the file may have to be cut.
func draftPrefix(path string) string {
	name := filepath.Base(path)
	return "." + name[:min(len(name), 200)] + "."
}

func draftName(path string) (string, error) {
	var id [draftID]byte
	if _, err := rand.Read(id[:]); err != nil {
		return "", err
	}
	return filepath.Join(filepath.Dir(path), draftPrefix(path)+hex.EncodeToString(id[:])+TempSuffix), nil
}

// sweep removes the drafts of a file that dead processes left.
func sweep(path string) {
	fd, err := open(filepath.Dir(path), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return
	}
	dir := os.NewFile(uintptr(fd), filepath.Dir(path))
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(1000)
		for _, name := range names {
			middle, ok := strings.CutPrefix(name, draftPrefix(path))
			middle, end := strings.CutSuffix(middle, TempSuffix)
			if id, bad := hex.DecodeString(middle); ok && end && bad == nil && len(id) == draftID {
				removeDead(filepath.Join(filepath.Dir(path), name))
			}
		}
		if err != nil {
			return
		}
	}
}

// removeDead removes a draft unless a process holds its lock.
func removeDead(name string) {
	f, err := Open(name, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if lock(f) == nil && sameFile(f, name) {
		_ = os.Remove(name)
	}
}
