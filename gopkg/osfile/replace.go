package osfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// TempSuffix marks a file that is not in its place yet: a crash may leave it
// behind, and nobody reads it.
const TempSuffix = ".tmp"

// Replace writes a whole file: a crash leaves the old one or the new one. The
// content is synced before the renaming, so that the name never stands for
// half of it, and the directory after it. A failed call leaves no other file.
func Replace(name string, content []byte) (err error) {
	mode := fs.FileMode(0o666)
	info, statErr := os.Stat(name)
	if statErr == nil {
		mode = info.Mode().Perm()
	}
	temp := name + TempSuffix
	f, err := Open(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	if statErr == nil {
		err = f.Chmod(mode) // the umask does not count for a file that was there
	}
	if err == nil {
		_, err = f.Write(content)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(temp, name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return SyncDir(filepath.Dir(name))
}
