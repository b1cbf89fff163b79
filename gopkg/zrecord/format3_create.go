package zrecord

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/osfile"
)

// create3 makes an empty store at path and returns its locked meta.zr, or nil
// when a store is there (made by somebody else meanwhile, perhaps).
//
// meta.zr is written under another name and renamed last, so a crash leaves
// no store, and what it does leave the next attempt takes over.
func create3(d disk, path string) (file, error) {
	name := filepath.Join(path, metaName)
	if exists(name) {
		return nil, nil
	}
	if err := makeDirs(d, path); err != nil {
		return nil, err
	}
	temp := name + osfile.TempSuffix
	if lostTable(path) {
		return nil, errs.ErrFormat.Errorf("%s holds chunk files but no %s", path, metaName)
	}
	f, err := d.Create(temp)
	if err != nil {
		return nil, err
	}
	// The lock stays with the file through the renaming. Whoever opened the
	// temporary file just before somebody else renamed it must start again.
	if err := f.Lock(); err != nil {
		f.Close()
		return nil, err
	}
	if !isPath(f.OS(), temp) {
		f.Unlock()
		return nil, f.Close()
	}
	// The store may have been made between the first look and the lock. From
	// here on it can't be: that takes this very lock.
	if exists(name) {
		err := d.Remove(temp)
		f.Unlock()
		return nil, errors.Join(err, f.Close())
	}
	if err := fill3(d, path, f); err != nil {
		f.Unlock()
		f.Close()
		return nil, err
	}
	return f, nil
}

// lostTable reports, of a store without meta.zr, that it had one: its chunk
// file holds bytes. Otherwise it is being made, or a crash cut that short.
func lostTable(path string) bool {
	chunk := chunkPath(path, 0)
	return exists(chunk) && !exists(filepath.Join(path, metaName)+osfile.TempSuffix) && !allHole(chunk)
}

// fill3 turns a locked temporary file into the store's meta.zr.
func fill3(d disk, path string, meta file) error {
	name := filepath.Join(path, metaName)
	if err := meta.Truncate(0); err != nil {
		return err
	}
	if err := meta.Truncate(metaSize3); err != nil {
		return err
	}
	if _, err := meta.WriteAt(tail3{}.header(), 0); err != nil {
		return err
	}
	if err := meta.Sync(); err != nil {
		return err
	}
	chunk, err := createChunk(d, path, 0)
	if err != nil {
		return err
	}
	if err := chunk.Close(); err != nil {
		return err
	}
	// A journal from here belonged to a table that is lost.
	if redo := filepath.Join(path, redoName); exists(redo) {
		if err := d.Remove(redo); err != nil {
			return err
		}
		if err := d.SyncDir(path); err != nil {
			return err
		}
	}
	if err := d.Rename(name+osfile.TempSuffix, name); err != nil {
		return err
	}
	return d.SyncDir(path)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

func isPath(f *os.File, path string) bool {
	held, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(path)
	return err == nil && os.SameFile(held, named)
}
