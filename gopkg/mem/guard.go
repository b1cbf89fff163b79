package mem

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"loaderx/gopkg/errs"
)

// Guard runs f so that neither a memory fault nor a panic leaves it. A fault
// on mapped memory (the file was truncated, the disk failed) becomes
// errs.ErrFault; any other panic becomes errs.ErrInternal with its stack.
//
// The setting behind it belongs to a goroutine: each goroutine that touches
// mapped memory runs under its own Guard.
func Guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer Recover(&err)
	return f()
}

// Recover stores a panic in *err as Guard does; it is for deferred calls in
// functions that arm the fault setting once for many calls.
func Recover(err *error) {
	if v := recover(); v != nil {
		*err = PanicError(v)
	}
}

// PanicError turns a recovered value into the error that Guard would return.
func PanicError(v any) error {
	if fault, ok := v.(interface {
		runtime.Error
		Addr() uintptr
	}); ok {
		return fmt.Errorf("read at address %#x: %w", fault.Addr(), errs.ErrFault)
	}
	if e, ok := v.(error); ok {
		return fmt.Errorf("%w: panic: %w\n%s", errs.ErrInternal, e, debug.Stack())
	}
	return fmt.Errorf("%w: panic: %v\n%s", errs.ErrInternal, v, debug.Stack())
}
