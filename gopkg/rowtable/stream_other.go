//go:build !amd64

package rowtable

// streamable reports whether there is code to copy rows past the caches.
func streamable([]byte, int64) bool { return false }

// stream does nothing.
func stream(*lane, []byte, []byte, []int64, []int64, int64) bool { return false }
