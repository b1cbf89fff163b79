package pybind

import (
	"context"
	"encoding/json"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/handle"
	"loaderx/gopkg/mem"
	"loaderx/gopkg/zrecord"
)

// findingsAtOnce bounds the text of one WatchTake.
const findingsAtOnce = 1000

// WatchNew makes a watch, through which a job tells of itself, as the reserved
// handle id; HandleClose ends it.
func WatchNew(id int64) (status int64) {
	enter()
	defer guard(&status)
	return done(0, table.Fill(id, new(handle.Watch)))
}

// WatchProgress writes how much is done, and of how much, to out (two int64).
func WatchProgress(id int64, out uint64) (status int64) {
	enter()
	defer guard(&status)
	watch, ref, err := handle.Use[*handle.Watch](&table, id)
	if err != nil {
		return fail(err)
	}
	defer ref.Release()
	pair, err := mem.Slice[int64](out, 2)
	if err != nil {
		return fail(err)
	}
	pair[0], pair[1] = watch.Done()
	return 0
}

// WatchTake writes the oldest findings (index, code and text of each) as JSON
// into buf and forgets them; when capacity is too small it writes and forgets
// nothing. It returns the number of bytes needed.
func WatchTake(id int64, buf uint64, capacity int64) (status int64) {
	enter()
	defer guard(&status)
	watch, ref, err := handle.Use[*handle.Watch](&table, id)
	if err != nil {
		return fail(err)
	}
	defer ref.Release()
	watch.Take(findingsAtOnce, func(findings []handle.Finding) bool {
		text, err := json.Marshal(findings)
		if err == nil {
			status, err = fill(text, buf, capacity)
		}
		if err != nil {
			status = fail(err)
		}
		return err == nil && status <= capacity
	})
	return status
}

// onWatched starts work on a store as a job that a watch follows.
func onWatched(job, id, watchID int64, work func(context.Context, *zrecord.Store, *handle.Watch) (int64, error)) int64 {
	watch, ref, err := handle.Use[*handle.Watch](&table, watchID)
	if err != nil {
		return fail(err)
	}
	status := onStore(job, id, func(ctx context.Context, store *zrecord.Store) (int64, error) {
		defer ref.Release()
		return work(ctx, store, watch)
	})
	if status < 0 {
		ref.Release()
	}
	return status
}

// ZrDelete starts a job that deletes n records. wrap is 1 when negative
// indices count from the end.
func ZrDelete(job, id int64, idxs uint64, n, wrap int64) (status int64) {
	enter()
	defer guard(&status)
	in, err := mem.Slice[int64](idxs, n)
	if err != nil {
		return fail(err)
	}
	return onStore(job, id, func(ctx context.Context, store *zrecord.Store) (int64, error) {
		return 0, store.Delete(ctx, in, wrap != 0)
	})
}

// ZrCompact starts a job that compacts a store; the watch tells the bytes that
// are in place.
func ZrCompact(job, id, watch int64) (status int64) {
	enter()
	defer guard(&status)
	return onWatched(job, id, watch, func(ctx context.Context, store *zrecord.Store, w *handle.Watch) (int64, error) {
		return 0, store.Compact(ctx, w.Progress)
	})
}

// ZrVerify starts a job that reads every record; its result is the number of
// bad ones, which the watch keeps as findings. It tells the records read.
func ZrVerify(job, id, watch int64) (status int64) {
	enter()
	defer guard(&status)
	return onWatched(job, id, watch, func(ctx context.Context, store *zrecord.Store, w *handle.Watch) (int64, error) {
		return store.Verify(ctx, w.Find, w.Progress)
	})
}

// ZrStats starts a job that writes int64 to out: records, live bytes, chunk
// bytes, reclaimable bytes, lost records, and for each codec its number of
// records.
func ZrStats(job, id int64, out uint64) (status int64) {
	enter()
	defer guard(&status)
	numbers, err := mem.Slice[int64](out, 5+int64(codec.NumTags))
	if err != nil {
		return fail(err)
	}
	return onStore(job, id, func(_ context.Context, store *zrecord.Store) (int64, error) {
		st, err := store.Stats()
		if err == nil {
			copy(numbers, []int64{st.Records, st.LiveBytes, st.ChunkBytes, st.Reclaimable, st.Lost})
			copy(numbers[5:], st.ByCodec[:])
		}
		return 0, err
	})
}
