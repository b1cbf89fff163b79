package pybind

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/handle"
	"loaderx/gopkg/mem"
	"loaderx/gopkg/rowtable"
)

// packing is a writer and, at its end, its report.
type packing struct {
	*rowtable.Writer
	mu     sync.Mutex
	report *rowtable.Report
}

// packOptions are rowtable.PackOptions as Python writes them.
type packOptions struct {
	RowBytes      int64  `json:"row_bytes"`
	BlockRows     int64  `json:"block_rows"`
	MaxBlockBytes int64  `json:"max_block_bytes"`
	Codec         string `json:"codec"`
	Level         int    `json:"level"`
	Predictor     string `json:"predictor"`
	ElementBytes  int64  `json:"element_bytes"`
	Dtype         string `json:"dtype"` // name of a rowtable.RowKind, empty if it is not known
	Version       int    `json:"version"`
	Rows          int64  `json:"rows"`
	Deduplicate   bool   `json:"deduplicate"`
	Threads       int    `json:"threads"`
	SHA256        bool   `json:"sha256"`
}

func parsePackOptions(text []byte) (opt rowtable.PackOptions, err error) {
	var given packOptions
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&given); err != nil {
		return opt, fmt.Errorf("options of a table: %w: %w", errs.ErrArgument, err)
	}
	codec, err := rowtable.ParseCodec(given.Codec)
	if err != nil {
		return opt, err
	}
	predictor, err := rowtable.ParsePredictor(given.Predictor)
	if err != nil {
		return opt, err
	}
	kind, err := rowtable.ParseRowKind(given.Dtype)
	if err != nil {
		return opt, err
	}
	return rowtable.PackOptions{
		RowBytes: given.RowBytes, BlockRows: given.BlockRows, MaxBlockBytes: given.MaxBlockBytes,
		Codec: codec, Level: given.Level, Predictor: predictor, ElementBytes: given.ElementBytes, Kind: kind,
		Version: given.Version, Rows: given.Rows, Deduplicate: given.Deduplicate,
		Threads: given.Threads, SHA256: given.SHA256,
	}, nil
}

// RowsPackNew begins a table at a path as the reserved handle id, with options
// as JSON. Closing the handle gives the table up unless it is finished.
func RowsPackNew(id int64, path uint64, pathLen int64, options uint64, optionsLen int64) (status int64) {
	enter()
	defer guard(&status)
	name, err := pathOf(path, pathLen)
	if err != nil {
		return fail(err)
	}
	text, err := mem.Slice[byte](options, optionsLen)
	if err != nil {
		return fail(err)
	}
	opt, err := parsePackOptions(text)
	if err != nil {
		return fail(err)
	}
	w, err := rowtable.NewWriter(name, opt)
	if err != nil {
		return fail(err)
	}
	return done(0, table.Fill(id, &packing{Writer: w}))
}

// RowsPackFd returns the descriptor of the table that is written; a forked
// child closes its copy.
func RowsPackFd(id int64) (status int64) {
	enter()
	defer guard(&status)
	p, ref, err := handle.Use[*packing](&table, id)
	if err != nil {
		return fail(err)
	}
	defer ref.Release()
	return int64(p.File().Fd())
}

// RowsPackWrite starts, as the reserved handle job, a job that appends whole
// rows.
func RowsPackWrite(job, id int64, src uint64, srcLen int64) (status int64) {
	enter()
	defer guard(&status)
	rows, err := mem.Slice[byte](src, srcLen)
	if err != nil {
		return fail(err)
	}
	return onPacking(job, id, func(ctx context.Context, p *packing) (int64, error) {
		return 0, p.Write(ctx, rows)
	})
}

// RowsPackBuffer starts a job that writes all rows of a buffer, in an order of
// n rows or in their own if order is 0. The watch tells the bytes that are done.
func RowsPackBuffer(job, id int64, src uint64, srcLen int64, order uint64, n, watchID int64) (status int64) {
	enter()
	defer guard(&status)
	rows, err := mem.Slice[byte](src, srcLen)
	if err != nil {
		return fail(err)
	}
	places, err := orderOf(order, n)
	if err != nil {
		return fail(err)
	}
	return onWatchedPacking(job, id, watchID, func(ctx context.Context, p *packing, w *handle.Watch) (int64, error) {
		return 0, p.WriteFrom(ctx, bytes.NewReader(rows), int64(len(rows)), places, w.Progress)
	})
}

// RowsPackFile starts a job that does the same with the rows of a raw file.
func RowsPackFile(job, id int64, path uint64, pathLen int64, order uint64, n, watchID int64) (status int64) {
	enter()
	defer guard(&status)
	name, err := pathOf(path, pathLen)
	if err != nil {
		return fail(err)
	}
	places, err := orderOf(order, n)
	if err != nil {
		return fail(err)
	}
	return onWatchedPacking(job, id, watchID, func(ctx context.Context, p *packing, w *handle.Watch) (int64, error) {
		return 0, p.WriteFile(ctx, name, places, w.Progress)
	})
}

// RowsPackFinish starts a job that makes the table durable and puts it in its
// place.
func RowsPackFinish(job, id int64) (status int64) {
	enter()
	defer guard(&status)
	return onPacking(job, id, func(ctx context.Context, p *packing) (int64, error) {
		report, err := p.Finish(ctx)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.report = report
		return 0, err
	})
}

// RowsPackReport writes the report of a finished table as JSON into buf.
func RowsPackReport(id int64, buf uint64, capacity int64) (status int64) {
	enter()
	defer guard(&status)
	p, ref, err := handle.Use[*packing](&table, id)
	if err != nil {
		return fail(err)
	}
	defer ref.Release()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.report == nil {
		return fail(fmt.Errorf("the table is not finished: %w", errs.ErrArgument))
	}
	text, err := json.Marshal(p.report)
	if err != nil {
		return fail(err)
	}
	return done(fill(text, buf, capacity))
}

// orderOf views an order of rows, nil for address 0. An order of no rows is
// not nil, so that it is checked against their number.
func orderOf(addr uint64, n int64) ([]int64, error) {
	if addr == 0 {
		return nil, nil
	}
	order, err := mem.Slice[int64](addr, n)
	if order == nil {
		order = []int64{}
	}
	return order, err
}

// onPacking starts work on a table that is written, which stays open, as the
// reserved handle job. It releases the other objects that work uses, too.
func onPacking(job, id int64, work func(context.Context, *packing) (int64, error), used ...handle.Ref) int64 {
	release := func() {
		for _, ref := range used {
			ref.Release()
		}
	}
	p, ref, err := handle.Use[*packing](&table, id)
	if err != nil {
		release()
		return fail(err)
	}
	return done(0, table.Fill(job, handle.StartJob(func(ctx context.Context) (int64, error) {
		defer release()
		defer ref.Release()
		return work(ctx, p)
	})))
}

// onWatchedPacking does the same with a job that a watch follows.
func onWatchedPacking(job, id, watchID int64, work func(context.Context, *packing, *handle.Watch) (int64, error)) int64 {
	watch, ref, err := handle.Use[*handle.Watch](&table, watchID)
	if err != nil {
		return fail(err)
	}
	return onPacking(job, id, func(ctx context.Context, p *packing) (int64, error) {
		return work(ctx, p, watch)
	}, ref)
}
