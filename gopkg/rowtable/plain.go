package rowtable

import (
	"fmt"

	"loaderx/gopkg/errs"
)

// plainHeader returns what the header of a file would say that is nothing but
// rows. It has no blocks, which are what verification looks at.
func plainHeader(rowBytes, size int64) (*header, error) {
	switch {
	case rowBytes < 1 || rowBytes > MaxRowBytes:
		return nil, fmt.Errorf("plain rows of %d bytes, want 1 to %d: %w", rowBytes, MaxRowBytes, errs.ErrArgument)
	case size%rowBytes != 0:
		return nil, fmt.Errorf("%d bytes are no plain rows of %d (truncated?): %w", size, rowBytes, errs.ErrCorrupt)
	}
	rows := size / rowBytes
	return &header{
		flags: flagIdentity | flagRaw, rows: rows, stored: rows, rowBytes: rowBytes, blockRows: 1, payloadBytes: size,
	}, nil
}

// plain reports whether the file has no header.
func (h *header) plain() bool { return h.payloadAt == 0 }
