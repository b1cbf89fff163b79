package pybind

import (
	"context"
	"encoding/json"

	"loaderx/gopkg/handle"
	"loaderx/gopkg/mem"
	"loaderx/gopkg/rowtable"
)

// RowsOpen opens the row table at a path as the reserved handle id; policy is
// one of rowtable's. threads, chunkRows and plainRowBytes are as in its Options.
func RowsOpen(id int64, path uint64, pathLen, cacheBytes, policy, threads, chunkRows, plainRowBytes int64) (status int64) {
	enter()
	defer guard(&status)
	name, err := pathOf(path, pathLen)
	if err != nil {
		return fail(err)
	}
	rows, err := rowtable.Open(name, rowtable.Options{
		CacheBytes: cacheBytes, CachePolicy: rowtable.Policy(small(policy)), Threads: int(threads), ChunkRows: chunkRows,
		PlainRowBytes: plainRowBytes,
	})
	if err != nil {
		return fail(err)
	}
	return done(0, table.Fill(id, rows))
}

// RowsInfo writes what a table consists of as JSON into buf.
func RowsInfo(id int64, buf uint64, capacity int64) (status int64) {
	enter()
	defer guard(&status)
	return describe(id, buf, capacity, func(rows *rowtable.Table) any { return rows.Info() })
}

// RowsStats writes a table's counters as JSON into buf.
func RowsStats(id int64, buf uint64, capacity int64) (status int64) {
	enter()
	defer guard(&status)
	return describe(id, buf, capacity, func(rows *rowtable.Table) any { return rows.Stats() })
}

func describe(id int64, buf uint64, capacity int64, what func(*rowtable.Table) any) int64 {
	rows, ref, err := handle.Use[*rowtable.Table](&table, id)
	if err != nil {
		return fail(err)
	}
	defer ref.Release()
	text, err := json.Marshal(what(rows))
	if err != nil {
		return fail(err)
	}
	return done(fill(text, buf, capacity))
}

// RowsGather copies the rows of ids[start:n] to consecutive rows of dst. It
// works for a limited time and returns where to go on: call it again until
// that is n. unsignedIds is 1 when ids are uint64.
func RowsGather(id int64, ids uint64, n, unsignedIds, start int64, dst uint64, dstLen int64) (status int64) {
	enter()
	defer guard(&status)
	rows, ref, err := handle.Use[*rowtable.Table](&table, id)
	if err != nil {
		return fail(err)
	}
	defer ref.Release()
	in, out, err := gatherArgs(ids, n, dst, dstLen)
	if err != nil {
		return fail(err)
	}
	next, err := rows.Gather(in, unsignedIds != 0, out, int(start), callBudget)
	return done(int64(next), err)
}

// RowsGatherAll starts, as the reserved handle job, a job that does the same
// for all ids. It is for queries that may decode many blocks, which are not
// left halfway.
func RowsGatherAll(job, id int64, ids uint64, n, unsignedIds int64, dst uint64, dstLen int64) (status int64) {
	enter()
	defer guard(&status)
	in, out, err := gatherArgs(ids, n, dst, dstLen)
	if err != nil {
		return fail(err)
	}
	return onTable(job, id, func(ctx context.Context, rows *rowtable.Table) (int64, error) {
		return 0, rows.GatherAll(ctx, in, unsignedIds != 0, out)
	})
}

func gatherArgs(ids uint64, n int64, dst uint64, dstLen int64) (in []int64, out []byte, err error) {
	if in, err = mem.Slice[int64](ids, n); err == nil {
		out, err = mem.Slice[byte](dst, dstLen)
	}
	return in, out, err
}

// RowsPrefetch has the rows of n ids read in the background; ids are not used
// after it returned.
func RowsPrefetch(id int64, ids uint64, n, unsignedIds int64) (status int64) {
	enter()
	defer guard(&status)
	rows, ref, err := handle.Use[*rowtable.Table](&table, id)
	if err != nil {
		return fail(err)
	}
	defer ref.Release()
	in, err := mem.Slice[int64](ids, n)
	if err != nil {
		return fail(err)
	}
	return done(0, rows.Prefetch(in, unsignedIds != 0))
}

// RowsSetCache replaces a table's cache by an empty one.
func RowsSetCache(id, cacheBytes, policy int64) (status int64) {
	enter()
	defer guard(&status)
	rows, ref, err := handle.Use[*rowtable.Table](&table, id)
	if err != nil {
		return fail(err)
	}
	defer ref.Release()
	return done(0, rows.SetCache(cacheBytes, rowtable.Policy(small(policy))))
}

// RowsVerify starts a job that checks a whole table; its result is the number
// of faults, which the watch keeps as findings with their blocks. It tells the
// bytes read.
func RowsVerify(job, id, watchID int64) (status int64) {
	enter()
	defer guard(&status)
	return onWatchedTable(job, id, watchID, func(ctx context.Context, rows *rowtable.Table, w *handle.Watch) (int64, error) {
		return rows.Verify(ctx, w.Find, w.Progress)
	})
}

// RowsChecksum starts a job that writes the SHA-256 of a table's file, 32
// bytes, to out. The watch tells the bytes read.
func RowsChecksum(job, id int64, out uint64, watchID int64) (status int64) {
	enter()
	defer guard(&status)
	sum, err := mem.Slice[byte](out, 32)
	if err != nil {
		return fail(err)
	}
	return onWatchedTable(job, id, watchID, func(ctx context.Context, rows *rowtable.Table, w *handle.Watch) (int64, error) {
		digest, err := rows.Checksum(ctx, w.Progress)
		copy(sum, digest[:])
		return 0, err
	})
}

// onTable starts work on a row table as the reserved handle job, which keeps
// the table open.
func onTable(job, id int64, work func(context.Context, *rowtable.Table) (int64, error)) int64 {
	rows, ref, err := handle.Use[*rowtable.Table](&table, id)
	if err != nil {
		return fail(err)
	}
	return done(0, table.Fill(job, handle.StartJob(func(ctx context.Context) (int64, error) {
		defer ref.Release()
		return work(ctx, rows)
	})))
}

// onWatchedTable starts work on a row table as a job that a watch follows.
func onWatchedTable(job, id, watchID int64, work func(context.Context, *rowtable.Table, *handle.Watch) (int64, error)) int64 {
	watch, ref, err := handle.Use[*handle.Watch](&table, watchID)
	if err != nil {
		return fail(err)
	}
	status := onTable(job, id, func(ctx context.Context, rows *rowtable.Table) (int64, error) {
		defer ref.Release()
		return work(ctx, rows, watch)
	})
	if status < 0 {
		ref.Release()
	}
	return status
}
