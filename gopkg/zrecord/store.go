package zrecord

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
	"loaderx/gopkg/osfile"
	"loaderx/gopkg/work"
)

// Mode says what Open may do.
type Mode int

const (
	// ReadOnly opens a store that exists and changes nothing.
	ReadOnly Mode = 0
	// Append opens a store that exists for appending.
	Append Mode = 1
	// CreateOrAppend opens a store for appending and makes it if it is missing.
	CreateOrAppend Mode = 2
	// CreateNew makes a store; errs.ErrExists if there is one.
	CreateNew Mode = 3
)

// Options are the choices of Open.
type Options struct {
	Mode  Mode
	Level int // compression level, 0 for the codec's default
	// Workers is how many goroutines compress for one Append, 0 for
	// GOMAXPROCS. All stores together never use more than GOMAXPROCS.
	Workers int
}

// Store is an open store; it is safe for concurrent use.
type Store struct {
	path    string
	opt     Options
	disk    disk
	files   layout
	writer  writer // nil when read-only
	length  atomic.Int64
	users   users
	life    work.Life
	closing sync.Once

	turn   chan struct{} // holds one token: the append lock
	syncMu sync.Mutex
	failed atomic.Pointer[error] // a failed sync or Discard; nothing is written after it
	broken atomic.Pointer[error] // a Delete or Compact that ended halfway; nothing is read after it

	dictMu sync.Mutex
	dict   atomic.Pointer[codec.Dict]
	// compressed is set once a compressed record was read: decoding is worth
	// a second goroutine sooner than copying.
	compressed atomic.Bool
}

// Open opens the store at path, a directory. The caller closes it.
func Open(path string, opt Options) (*Store, error) {
	return openOn(osDisk{}, path, opt)
}

func openOn(d disk, path string, opt Options) (*Store, error) {
	if path == "" {
		return nil, fmt.Errorf("open store: empty path: %w", errs.ErrArgument)
	}
	if opt.Mode < ReadOnly || opt.Mode > CreateNew {
		return nil, fmt.Errorf("open %s: mode %d: %w", path, opt.Mode, errs.ErrArgument)
	}
	if err := codec.CheckLevel(opt.Level); err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if opt.Workers <= 0 {
		opt.Workers = runtime.GOMAXPROCS(0)
	}
	s := &Store{path: path, opt: opt, disk: d, turn: make(chan struct{}, 1)}
	s.life = work.NewLife()
	s.turn <- struct{}{}
	var err error
	if opt.Mode == ReadOnly {
		err = s.openRead()
	} else {
		err = s.openWrite()
	}
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	return s, nil
}

func (s *Store) openRead() error {
	meta, err := osfile.Open(filepath.Join(s.path, metaName), os.O_RDONLY, 0)
	if err != nil {
		return s.missing(err)
	}
	defer meta.Close()
	// Who has joined sees no delete or compact begin; one that a crash cut
	// short is in the journal.
	if s.users, err = joinUsers(s.path, os.O_RDONLY); err != nil {
		return err
	}
	files, err := openFiles3(s.path, meta)
	if err == nil {
		if err = mem.Guard(files.overlay); err == nil {
			s.files = files
			return nil
		}
		files.close()
	}
	s.users.leave()
	return err
}

func (s *Store) openWrite() error {
	meta, err := s.lockedMeta()
	if err != nil {
		return err
	}
	if s.users, err = joinUsers(s.path, os.O_RDWR); err == nil {
		if err = s.openFiles(meta); err == nil {
			return nil
		}
		s.users.leave()
	}
	meta.Unlock()
	meta.Close()
	return err
}

// openFiles opens the files of a store whose locks are held, for writing.
func (s *Store) openFiles(meta file) error {
	// Mapped through another open file than the locked one: a mapping keeps its
	// open file, and with it the lock, alive in every forked child.
	mapped, err := osfile.Open(filepath.Join(s.path, metaName), os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	files, err := openFiles3(s.path, mapped)
	mapped.Close()
	if err != nil {
		return err
	}
	var w *writer3
	if err = recover3(s.disk, s.path, meta); err == nil {
		if w, err = openWriter3(s.path, s.disk, meta, files); err == nil {
			s.files, s.writer = files, w
			s.length.Store(w.length())
			return nil
		}
	}
	files.close()
	return err
}

// lockedMeta opens or makes meta.zr as the mode says, and locks it.
func (s *Store) lockedMeta() (file, error) {
	name := filepath.Join(s.path, metaName)
	// Somebody else may make the store, or give up making it, at the same
	// time; a few rounds settle that.
	for range 8 {
		if s.opt.Mode == CreateNew && exists(name) {
			return nil, errs.ErrExists.Errorf("there is a store at %s already", s.path)
		}
		if s.opt.Mode != Append {
			if meta, err := create3(s.disk, s.path); meta != nil || err != nil {
				return meta, err
			}
			if s.opt.Mode == CreateNew {
				continue
			}
		}
		meta, err := s.disk.OpenWrite(name)
		if errors.Is(err, fs.ErrNotExist) && s.opt.Mode != Append {
			continue
		}
		if err != nil {
			return nil, s.missing(err)
		}
		if err := meta.Lock(); err != nil {
			meta.Close()
			return nil, err
		}
		return meta, nil
	}
	return nil, errs.ErrLocked.Errorf("%s: another process is making the store", s.path)
}

// missing explains why meta.zr can't be opened.
func (s *Store) missing(err error) error {
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errNotDirectory) {
		return err
	}
	info, statErr := os.Stat(s.path)
	switch {
	case statErr != nil:
		return errs.ErrNotFound.Errorf("there is no store at %s", s.path)
	case !info.IsDir():
		return errs.ErrFormat.Errorf("%s is a file, a store is a directory", s.path)
	case lostTable(s.path) && !exists(filepath.Join(s.path, metaName)):
		return errs.ErrFormat.Errorf("%s holds chunk files but no %s", s.path, metaName)
	}
	return errs.ErrNotFound.Errorf("directory %s has no %s, it is no store", s.path, metaName)
}

// LockFd returns the file descriptor whose lock makes this store's writer the
// only one. It belongs to the store. A forked child inherits it, and the lock
// would last until that ends: the child should close its copy.
func (s *Store) LockFd() (int, error) {
	if err := s.writable(); err != nil {
		return -1, err
	}
	return int(s.writer.lockFile().Fd()), nil
}

// Path returns the store's path as it was opened.
func (s *Store) Path() string { return s.path }

// Len returns the number of records: in a writing store with those appended
// but not synced yet, otherwise those that the files hold now. It is 0 after
// Close.
func (s *Store) Len() int64 {
	if !s.life.Enter() {
		if s.life.Over() {
			return 0
		}
		return s.length.Load()
	}
	defer s.life.Leave()
	n, err := s.records()
	if err != nil {
		return s.length.Load()
	}
	return n
}

// records returns the store's length; length keeps the last good answer.
func (s *Store) records() (n int64, err error) {
	if s.writer != nil {
		return s.length.Load(), nil
	}
	if err := mem.Guard(func() (err error) {
		n, err = s.files.records()
		return err
	}); err != nil {
		return 0, err
	}
	s.length.Store(n)
	return n, nil
}

// enter starts a method that uses the files, which leave ends.
func (s *Store) enter() error {
	if !s.life.Enter() {
		return s.refusal()
	}
	return nil
}

// writable returns why the store can't be written to.
func (s *Store) writable() error {
	if s.writer == nil {
		return fmt.Errorf("store %s: %w", s.path, errs.ErrReadOnly)
	}
	if err := s.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// Sync makes all appended records durable and shows them to other processes.
// After a failed Sync the store refuses to write: the system may have dropped
// the bytes it could not write, so trying again would prove nothing.
func (s *Store) Sync() error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.life.Leave()
	return s.sync()
}

func (s *Store) sync() error {
	if s.writer == nil {
		return nil
	}
	s.syncMu.Lock()
	defer s.syncMu.Unlock()
	if err := s.failed.Load(); err != nil {
		return *err
	}
	<-s.turn
	mark := s.writer.mark()
	s.turn <- struct{}{}
	if err := s.writer.flush(mark); err != nil {
		err = fmt.Errorf("sync store %s: %w", s.path, err)
		s.failed.Store(&err)
		return err
	}
	return nil
}

// errDiscarded is why a store refuses to write after Discard.
var errDiscarded = fmt.Errorf("its unsynced records were discarded: %w", errs.ErrClosed)

// Discard forgets the records that were appended since the last Sync: Close
// will not publish them. The store can be read and closed afterwards, and
// refuses to write.
func (s *Store) Discard() error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.life.Leave()
	if err := s.writable(); err != nil {
		return err
	}
	<-s.turn
	defer func() { s.turn <- struct{}{} }()
	err := fmt.Errorf("store %s: %w", s.path, errDiscarded)
	s.failed.Store(&err)
	return nil
}

// Close syncs a writing store, waits for running calls and releases the files
// and the lock. Further calls do nothing and return nil.
func (s *Store) Close() error {
	var err error
	s.closing.Do(func() {
		s.life.End()
		if s.writer != nil {
			if err = s.sync(); errors.Is(err, errDiscarded) {
				err = nil
			}
			err = errors.Join(err, s.writer.close())
		}
		err = errors.Join(err, s.files.close(), s.users.leave())
	})
	return err
}
