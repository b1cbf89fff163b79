package zrecord

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/osfile"
)

// users is a handle's part in the lock that tells who has a store open: every
// handle shares it, Delete and Compact need it alone. It is another file than
// the writer's lock, because one open file has one lock. Chunk file 0 serves:
// every store has it, and nothing replaces it.
type users struct {
	file *os.File // nil where there is no file to lock
}

// A reader that comes during a delete waits for about as long as one takes.
const (
	joinTries = 20
	joinPause = 5 * time.Millisecond
)

// joinUsers takes the shared lock. Where the file is missing, its records are
// damaged and reading them says so; where locks are not supported, exclusive
// use is on trust.
func joinUsers(store string, flag int) (users, error) {
	name := chunkPath(store, 0)
	f, err := osfile.Open(name, flag, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return users{}, nil
	}
	if err != nil {
		return users{}, err
	}
	for try := 1; ; try++ {
		err := lockShared(f)
		if err == nil {
			return users{f}, nil
		}
		if !errors.Is(err, errs.ErrInUse) || try == joinTries {
			f.Close()
			return users{}, err
		}
		time.Sleep(joinPause)
	}
}

// alone makes the lock exclusive, or returns errs.ErrInUse.
func (u users) alone() error {
	if u.file == nil {
		return fmt.Errorf("its first chunk file, whose lock shows who has the store open, is missing: %w", errs.ErrCorrupt)
	}
	err := lockAlone(u.file)
	if err != nil {
		// The kernel may give up the old lock before it refuses the new one.
		// Getting it back can't fail: only the writer takes it exclusively.
		err = errors.Join(err, u.share())
	}
	return err
}

// share makes an exclusive lock shared again.
func (u users) share() error {
	if u.file == nil {
		return nil
	}
	return lockShared(u.file)
}

func (u users) leave() error {
	if u.file == nil {
		return nil
	}
	return errors.Join(unlock(u.file), u.file.Close())
}
