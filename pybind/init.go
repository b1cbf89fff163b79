package pybind

import (
	"os"
	"runtime/debug"
)

// The engine's own heap is small beside the buffers it fills, which are the
// caller's or pooled. Collecting at half the default growth keeps a process
// that makes millions of failing calls within a megabyte or two.
func init() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
}
