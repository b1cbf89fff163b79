package rowtable

import (
	"encoding/json"
	"fmt"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/quant"
)

// RowKind is what a file records about the numbers that its rows consist of. It
// is a number of the format: 0 where nothing is known of the rows, else one more than
// that of a kind of package quant.
type RowKind uint32

const (
	// UnknownKind is recorded for rows that may be anything.
	UnknownKind RowKind = 0
	// OtherKind is recorded for numbers that are of none of the kinds, such as
	// integers: they are never taken for floating-point ones.
	OtherKind RowKind = 255
)

// KindOf returns what is recorded for rows of a kind.
func KindOf(k quant.Kind) RowKind { return RowKind(k) + 1 }

// ParseRowKind returns the kind of a name as String returns it; an empty one
// stands for UnknownKind.
func ParseRowKind(name string) (RowKind, error) {
	switch name {
	case "":
		return UnknownKind, nil
	case OtherKind.String():
		return OtherKind, nil
	}
	k, err := quant.ParseKind(name)
	return KindOf(k), err
}

// Kind returns the kind of the rows, and whether it is one of package quant.
func (r RowKind) Kind() (kind quant.Kind, known bool) {
	if r == UnknownKind || r == OtherKind || !r.valid() {
		return 0, false
	}
	return quant.Kind(r - 1), true
}

// valid reports whether r is a number that this build knows.
func (r RowKind) valid() bool {
	return r == UnknownKind || r == OtherKind || r < OtherKind && quant.Kind(r-1).Valid()
}

// String returns the name of the kind, "other", or "unknown".
func (r RowKind) String() string {
	switch kind, known := r.Kind(); {
	case known:
		return kind.String()
	case r == UnknownKind:
		return "unknown"
	case r == OtherKind:
		return "other"
	}
	return fmt.Sprintf("RowKind(%d)", uint32(r))
}

// MarshalJSON returns the name of the kind, or null.
func (r RowKind) MarshalJSON() ([]byte, error) {
	if r == UnknownKind {
		return []byte("null"), nil
	}
	return json.Marshal(r.String())
}

// check returns an error for rows of rowBytes bytes that can't be of the kind.
func (r RowKind) check(rowBytes int64) error {
	if kind, known := r.Kind(); known && kind.Dim(rowBytes) == 0 {
		return fmt.Errorf("rows of %d bytes are no %s rows", rowBytes, kind)
	}
	return nil
}

// Kind returns what the file records about its rows.
func (t *Table) Kind() RowKind { return t.h.kind }

// CheckKind returns errs.ErrType for a kind that is not the recorded one.
func (t *Table) CheckKind(kind quant.Kind) error {
	if t.h.kind != UnknownKind && t.h.kind != KindOf(kind) {
		return fmt.Errorf("rows are asked for as %s, and they are recorded as %s: table %s: %w", kind, t.h.kind, t.path, errs.ErrType)
	}
	return nil
}
