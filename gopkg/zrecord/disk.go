package zrecord

import (
	"io"
	"os"
	"path/filepath"

	"loaderx/gopkg/osfile"
)

// disk is everything that a writer does to the file system, so that tests can
// record the order of writes and syncs, or make one fail.
type disk interface {
	// Mkdir makes one directory.
	Mkdir(path string) error
	// Create opens a file for writing and makes it if it is missing; it does
	// not truncate.
	Create(path string) (file, error)
	// OpenWrite opens an existing file for writing.
	OpenWrite(path string) (file, error)
	Rename(from, to string) error
	Remove(path string) error
	// SyncDir makes a directory's entries durable.
	SyncDir(path string) error
}

// file is an open file of a disk.
type file interface {
	io.WriterAt
	io.Closer
	Truncate(size int64) error
	// Datasync makes written bytes durable, with the metadata needed to read
	// them back.
	Datasync() error
	// Sync is Datasync with all of the metadata.
	Sync() error
	// Lock takes the exclusive advisory lock without waiting.
	Lock() error
	Unlock() error
	// OS is the file itself, for reading.
	OS() *os.File
}

// osDisk is the operating system's file system.
type osDisk struct{}

type osFile struct{ *os.File }

func (f osFile) Datasync() error { return datasync(f.File) }
func (f osFile) Lock() error     { return lock(f.File) }
func (f osFile) Unlock() error   { return unlock(f.File) }
func (f osFile) OS() *os.File    { return f.File }

func (osDisk) Mkdir(path string) error { return os.Mkdir(path, 0o777) }

func (osDisk) Create(path string) (file, error) {
	f, err := osfile.Open(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osDisk) OpenWrite(path string) (file, error) {
	f, err := osfile.Open(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osDisk) Rename(from, to string) error { return os.Rename(from, to) }

func (osDisk) Remove(path string) error { return os.Remove(path) }

func (osDisk) SyncDir(path string) error { return osfile.SyncDir(path) }

// makeDirs makes a directory and its parents, each durable before there is
// anything in it.
func makeDirs(d disk, path string) error {
	if info, err := os.Stat(path); err == nil {
		if !info.IsDir() {
			return &os.PathError{Op: "mkdir", Path: path, Err: errNotDirectory}
		}
		return nil
	}
	parent := filepath.Dir(path)
	if parent != path {
		if err := makeDirs(d, parent); err != nil {
			return err
		}
	}
	if err := d.Mkdir(path); err != nil && !os.IsExist(err) {
		return err
	}
	return d.SyncDir(parent)
}

// replaceFile writes a whole file so that a crash leaves the old one or the
// new one.
func replaceFile(d disk, path string, content []byte) error {
	temp := path + osfile.TempSuffix
	f, err := d.Create(temp)
	if err != nil {
		return err
	}
	defer f.Close()
	// A crashed attempt may have left a longer file.
	if err := f.Truncate(0); err != nil {
		return err
	}
	if _, err := f.WriteAt(content, 0); err != nil {
		return err
	}
	if err := f.Datasync(); err != nil {
		return err
	}
	if err := d.Rename(temp, path); err != nil {
		return err
	}
	return d.SyncDir(filepath.Dir(path))
}
