package zrecord

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
	"loaderx/gopkg/osfile"
)

// HasDict reports whether the store has a trained dictionary.
func (s *Store) HasDict() bool {
	if s.life.Over() {
		return false
	}
	has, _ := s.hasDict()
	return has
}

// hasDict is HasDict also while the store closes, and tells apart that there
// is none from not being able to look.
func (s *Store) hasDict() (bool, error) {
	if s.dict.Load() != nil {
		return true, nil
	}
	_, err := os.Stat(filepath.Join(s.path, dictName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// TrainDict trains a dictionary of at most target bytes from sample records,
// stores it durably and returns its size. Record i of the sample is the next
// sizes[i] bytes of samples. Records appended as codec.ZstdDict need it.
//
// A dictionary is replaced only while no record depends on it; afterwards
// TrainDict is errs.ErrDict. So are samples that are too few or too small.
func (s *Store) TrainDict(ctx context.Context, samples []byte, sizes []uint64, target int64) (int64, error) {
	if err := s.enter(); err != nil {
		return 0, err
	}
	defer s.life.Leave()
	if err := s.writable(); err != nil {
		return 0, fmt.Errorf("train dictionary: %w", err)
	}
	if err := s.dictUnused(); err != nil {
		return 0, err
	}
	content, err := codec.Train(ctx, samples, sizes, target)
	if err != nil {
		return 0, fmt.Errorf("store %s: %w", s.path, err)
	}
	dict, err := codec.NewDict(content)
	if err != nil {
		return 0, fmt.Errorf("store %s: %w", s.path, err)
	}
	if err := s.lockAppend(ctx); err != nil {
		return 0, err
	}
	defer s.unlockAppend()
	if err := s.dictUnused(); err != nil {
		return 0, err
	}
	s.dictMu.Lock()
	defer s.dictMu.Unlock()
	if err := replaceFile(s.disk, filepath.Join(s.path, dictName), content); err != nil {
		return 0, fmt.Errorf("store dictionary of %s: %w", s.path, err)
	}
	s.dict.Store(dict)
	return int64(len(content)), nil
}

// dictUnused returns ErrDict when a record needs the present dictionary.
func (s *Store) dictUnused() error {
	if has, err := s.hasDict(); err != nil || !has {
		return err
	}
	used := false
	if err := mem.Guard(func() error {
		used = s.files.uses(codec.ZstdDict, s.length.Load())
		return nil
	}); err != nil {
		return fmt.Errorf("store %s: %w", s.path, err)
	}
	if used {
		return errs.ErrDict.Errorf("store %s has records that need its present dictionary", s.path)
	}
	return nil
}

// dictFor returns the dictionary for appending with tag, nil if it needs none.
func (s *Store) dictFor(tag codec.Tag) (*codec.Dict, error) {
	if tag != codec.ZstdDict {
		return nil, nil
	}
	dict, err := s.loadDict()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errs.ErrDict.Errorf("codec %s needs a dictionary, train one first", tag)
	}
	return dict, err
}

// loadDict returns the store's dictionary, read when first needed: a reader
// may be older than the dictionary.
func (s *Store) loadDict() (*codec.Dict, error) {
	if dict := s.dict.Load(); dict != nil {
		return dict, nil
	}
	s.dictMu.Lock()
	defer s.dictMu.Unlock()
	if dict := s.dict.Load(); dict != nil {
		return dict, nil
	}
	name := filepath.Join(s.path, dictName)
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > codec.MaxDictBytes {
		return nil, fmt.Errorf("%s is no dictionary (%d bytes): %w", name, info.Size(), errs.ErrCorrupt)
	}
	f, err := osfile.Open(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, codec.MaxDictBytes))
	if err != nil {
		return nil, err
	}
	dict, err := codec.NewDict(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s.dict.Store(dict)
	return dict, nil
}
