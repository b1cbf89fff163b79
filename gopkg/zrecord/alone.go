package zrecord

import (
	"errors"
	"fmt"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
)

// alone runs work while no other call and no other handle uses the store, all
// appended records being durable. It does not wait for others to finish, since
// that could take for ever: it returns errs.ErrInUse. The caller has entered.
func (s *Store) alone(work func() error) error {
	if err := s.writable(); err != nil {
		return err
	}
	if !s.life.Claim() {
		return errs.ErrInUse.Errorf("other calls are running on this handle; wait for their end")
	}
	err := s.claimedAlone(work)
	if half := (halfway{}); errors.As(err, &half) {
		// Not even reading is safe any more; the claim stays.
		last := fmt.Errorf("store %s: %w", s.path, err)
		s.failed.Store(&last)
		s.broken.Store(&last)
		return err
	}
	s.life.Release()
	return err
}

func (s *Store) claimedAlone(work func() error) (err error) {
	if err := s.users.alone(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.users.share()) }()
	if err := s.sync(); err != nil {
		return err
	}
	err = mem.Guard(work)
	if errors.Is(err, errs.ErrFault) || errors.Is(err, errs.ErrInternal) {
		err = halfway{err}
	}
	return err
}

// refusal is why a call can't enter.
func (s *Store) refusal() error {
	if err := s.broken.Load(); err != nil && !s.life.Over() {
		return *err
	}
	if s.life.Over() {
		return fmt.Errorf("store %s: %w", s.path, errs.ErrClosed)
	}
	return errs.ErrInUse.Errorf("store %s: records are being deleted through this handle, or it is compacting; try again after that", s.path)
}
