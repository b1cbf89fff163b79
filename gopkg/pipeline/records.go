package pipeline

import (
	"errors"
	"fmt"
	"time"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/handle"
	"loaderx/gopkg/zrecord"
)

// ByHandle reads a store by its id in a table, looked up for every read: a
// pipeline does not keep open what its user closes, and reads then fail with
// errs.ErrClosed. The path is for messages.
func ByHandle(table *handle.Table, id int64, path string) Records { return &byHandle{table, id, path} }

type byHandle struct {
	table *handle.Table
	id    int64
	path  string
}

func (b *byHandle) Gather(r *zrecord.Request, from int, budget time.Duration) (int, error) {
	store, ref, err := handle.Use[*zrecord.Store](b.table, b.id)
	if err != nil {
		return from, b.gone(err)
	}
	defer ref.Release()
	return store.Gather(r, from, budget)
}

func (b *byHandle) Lengths(idxs []int64, wrap int64, out []uint32) (int64, error) {
	store, ref, err := handle.Use[*zrecord.Store](b.table, b.id)
	if err != nil {
		return 0, b.gone(err)
	}
	defer ref.Release()
	return store.Lengths(idxs, wrap, out)
}

func (b *byHandle) gone(err error) error {
	if errors.Is(err, errs.ErrClosed) {
		return errs.ErrClosed.Errorf("its store %s was closed", b.path)
	}
	return fmt.Errorf("its store %s is not open any more: %w", b.path, err)
}
