package pybind

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/handle"
	"loaderx/gopkg/mem"
	"loaderx/gopkg/schema"
	"loaderx/gopkg/zrecord"
)

// callBudget is about how long one gather may keep Python from seeing Ctrl-C.
const callBudget = 50 * time.Millisecond

// FormatInfo writes the names and limits of the record store as JSON into buf.
func FormatInfo(buf uint64, capacity int64) (status int64) {
	enter()
	defer guard(&status)
	codecs := map[string]int{}
	for _, tag := range codec.Tags() {
		codecs[tag.String()] = int(tag)
	}
	text, err := json.Marshal(map[string]any{
		"codecs":         codecs,
		"schema_file":    schema.FileName,
		"format":         schema.Format,
		"version":        schema.Version,
		"max_record_len": zrecord.MaxRecordLen,
		"max_records":    zrecord.MaxRecords,
		"max_dict_bytes": codec.MaxDictBytes,
	})
	if err != nil {
		return fail(err)
	}
	return done(fill(text, buf, capacity))
}

// pathOf copies the caller's bytes of a path.
func pathOf(addr uint64, n int64) (string, error) {
	raw, err := mem.Slice[byte](addr, n)
	return string(raw), err
}

// ZrOpen opens the record store at a path as the reserved handle id; mode is
// one of zrecord's, level the compression level of appends or 0.
func ZrOpen(id int64, path uint64, pathLen, mode, level int64) (status int64) {
	enter()
	defer guard(&status)
	name, err := pathOf(path, pathLen)
	if err != nil {
		return fail(err)
	}
	store, err := zrecord.Open(name, zrecord.Options{Mode: zrecord.Mode(mode), Level: int(level)})
	if err != nil {
		return fail(err)
	}
	return done(0, table.Fill(id, store))
}

// ZrLockFd returns the descriptor that holds a writing store's lock; a forked
// child closes its copy.
func ZrLockFd(id int64) (status int64) {
	enter()
	defer guard(&status)
	store, ref, err := handle.Use[*zrecord.Store](&table, id)
	if err != nil {
		return fail(err)
	}
	defer ref.Release()
	fd, err := store.LockFd()
	return done(int64(fd), err)
}

// ZrLen returns the number of records.
func ZrLen(id int64) (status int64) {
	enter()
	defer guard(&status)
	store, ref, err := handle.Use[*zrecord.Store](&table, id)
	if err != nil {
		return fail(err)
	}
	defer ref.Release()
	return store.Len()
}

// ZrGather copies the records idxs[start:n] to the byte offsets given for each
// in dst. It works for a limited time and returns where to go on: call it
// again until that is n. wrap is the length that negative indices count from: 0
// allows none, and -1 stands for the present one, with which a gather can't be
// gone on with.
func ZrGather(id int64, idxs uint64, n, wrap, start int64, dst uint64, dstLen int64, offsets uint64) (status int64) {
	enter()
	defer guard(&status)
	starts, err := mem.Slice[uint64](offsets, n)
	if err != nil {
		return fail(err)
	}
	if starts == nil {
		starts = []uint64{}
	}
	return gather(id, idxs, n, start, dst, dstLen, zrecord.Request{Wrap: wrap, Offsets: starts})
}

// ZrGatherDense copies the records idxs[start:n], each rowBytes long, to
// consecutive rows of dst. The result is as for ZrGather.
func ZrGatherDense(id int64, idxs uint64, n, wrap, start int64, dst uint64, dstLen, rowBytes int64) (status int64) {
	enter()
	defer guard(&status)
	return gather(id, idxs, n, start, dst, dstLen, zrecord.Request{Wrap: wrap, RowBytes: rowBytes})
}

// requests are used again, since a request escapes to the engine's workers.
var requests = sync.Pool{New: func() any { return new(zrecord.Request) }}

func gather(id int64, idxs uint64, n, start int64, dst uint64, dstLen int64, layout zrecord.Request) int64 {
	req := requests.Get().(*zrecord.Request)
	defer func() {
		*req = zrecord.Request{}
		requests.Put(req)
	}()
	*req = layout
	store, ref, err := handle.Use[*zrecord.Store](&table, id)
	if err != nil {
		return fail(err)
	}
	defer ref.Release()
	if req.Idxs, err = mem.Slice[int64](idxs, n); err != nil {
		return fail(err)
	}
	if req.Dst, err = mem.Slice[byte](dst, dstLen); err != nil {
		return fail(err)
	}
	next, err := store.Gather(req, int(start), callBudget)
	return done(int64(next), err)
}

// ZrLengths writes the byte lengths of n records into out (uint32) and returns
// their sum.
func ZrLengths(id int64, idxs uint64, n, wrap int64, out uint64) (status int64) {
	enter()
	defer guard(&status)
	store, ref, err := handle.Use[*zrecord.Store](&table, id)
	if err != nil {
		return fail(err)
	}
	defer ref.Release()
	in, err := mem.Slice[int64](idxs, n)
	if err != nil {
		return fail(err)
	}
	lengths, err := mem.Slice[uint32](out, n)
	if err != nil {
		return fail(err)
	}
	return done(store.Lengths(in, wrap, lengths))
}

// ZrAppend starts, as the reserved handle job, a job that appends n records; its result is the index of the
// first. Record i begins at offsets[i] of src, the last one ends at srcLen.
func ZrAppend(job, id int64, src uint64, srcLen int64, offsets uint64, n, tag int64) (status int64) {
	enter()
	defer guard(&status)
	data, err := mem.Slice[byte](src, srcLen)
	if err != nil {
		return fail(err)
	}
	starts, err := mem.Slice[uint64](offsets, n)
	if err != nil {
		return fail(err)
	}
	return onStore(job, id, func(ctx context.Context, store *zrecord.Store) (int64, error) {
		return store.Append(ctx, data, starts, codec.Tag(small(tag)))
	})
}

// ZrSync starts a job that makes appended records durable and visible to
// readers in other processes.
func ZrSync(job, id int64) (status int64) {
	enter()
	defer guard(&status)
	return onStore(job, id, func(_ context.Context, store *zrecord.Store) (int64, error) {
		return 0, store.Sync()
	})
}

// ZrDiscard starts a job that forgets what was appended since the last sync;
// afterwards the store can only be closed.
func ZrDiscard(job, id int64) (status int64) {
	enter()
	defer guard(&status)
	return onStore(job, id, func(_ context.Context, store *zrecord.Store) (int64, error) {
		return 0, store.Discard()
	})
}

// ZrTrainDict starts a job that trains the store's dictionary on n samples
// that lie back to back; its result is the dictionary's size.
func ZrTrainDict(job, id int64, samples uint64, samplesLen int64, sizes uint64, n, target int64) (status int64) {
	enter()
	defer guard(&status)
	data, err := mem.Slice[byte](samples, samplesLen)
	if err != nil {
		return fail(err)
	}
	lengths, err := mem.Slice[uint64](sizes, n)
	if err != nil {
		return fail(err)
	}
	return onStore(job, id, func(ctx context.Context, store *zrecord.Store) (int64, error) {
		return store.TrainDict(ctx, data, lengths, target)
	})
}

// ZrHasDict returns 1 when the store has a dictionary.
func ZrHasDict(id int64) (status int64) {
	enter()
	defer guard(&status)
	store, ref, err := handle.Use[*zrecord.Store](&table, id)
	if err != nil {
		return fail(err)
	}
	defer ref.Release()
	if store.HasDict() {
		return 1
	}
	return 0
}

// onStore starts work on a store as the reserved handle job, which keeps the
// store open.
func onStore(job, id int64, work func(context.Context, *zrecord.Store) (int64, error)) int64 {
	store, ref, err := handle.Use[*zrecord.Store](&table, id)
	if err != nil {
		return fail(err)
	}
	return done(0, table.Fill(job, handle.StartJob(func(ctx context.Context) (int64, error) {
		defer ref.Release()
		return work(ctx, store)
	})))
}

// SchemaRead writes the schema of the store at a path as JSON into buf.
func SchemaRead(path uint64, pathLen int64, buf uint64, capacity int64) (status int64) {
	enter()
	defer guard(&status)
	name, err := pathOf(path, pathLen)
	if err != nil {
		return fail(err)
	}
	text, err := schema.Read(name)
	if err != nil {
		return fail(err)
	}
	return done(fill(text, buf, capacity))
}

// SchemaWrite stores a schema given as JSON in the store at a path.
func SchemaWrite(path uint64, pathLen int64, text uint64, textLen int64) (status int64) {
	enter()
	defer guard(&status)
	name, err := pathOf(path, pathLen)
	if err != nil {
		return fail(err)
	}
	raw, err := mem.Slice[byte](text, textLen)
	if err != nil {
		return fail(err)
	}
	return done(0, schema.Write(name, raw))
}
