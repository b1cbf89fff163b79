// Package mem is the only room that uses unsafe: views over memory that a
// caller owns, read-only file mappings, and the guard that turns a memory
// fault into an error.
package mem

import (
	"fmt"
	"math"
	"unsafe"

	"loaderx/gopkg/errs"
)

// Scalar is an element type that callers share with the engine.
type Scalar interface {
	~int8 | ~uint8 | ~int16 | ~uint16 | ~int32 | ~uint32 | ~int64 | ~uint64 | ~float32 | ~float64
}

// Slice views n elements of T at a caller's address. The caller owns the
// memory and keeps it alive and in place for as long as the slice is used; the
// slice must not be kept after the call it was made for.
//
// It returns errs.ErrArgument for a negative count, a nil address with n > 0, a
// misaligned address, or a range that leaves the address space.
func Slice[T Scalar](addr uint64, n int64) ([]T, error) {
	var zero T
	size := uint64(unsafe.Sizeof(zero))
	if n == 0 {
		return nil, nil
	}
	if n < 0 {
		return nil, fmt.Errorf("buffer of %d elements: %w", n, errs.ErrArgument)
	}
	if addr == 0 {
		return nil, fmt.Errorf("nil address for %d elements: %w", n, errs.ErrArgument)
	}
	if addr%size != 0 {
		return nil, fmt.Errorf("address %#x is not aligned to %d bytes: %w", addr, size, errs.ErrArgument)
	}
	if uint64(n) > math.MaxInt64/size || addr > math.MaxUint64-uint64(n)*size || uint64(uintptr(addr)) != addr {
		return nil, fmt.Errorf("%d elements of %d bytes at %#x leave the address space: %w", n, size, addr, errs.ErrArgument)
	}
	return unsafe.Slice((*T)(pointer(addr)), int(n)), nil
}

// pointer turns a caller's address into a pointer. The memory is not Go's, so
// the garbage collector neither moves nor frees it; reading the value through
// its own address is the form that go vet accepts for such addresses.
func pointer(addr uint64) unsafe.Pointer {
	p := uintptr(addr)
	return *(*unsafe.Pointer)(unsafe.Pointer(&p))
}

// Address returns the address of b's first byte, 0 for an empty slice. It is
// for tests and for Go programs that call address-based functions; the caller
// keeps b alive.
func Address[T Scalar](b []T) uint64 {
	if len(b) == 0 {
		return 0
	}
	return uint64(uintptr(unsafe.Pointer(&b[0])))
}
