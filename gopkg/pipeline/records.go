package pipeline

import (
	"fmt"
	"time"

	"loaderx/gopkg/handle"
	"loaderx/gopkg/zrecord"
)

// ByHandle reads a store by its id in a table, looked up for every read: a
// pipeline does not keep open what its user closes, and reads then fail with
// errs.ErrClosed.
func ByHandle(table *handle.Table, id int64) Records { return &byHandle{table, id} }

type byHandle struct {
	table *handle.Table
	id    int64
}

func (b *byHandle) Gather(r *zrecord.Request, from int, budget time.Duration) (int, error) {
	store, ref, err := handle.Use[*zrecord.Store](b.table, b.id)
	if err != nil {
		return from, gone(err)
	}
	defer ref.Release()
	return store.Gather(r, from, budget)
}

func (b *byHandle) Lengths(idxs []int64, wrap int64, out []uint32) (int64, error) {
	store, ref, err := handle.Use[*zrecord.Store](b.table, b.id)
	if err != nil {
		return 0, gone(err)
	}
	defer ref.Release()
	return store.Lengths(idxs, wrap, out)
}

func gone(err error) error { return fmt.Errorf("its store is not open any more: %w", err) }
