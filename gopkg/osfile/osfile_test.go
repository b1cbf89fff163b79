//go:build unix

package osfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"loaderx/gopkg/errs"
)

func TestOpenTakesRegularFilesOnly(t *testing.T) {
	dir := t.TempDir()
	plain, pipe := filepath.Join(dir, "plain"), filepath.Join(dir, "pipe")
	if err := os.WriteFile(plain, []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(plain, os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 3)
	if _, err := f.ReadAt(b, 0); err != nil || string(b) != "abc" {
		t.Fatalf("%q, %v", b, err)
	}
	for _, name := range []string{pipe, dir} {
		if _, err := Open(name, os.O_RDONLY, 0); !errors.Is(err, errs.ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Open(filepath.Join(dir, "missing"), os.O_RDONLY, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
}

func TestReplaceIsWholeAndKeepsTheMode(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	for _, content := range []string{"first, which is longer", "second"} {
		if err := Replace(name, []byte(content)); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(name)
		if err != nil || string(got) != content {
			t.Fatalf("%q, %v", got, err)
		}
		if err := os.Chmod(name, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o640 {
		t.Fatalf("%v, %v", info.Mode(), err)
	}
	entries, err := os.ReadDir(filepath.Dir(name))
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v", entries, err)
	}
}

func TestSpareTellsWhetherDescriptorsAreLeft(t *testing.T) {
	if err := Spare(3); err != nil {
		t.Fatal(err)
	}
	if err := Spare(1 << 30); !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.ENFILE) {
		t.Fatalf("more than the limit: %v", err)
	}
	if err := Spare(3); err != nil {
		t.Fatalf("descriptors are leaked: %v", err)
	}
}

func TestAFailedReplaceLeavesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "f")
	if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Replace(dir, []byte("x")); err == nil {
		t.Fatal("a directory was replaced by a file")
	}
	entries, err := os.ReadDir(filepath.Dir(dir))
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v", entries, err)
	}
	if err := SyncDir(filepath.Join(dir, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
}

func TestIdentityTellsAReplacedOrChangedFile(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	look := func() [4]int64 {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return Identity(info)
	}
	write := func(name, content string) {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Unix(1_000_000_000, 0)
	dated := func(name string) {
		if err := os.Chtimes(name, past, past); err != nil {
			t.Fatal(err)
		}
	}
	write(path, "abc")
	dated(path)
	first := look()
	if err := os.Chmod(path, 0o640); err != nil || look() != first {
		t.Error("other permissions are another file", err)
	}
	write(path, "abd")
	if look() == first {
		t.Error("a file that was written over is the same")
	}
	dated(path)
	write(other, "abc")
	dated(other)
	if err := os.Rename(other, path); err != nil || look() == first {
		t.Error("another file of the same size and time is the same", err)
	}
}
