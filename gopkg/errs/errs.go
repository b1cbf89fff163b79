// Package errs holds every sentinel error of the engine with its stable code.
//
// Rooms wrap a sentinel with context (operation, path, got, want) by %w; the
// Python boundary asks CodeOf for the number and passes the text on.
package errs

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// Code is the stable number of a kind of error. Codes -1 to -9 are those of
// loaderx; a code is never reused for another meaning.
type Code int32

// Error is a sentinel: a kind of failure with its code and a short name.
type Error struct {
	code Code
	name string
	text string
}

// Error returns the kind's text, lowercase and without context.
func (e *Error) Error() string { return e.text }

// Code returns the stable code.
func (e *Error) Code() Code { return e.code }

// Name returns the stable identifier that the Python boundary maps to a class.
func (e *Error) Name() string { return e.name }

// Errorf returns an error of the kind whose text is the format's alone: for a
// text that says itself what the kind's would only repeat.
func (e *Error) Errorf(format string, args ...any) error {
	return &said{e, fmt.Sprintf(format, args...)}
}

// said is an error that says in its own words of which kind it is.
type said struct {
	kind *Error
	text string
}

func (s *said) Error() string { return s.text }
func (s *said) Unwrap() error { return s.kind }

// Resources and files.
var (
	// ErrMemory reports that memory could not be had.
	ErrMemory = add(-1, "memory", "out of memory")
	// ErrIO reports a failed file operation.
	ErrIO = add(-2, "io", "file operation failed")
	// ErrNotFound reports that no store, table or file is at the path.
	ErrNotFound = add(-15, "not_found", "not found")
	// ErrExists reports that something is at the path already.
	ErrExists = add(-18, "exists", "already exists")
	// ErrLocked reports that another writer holds the lock.
	ErrLocked = add(-14, "locked", "locked by another writer")
	// ErrInUse reports that other handles keep the object open.
	ErrInUse = add(-19, "in_use", "in use")
	// ErrReadOnly reports a write through a read-only handle.
	ErrReadOnly = add(-13, "read_only", "opened read-only")
	// ErrFault reports that a mapped file shrank or failed under a read.
	ErrFault = add(-16, "fault", "mapped file changed or failed while it was read")
)

// What a caller passed.
var (
	// ErrIndex reports an index outside the object.
	ErrIndex = add(-3, "index", "index out of range")
	// ErrRecordSize reports a record outside the format's size limits.
	ErrRecordSize = add(-4, "record_size", "record size outside the format's limits")
	// ErrFull reports that a format, or a table, holds no more.
	ErrFull = add(-5, "full", "no room for more")
	// ErrBuffer reports a buffer too small for what goes into it.
	ErrBuffer = add(-6, "buffer", "buffer too small")
	// ErrArgument reports a value that is not allowed.
	ErrArgument = add(-11, "argument", "invalid argument")
	// ErrType reports a dtype or type that is not allowed.
	ErrType = add(-12, "type", "unsupported type")
	// ErrDict reports a dictionary that can't be trained, is missing, or may not
	// be replaced.
	ErrDict = add(-9, "dictionary", "no usable dictionary")
)

// Data on disk.
var (
	// ErrCorrupt reports stored bytes that do not decode to what was written.
	ErrCorrupt = add(-7, "corrupt", "stored data is corrupt")
	// ErrFormat reports a file of another format or a newer version.
	ErrFormat = add(-8, "format", "not a supported file format")
)

// Life of objects.
var (
	// ErrClosed reports a call on a closed or unknown handle.
	ErrClosed = add(-10, "closed", "closed")
	// ErrCancelled reports work stopped by its caller.
	ErrCancelled = add(-20, "cancelled", "cancelled")
	// ErrStale reports a handle of another process, kept over a fork. Only
	// Python and the C files of capi raise it, which know of forks; it is listed
	// here because all codes are numbered in one place.
	ErrStale = add(-21, "stale", "handle belongs to another process")
	// ErrInternal reports a bug: a recovered panic.
	ErrInternal = add(-17, "internal", "internal error")
)

var all []*Error

func add(code Code, name, text string) *Error {
	e := &Error{code: code, name: name, text: text}
	all = append(all, e)
	return e
}

// All returns the sentinels; the caller must not change the slice.
func All() []*Error { return all }

// CodeOf returns the code of the first sentinel that err wraps. Errors of the
// operating system become ErrNotFound, ErrMemory or ErrIO; anything else is
// ErrInternal. It returns 0 for nil.
func CodeOf(err error) Code {
	if err == nil {
		return 0
	}
	var sentinel *Error
	if errors.As(err, &sentinel) {
		return sentinel.code
	}
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNotFound.code
	}
	if errors.Is(err, syscall.ENOMEM) {
		return ErrMemory.code
	}
	var pathErr *fs.PathError
	if Errno(err) != 0 || errors.As(err, &pathErr) {
		return ErrIO.code
	}
	return ErrInternal.code
}

// Errno returns the operating system's error number in err's chain, or 0.
func Errno(err error) int {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return int(errno)
	}
	return 0
}
