// Package main is the C ABI of row tables: libmeft_rows, whose functions
// meft_rows.h declares and describes.
//
// shim.c has those functions; they call the ones in exports.go with pointers
// as numbers, which package mem checks and views. Nothing of Go's leaves them:
// a table is a number of package handle. faults.c keeps Go's handler of SIGBUS
// at work beside the host's own.
package main

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/handle"
	"loaderx/gopkg/mem"
	"loaderx/gopkg/osfile"
	"loaderx/gopkg/rowtable"
)

func main() {}

var tables handle.Table

// Handles begin so high that no pointer of a program is one by chance.
func init() { tables.SetGeneration(0x7fff) }

// opened is a table behind a handle.
type opened struct {
	*rowtable.Table
	closing atomic.Bool // somebody closes it; a second one comes too late
}

// report is where a caller's last error goes: memory of its thread for a text
// with a final zero, and for the text's size.
type report struct {
	text uint64
	room int64
	size uint64
}

// tell writes an error to its caller's thread and returns its code.
func (r report) tell(err error) int32 {
	if err == nil {
		return 0
	}
	text, textErr := mem.Slice[byte](r.text, r.room)
	size, sizeErr := mem.Slice[int64](r.size, 1)
	if textErr == nil && sizeErr == nil && len(text) > 0 {
		said := fmt.Sprint(err) // also where a nil pointer is the error
		n := copy(text[:len(text)-1], said)
		for n < len(said) && n > 0 && said[n]&0xC0 == 0x80 { // not in the middle of a character
			n--
		}
		text[n] = 0
		size[0] = int64(n) + 1
	}
	return int32(errs.CodeOf(err))
}

// run does the work of a call. The caller's buffers may be mapped files that
// shrink, so that a fault is an error here, too.
func (r report) run(work func() error) int32 {
	return r.tell(mem.Guard(work))
}

// on does work with the table behind a handle, which stays open meanwhile.
func (r report) on(id uint64, what string, work func(*rowtable.Table) error) int32 {
	return r.run(func() error {
		t, ref, err := use(id, what)
		if err != nil {
			return err
		}
		defer ref.Release()
		return work(t.Table)
	})
}

func use(id uint64, what string) (*opened, handle.Ref, error) {
	t, ref, err := handle.Use[*opened](&tables, int64(id))
	if err != nil {
		err = errs.ErrClosed.Errorf("%s: %#x is no open table", what, id)
	}
	return t, ref, err
}

// put stores a result at an address.
func put(at uint64, v int64) error {
	to, err := mem.Slice[int64](at, 1)
	if err == nil {
		to[0] = v
	}
	return err
}

var started struct {
	sync.Mutex
	done bool
}

// start makes the run-time's poller take its descriptors. It does so when the
// first timer starts, and ends the process if it can't have them: here that is
// still an error.
func start() error {
	started.Lock()
	defer started.Unlock()
	if started.done {
		return nil
	}
	if err := osfile.Spare(4); err != nil {
		return fmt.Errorf("open: the first table needs four file descriptors: %w", err)
	}
	time.AfterFunc(time.Hour, func() {}).Stop()
	started.done = true
	return nil
}

// open opens a table and returns its handle.
func open(path string, opt rowtable.Options) (int64, error) {
	if err := start(); err != nil {
		return 0, err
	}
	t, err := rowtable.Open(path, opt)
	if err != nil {
		return 0, err
	}
	id, err := tables.Reserve()
	if err != nil {
		_ = t.Close()
		return 0, err
	}
	return id, tables.Fill(id, &opened{Table: t})
}

// closeTable closes the table behind a handle; only the first of those who do
// it at once succeeds.
func closeTable(id uint64) error {
	t, ref, err := use(id, "close")
	if err != nil {
		return err
	}
	first := t.closing.CompareAndSwap(false, true)
	ref.Release()
	if !first {
		return errs.ErrClosed.Errorf("close: %#x is being closed already", id)
	}
	for {
		if closed, err := tables.Close(int64(id), time.Hour); closed {
			return err
		}
	}
}

// The run-time's own heap is small beside the callers' buffers; see pybind.
func init() { debug.SetGCPercent(50) }
