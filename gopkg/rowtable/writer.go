package rowtable

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
	"loaderx/gopkg/osfile"
)

// Writer writes one table, which appears at its path as a whole when Finish
// returns. Rows are compressed on several goroutines and written in order.
// One call at a time does its work; the others wait.
//
// Beside the caller's rows it holds, for each thread and two more, two buffers
// of half a megabyte or of a block, whichever is larger; for each thread the
// codec's own memory and three blocks more; and 32 bytes for each block. With
// Deduplicate or an order there are 8 bytes for each row, twice that while the
// list grows, and with Deduplicate up to 64 bytes for each row that is stored.
type Writer struct {
	mu    sync.Mutex
	opt   PackOptions
	draft *osfile.Draft
	file  disk
	err   error // that ended it
	ended bool  // by Finish or Close

	rows   int64   // given
	stored int64   // in batches
	places []int64 // the place of each row; nil while each is at its own number
	share  *sharer // nil unless equal rows are stored once

	todo    chan *batch
	reading sync.WaitGroup // batches whose rows are still in the caller's hands
	stopped atomic.Bool    // they are not needed any more
	current *batch         // takes rows
	queue   []*batch       // under way, the oldest first
	free    []*batch
	made    int

	base        int64 // where the blocks begin in the draft
	at          int64 // bytes of blocks written
	descriptors []byte
	shuffled    bool
	version     uint32
	rawOnly     bool
	counts      [Zstd + 1][XORShuffle + 1]Encoding
}

// disk is what a Writer needs of its file.
type disk interface {
	io.ReaderAt
	io.WriterAt
	Truncate(size int64) error
}

// batch is some consecutive blocks on their way.
type batch struct {
	src    []byte
	fill   func(dst []byte) error // brings the rows of src; nil if they are there
	out    []byte
	stored []byte // src or out
	blocks []descriptor
	err    error
	done   chan struct{}
}

// NewWriter begins a table, which will replace what is at path. The caller
// ends it with Finish or Close.
func NewWriter(path string, opt PackOptions) (*Writer, error) {
	opt, err := opt.settled()
	if err != nil {
		return nil, fmt.Errorf("pack %s: %w", path, err)
	}
	w := &Writer{opt: opt, version: 1, rawOnly: true}
	encoders := make([]*encoder, opt.Threads)
	for i := range encoders {
		if encoders[i], err = newEncoder(&w.opt); err != nil {
			return nil, fmt.Errorf("pack %s: %w", path, err)
		}
	}
	if w.draft, err = osfile.NewDraft(path); err != nil {
		return nil, fmt.Errorf("pack %s: %w", path, err)
	}
	w.file = w.draft.File()
	w.base = payloadAlign
	if opt.Deduplicate {
		w.share = newSharer()
	} else if opt.Rows > 0 {
		w.base = payloadAt(opt.Rows, blocksOf(opt.Rows, opt.BlockRows), opt.Version < 3)
	}
	w.todo = make(chan *batch, w.window())
	for _, e := range encoders {
		go w.work(e)
	}
	return w, nil
}

// window is how many batches there are.
func (w *Writer) window() int { return w.opt.Threads + 2 }

// File returns the open file that the table is written to.
func (w *Writer) File() *os.File { return w.draft.File() }

// work compresses batches until there will be no more.
func (w *Writer) work(e *encoder) {
	for b := range w.todo {
		b.err = mem.Guard(func() error { return w.bring(b) })
		if b.err == nil && !w.stopped.Load() {
			b.err = mem.Guard(func() error { return e.encode(b) })
		}
		b.done <- struct{}{}
	}
}

// bring copies a batch's rows from the caller's memory.
func (w *Writer) bring(b *batch) error {
	if b.fill == nil {
		return nil
	}
	defer w.reading.Done()
	if w.stopped.Load() {
		return nil
	}
	return b.fill(b.src)
}

// Write appends whole rows. Rows may be mapped from a file, and are the
// caller's again when it returns.
func (w *Writer) Write(ctx context.Context, rows []byte) error {
	return w.do(func() error {
		if int64(len(rows))%w.opt.RowBytes != 0 {
			return fmt.Errorf("%d bytes are not whole rows of %d: %w", len(rows), w.opt.RowBytes, errs.ErrArgument)
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%w: %w", errs.ErrCancelled, err)
		}
		if w.share != nil {
			return w.shareRows(ctx, rows)
		}
		w.rows += int64(len(rows)) / w.opt.RowBytes
		return w.store(ctx, rows)
	})
}

// do runs one call; an error is the last thing that a Writer does.
func (w *Writer) do(call func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	if w.ended {
		return fmt.Errorf("pack %s: the writer has ended: %w", w.draft.Path(), errs.ErrClosed)
	}
	if err := mem.Guard(call); err != nil {
		w.err = fmt.Errorf("pack %s: %w", w.draft.Path(), err)
		w.stop()
	}
	return w.err
}

// store appends rows to the blocks.
func (w *Writer) store(ctx context.Context, rows []byte) error {
	w.stored += int64(len(rows)) / w.opt.RowBytes
	for len(rows) > 0 {
		if w.current == nil {
			b, err := w.take(ctx)
			if err != nil {
				return err
			}
			w.current = b
		}
		b := w.current
		n := copy(b.src[len(b.src):cap(b.src)], rows)
		b.src, rows = b.src[:len(b.src)+n], rows[n:]
		if len(b.src) == cap(b.src) {
			w.current = nil
			w.send(b)
		}
	}
	return nil
}

// take returns a batch without rows, once there is one.
func (w *Writer) take(ctx context.Context) (*batch, error) {
	if len(w.free) == 0 && w.made < w.window() {
		size := w.opt.batchRows() * w.opt.RowBytes
		if err := spare(batchCopies * size); err != nil {
			return nil, err
		}
		w.made++
		return &batch{src: make([]byte, 0, size), done: make(chan struct{}, 1)}, nil
	}
	for len(w.free) == 0 {
		if err := w.retire(ctx); err != nil {
			return nil, err
		}
	}
	b := w.free[len(w.free)-1]
	w.free = w.free[:len(w.free)-1]
	b.src, b.fill = b.src[:0], nil
	return b, nil
}

// batchCopies is how often the rows of a batch are in memory while they are
// compressed: as they are, behind a predictor, and in the forms that are compared.
const batchCopies = 4

// send has a batch compressed.
func (w *Writer) send(b *batch) {
	if b.fill != nil {
		w.reading.Add(1)
	}
	w.queue = append(w.queue, b)
	w.todo <- b
}

// retire waits for the oldest batch and writes its blocks.
func (w *Writer) retire(ctx context.Context) error {
	b := w.queue[0]
	select {
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", errs.ErrCancelled, ctx.Err())
	case <-b.done:
	}
	w.queue = append(w.queue[:0], w.queue[1:]...)
	if b.err != nil {
		return b.err
	}
	if _, err := w.file.WriteAt(b.stored, w.base+w.at); err != nil {
		return err
	}
	for _, d := range b.blocks {
		d.at += w.at
		w.descriptors = d.append(w.descriptors)
		w.version = max(w.version, d.version())
		w.shuffled = w.shuffled || d.predictor >= Shuffle
		w.rawOnly = w.rawOnly && d.codec == Raw
		count := &w.counts[d.codec][d.predictor]
		count.Blocks++
		count.Bytes += d.bytes
		count.RawBytes += d.rows * w.opt.RowBytes
	}
	w.at += int64(len(b.stored))
	w.free = append(w.free, b)
	return nil
}

// stop ends the goroutines. They keep to their own memory from then on, so
// that nobody has to wait for the one that compresses.
func (w *Writer) stop() {
	if !w.stopped.Swap(true) {
		close(w.todo)
	}
	w.reading.Wait()
	w.current, w.queue, w.free = nil, nil, nil
}

// Close ends the writer. Without Finish before it, what was at the path stays
// there and the rows are lost. A second call does nothing.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return nil
	}
	w.ended = true
	w.stop()
	return w.discard()
}

// Abort is Close for those who have nothing to do with its error.
func (w *Writer) Abort() { _ = w.Close() }

func (w *Writer) discard() error {
	err := w.draft.Discard()
	if w.share != nil {
		err = w.share.close(err)
	}
	return err
}
