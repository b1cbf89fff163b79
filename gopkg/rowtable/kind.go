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

// UnknownKind is recorded for rows that may be anything.
const UnknownKind RowKind = 0

// KindOf returns what is recorded for rows of a kind.
func KindOf(k quant.Kind) RowKind { return RowKind(k) + 1 }

// Kind returns the kind of the rows, and whether it is known.
func (r RowKind) Kind() (kind quant.Kind, known bool) {
	if r == UnknownKind || !r.valid() {
		return 0, false
	}
	return quant.Kind(r - 1), true
}

// valid reports whether r is a number that this build knows.
func (r RowKind) valid() bool { return r == UnknownKind || r <= 1<<8 && quant.Kind(r-1).Valid() }

// String returns the name of the kind, or "unknown".
func (r RowKind) String() string {
	switch kind, known := r.Kind(); {
	case known:
		return kind.String()
	case r == UnknownKind:
		return "unknown"
	}
	return fmt.Sprintf("RowKind(%d)", uint32(r))
}

// MarshalJSON returns the name of the kind, or null.
func (r RowKind) MarshalJSON() ([]byte, error) {
	if kind, known := r.Kind(); known {
		return json.Marshal(kind.String())
	}
	return []byte("null"), nil
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
	if recorded, known := t.h.kind.Kind(); known && recorded != kind {
		return fmt.Errorf("rows are asked for as %s, and they are recorded as %s: table %s: %w", kind, recorded, t.path, errs.ErrType)
	}
	return nil
}
