//go:build unix && !linux

package osfile

import (
	"errors"
	"os"
)

// openUnnamed returns nil: only Linux has files that get their name later.
func openUnnamed(string) (*os.File, error) { return nil, nil }

// link is not called without openUnnamed.
func link(*os.File, string) error { return errors.ErrUnsupported }

// Insert returns errors.ErrUnsupported: only Linux makes room inside a file.
func Insert(*os.File, int64, int64) error { return errors.ErrUnsupported }
