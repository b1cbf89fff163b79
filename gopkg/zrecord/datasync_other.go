//go:build unix && !linux

package zrecord

import "os"

// datasync is a full sync; on macOS Go asks the drive itself to flush.
func datasync(f *os.File) error { return f.Sync() }
