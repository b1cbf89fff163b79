package osfile

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// A store may be made in a directory that its maker can't list.
func TestADirectoryThatMayNotBeReadIsNotSynced(t *testing.T) {
	dir := t.TempDir()
	for path, mode := range map[string]os.FileMode{filepath.Dir(dir): 0o755, dir: 0o333} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	if os.Geteuid() == 0 {
		// Root may read everything. The thread, which is not used again, becomes somebody else.
		runtime.LockOSThread()
		if err := unix.Setfsuid(65534); err != nil {
			t.Fatal(err)
		}
		defer unix.Setfsuid(0)
	}
	if _, err := os.ReadDir(dir); !os.IsPermission(err) {
		t.Fatalf("the directory can be read: %v", err)
	}
	if err := SyncDir(dir); err != nil {
		t.Fatal(err)
	}
}
