// Package pybind is the surface that gopy turns into the Python extension:
// flat functions over integers that translate and nothing more. README.md in
// this folder says how to add one.
//
// Every function returns a status: zero or more is the result, a negative
// number is minus the ticket of an error, which TakeError tells. Buffers come
// as addresses; the Python side keeps them alive during the call, and for a
// function that starts a job until JobWait has reported its end.
package pybind

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime/debug"
	"sync/atomic"
	"time"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/handle"
	"loaderx/gopkg/mem"
	"loaderx/gopkg/osfile"
	"loaderx/gopkg/pipeline"
)

var (
	table   handle.Table
	tickets handle.Tickets
	running atomic.Int64 // calls inside the engine
)

// fail turns an error into a negative status.
func fail(err error) int64 { return -tickets.Put(err) }

// done turns the outcome of a call into a status.
func done(result int64, err error) int64 {
	if err != nil {
		return fail(err)
	}
	return result
}

// enter counts a call that runs; each function begins with it and defers guard.
// The caller's buffers may be mapped files that shrink: a fault on them is a
// panic from here on, for this goroutine, which only ever runs such calls.
func enter() {
	running.Add(1)
	debug.SetPanicOnFault(true)
}

// guard is deferred by every function. A panic that left the engine would end
// the Python process, so it becomes an internal error.
func guard(status *int64) {
	if v := recover(); v != nil {
		*status = fail(mem.PanicError(v))
	}
	running.Add(-1)
}

// small narrows a number to a byte; one that does not fit becomes 255, which
// every room refuses.
func small(v int64) uint8 {
	if v < 0 || v > 255 {
		return 255
	}
	return uint8(v)
}

// fill copies text into the caller's buffer when it fits and returns the
// number of bytes it needs.
func fill(text []byte, buf uint64, capacity int64) (int64, error) {
	if int64(len(text)) > capacity {
		return int64(len(text)), nil
	}
	dst, err := mem.Slice[byte](buf, capacity)
	if err != nil {
		return 0, err
	}
	return int64(copy(dst, text)), nil
}

// EngineInit tells the engine which process generation it serves, so that ids
// of different generations differ. Python calls it once after loading.
//
// The run-time's poller takes two descriptors when the first timer starts, and
// ends the process if it can't have them: so that is tried here, where it can
// still be an error.
func EngineInit(generation int64) (status int64) {
	enter()
	defer guard(&status)
	if err := osfile.Spare(4); err != nil {
		return fail(fmt.Errorf("start the engine, which needs four file descriptors: %w", err))
	}
	time.AfterFunc(time.Hour, func() {}).Stop()
	table.SetGeneration(generation)
	return 0
}

// NumHandles returns how many engine objects and jobs exist.
func NumHandles() (status int64) {
	enter()
	defer guard(&status)
	return table.Len()
}

// TakeError writes the error of a ticket as JSON (code, errno, text) into buf
// and forgets it; when capacity is too small it writes and forgets nothing.
// It returns the number of bytes needed, 0 for an unknown ticket.
func TakeError(ticket int64, buf uint64, capacity int64) (status int64) {
	enter()
	defer guard(&status)
	err := tickets.Get(ticket)
	if err == nil {
		return 0
	}
	text, jsonErr := json.Marshal(struct {
		Code  errs.Code `json:"code"`
		Errno int       `json:"errno"`
		Text  string    `json:"text"`
	}{errs.CodeOf(err), errs.Errno(err), err.Error()})
	if jsonErr != nil {
		return 0
	}
	n, fillErr := fill(text, buf, capacity)
	if fillErr != nil {
		return 0
	}
	if n <= capacity {
		tickets.Drop(ticket)
	}
	return n
}

// ErrorList writes the sentinels (code and name of each) as JSON into buf.
func ErrorList(buf uint64, capacity int64) (status int64) {
	enter()
	defer guard(&status)
	type row struct {
		Code errs.Code `json:"code"`
		Name string    `json:"name"`
	}
	var rows []row
	for _, e := range errs.All() {
		rows = append(rows, row{e.Code(), e.Name()})
	}
	text, err := json.Marshal(rows)
	if err != nil {
		return fail(err)
	}
	return done(fill(text, buf, capacity))
}

// HandleReserve returns an id for an object that a later call brings: the
// caller knows it before the object exists, so that no interruption can lose it.
func HandleReserve() (status int64) {
	enter()
	defer guard(&status)
	return done(table.Reserve())
}

// dropWait is how long giving up an object waits for its end, so that what it
// held is free again for the caller's next step, as a rule.
const dropWait = 20 * time.Millisecond

// HandleClose closes an object, or gives back a reserved id, and waits up to
// waitMs for its users to leave and for its own closing. It returns 1 when that
// is over and 0 when it is not: call it again. With a negative waitMs the
// object ends by itself and nobody is told how.
func HandleClose(id, waitMs int64) (status int64) {
	enter()
	defer guard(&status)
	if waitMs < 0 {
		if closed, _ := table.Close(id, dropWait); !closed {
			table.Abandon(id)
		}
		return 1
	}
	closed, err := table.Close(id, time.Duration(waitMs)*time.Millisecond)
	if err != nil {
		return fail(err)
	}
	if closed {
		return 1
	}
	return 0
}

// JobWait waits up to waitMs for a job. It returns 0 while the job runs, and
// its result plus 1 at the end; the end, good or bad, also forgets the job.
func JobWait(id, waitMs int64) (status int64) {
	enter()
	defer guard(&status)
	job, ref, err := handle.Use[*handle.Job](&table, id)
	if err != nil {
		return fail(err)
	}
	ended, result, err := job.Wait(time.Duration(waitMs) * time.Millisecond)
	ref.Release()
	if !ended {
		return 0
	}
	if closed, _ := table.Close(id, dropWait); !closed {
		table.Abandon(id)
	}
	return done(result+1, err)
}

// JobEnd cancels a job and forgets it, started or not. With wait other than 0
// it returns when the job has ended and uses no memory of the caller's any
// more. It is one call, so that Python can make it as the first thing when it
// is interrupted: between calls it may be interrupted again.
func JobEnd(id, wait int64) (status int64) {
	enter()
	defer guard(&status)
	job, ref, err := handle.Use[*handle.Job](&table, id)
	if err == nil {
		job.Cancel()
		if wait != 0 {
			_ = job.Close()
		}
		ref.Release()
	}
	if closed, _ := table.Close(id, dropWait); !closed {
		table.Abandon(id)
	}
	return 0
}

// EngineShutdown cancels every job, stops every pipeline and waits up to waitMs
// until no other call, no job and no pipeline runs. It returns 1 when that is
// so and 0 otherwise.
func EngineShutdown(waitMs int64) (status int64) {
	enter()
	defer guard(&status)
	for end := time.Now().Add(time.Duration(waitMs) * time.Millisecond); ; time.Sleep(200 * time.Microsecond) {
		busy := running.Load() > 1 || table.Closing() > 0
		table.Each(func(obj io.Closer) {
			switch obj := obj.(type) {
			case *handle.Job:
				obj.Cancel()
				ended, _, _ := obj.Wait(0)
				busy = busy || !ended
			case *pipeline.Pipeline:
				obj.Stop()
				busy = busy || !obj.Stopped()
			}
		})
		if !busy {
			return 1
		}
		if time.Now().After(end) {
			return 0
		}
	}
}
