// Package schema reads and writes schema.msgpack, the file that says what the
// records of a store are: kind, dtype, item_shape, codec and whatever else its
// writer noted. FORMAT.md describes it.
//
// Callers see JSON text. Keys keep their order and integers stay integers in
// both directions.
package schema

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/osfile"
)

// FileName is the schema's name in a store's directory.
const FileName = "schema.msgpack"

// What the keys "format" and "version" of a schema say.
const (
	Format  = "loaderx-zrecord"
	Version = 1
)

// MaxBytes is the largest schema file, and MaxDepth how deep maps and arrays
// may be nested in it.
const (
	MaxBytes = 1 << 20
	MaxDepth = 64
)

// Read returns the schema of the store at storePath as JSON text.
func Read(storePath string) ([]byte, error) {
	name := filepath.Join(storePath, FileName)
	f, err := osfile.Open(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, missing(storePath, err)
	}
	defer f.Close()
	packed, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read schema: %w", err)
	}
	text, err := toJSON(packed)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return text, nil
}

// missing explains why the schema of a store can't be opened.
func missing(storePath string, err error) error {
	info, statErr := os.Stat(storePath)
	switch {
	case errors.Is(statErr, fs.ErrNotExist):
		return errs.ErrNotFound.Errorf("%s does not exist", storePath)
	case statErr == nil && !info.IsDir():
		return errs.ErrFormat.Errorf("%s is a file, a store is a directory", storePath)
	case errors.Is(err, fs.ErrNotExist):
		return errs.ErrNotFound.Errorf("directory %s has no %s, it is no data set", storePath, FileName)
	}
	return fmt.Errorf("read schema: %w", err)
}

// Write stores JSON text, an object, as the schema of the store at storePath.
// A crash leaves the old schema or the new one.
func Write(storePath string, jsonText []byte) error {
	packed, err := fromJSON(jsonText)
	if err != nil {
		return fmt.Errorf("write schema of %s: %w", storePath, err)
	}
	if err := osfile.Replace(filepath.Join(storePath, FileName), packed); err != nil {
		return fmt.Errorf("write schema: %w", err)
	}
	return nil
}
