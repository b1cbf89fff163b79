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
	"io"
	"sync/atomic"
	"time"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/handle"
	"loaderx/gopkg/mem"
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
func enter() { running.Add(1) }

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
// of different generations never coincide. Python calls it once after loading.
func EngineInit(generation int64) (status int64) {
	enter()
	defer guard(&status)
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

// HandleClose closes an object and waits for its users up to waitMs; it
// returns 1 when it is closed and 0 when users remain: call it again. With a
// negative waitMs nobody waits and the last user closes the object.
func HandleClose(id, waitMs int64) (status int64) {
	enter()
	defer guard(&status)
	if waitMs < 0 {
		table.Abandon(id)
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
	table.Abandon(id)
	return done(result+1, err)
}

// JobCancel asks a job to stop; JobWait tells when it has.
func JobCancel(id int64) (status int64) {
	enter()
	defer guard(&status)
	job, ref, err := handle.Use[*handle.Job](&table, id)
	if err != nil {
		return fail(err)
	}
	job.Cancel()
	ref.Release()
	return 0
}

// EngineShutdown cancels every job, stops every pipeline and waits up to waitMs
// until no other call, no job and no pipeline runs. It returns 1 when that is
// so and 0 otherwise.
func EngineShutdown(waitMs int64) (status int64) {
	enter()
	defer guard(&status)
	for end := time.Now().Add(time.Duration(waitMs) * time.Millisecond); ; time.Sleep(200 * time.Microsecond) {
		busy := running.Load() > 1
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
