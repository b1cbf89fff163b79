//go:build unix

package osfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"loaderx/gopkg/errs"
)

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func draft(t *testing.T, path, content string) *Draft {
	t.Helper()
	d, err := NewDraft(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Discard() })
	if _, err := d.File().WriteString(content); err != nil {
		t.Fatal(err)
	}
	return d
}

func publish(t *testing.T, path, content string) {
	t.Helper()
	if err := draft(t, path, content).Publish(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != content {
		t.Fatalf("%q, %v", got, err)
	}
}

func TestADraftIsUnseenUntilItIsPublished(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "table")
	d := draft(t, path, "first")
	for _, name := range names(t, dir) {
		if !strings.HasSuffix(name, TempSuffix) {
			t.Fatalf("%s is there", name)
		}
	}
	if err := d.Publish(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info.Mode(), err)
	}
	if err := d.Publish(); !errors.Is(err, errs.ErrClosed) {
		t.Fatalf("second Publish: %v", err)
	}
	if err := draft(t, path, "dropped").Discard(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "first" || len(names(t, dir)) != 1 {
		t.Fatalf("%q, %v, %v", got, err, names(t, dir))
	}
}

func TestPublishKeepsPermissionsAndOpenFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "table")
	publish(t, path, "first")
	for _, mode := range []fs.FileMode{0o644, 0o400, 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		reader, err := Open(path, os.O_RDONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		publish(t, path, "content for "+mode.String())
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Fatalf("%v, want %v, %v", info.Mode(), mode, err)
		}
		got := make([]byte, len(before))
		if _, err := reader.ReadAt(got, 0); err != nil || string(got) != string(before) {
			t.Fatalf("an open reader sees %q, want %q, %v", got, before, err)
		}
		_ = reader.Close()
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(path, 12345, 54321); err != nil {
			t.Fatal(err)
		}
		publish(t, path, "by root")
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid != 12345 || st.Gid != 54321 {
			t.Fatalf("owner %d:%d", st.Uid, st.Gid)
		}
	}
	if len(names(t, dir)) != 1 {
		t.Fatalf("%v", names(t, dir))
	}
}

func TestADraftFollowsSymbolicLinks(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	path, target := filepath.Join(dir, "link"), filepath.Join(dir, "sub", "table")
	if err := os.Symlink(filepath.Join("sub", "table"), path); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"new", "again"} {
		publish(t, path, content)
		if got, err := os.ReadFile(target); err != nil || string(got) != content {
			t.Fatalf("%q, %v", got, err)
		}
		if info, err := os.Lstat(path); err != nil || info.Mode()&fs.ModeSymlink == 0 {
			t.Fatalf("the link is gone: %v, %v", info, err)
		}
	}
	loop := filepath.Join(dir, "loop")
	if err := os.Symlink("loop", loop); err != nil {
		t.Fatal(err)
	}
	if _, err := NewDraft(loop); !errors.Is(err, unix.ELOOP) {
		t.Fatalf("loop: %v", err)
	}
}

func TestOnlyRegularFilesAreReplaced(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := NewDraft(dir); !errors.Is(err, unix.EISDIR) {
		t.Errorf("directory: %v", err)
	}
	if _, err := NewDraft(pipe); !errors.Is(err, errs.ErrExists) {
		t.Errorf("pipe: %v", err)
	}
	if _, err := NewDraft(filepath.Join(dir, "missing", "x")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing directory: %v", err)
	}
	// What came meanwhile is looked at again.
	path := filepath.Join(dir, "table")
	d := draft(t, path, "x")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.Publish(); !errors.Is(err, unix.EISDIR) {
		t.Errorf("directory that came later: %v", err)
	}
	if got := names(t, dir); len(got) != 2 {
		t.Errorf("left behind: %v", got)
	}
}

func TestTheNextDraftRemovesWhatDeadOnesLeft(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "table")
	dead, other := filepath.Join(dir, ".table.0123abcd.tmp"), []string{
		".table.0123abcd.tmp.keep", ".table.xyz01234.tmp", ".table2.0123abcd.tmp", "table.0123abcd.tmp", ".table..tmp",
	}
	for _, name := range append([]string{filepath.Base(dead), ".table.11111111.tmp"}, other...) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	living, err := Open(filepath.Join(dir, ".table.11111111.tmp"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := lock(living); err != nil {
		t.Fatal(err)
	}
	publish(t, path, "content")
	if got := names(t, dir); len(got) != len(other)+2 {
		t.Fatalf("%v", got)
	}
	_ = living.Close()
	publish(t, path, "content")
	if got := names(t, dir); len(got) != len(other)+1 {
		t.Fatalf("%v", got)
	}
}

// Where files can't be without a name the draft has one, and the same holds.
func TestADraftWithAName(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "table")
	named := func() *Draft {
		t.Helper()
		name, err := draftName(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if err := lock(f); err != nil {
			t.Fatal(err)
		}
		return &Draft{file: f, path: path, temp: name}
	}
	living := named()
	publish(t, path, "one")
	if len(names(t, dir)) != 2 {
		t.Fatalf("a living draft was removed: %v", names(t, dir))
	}
	if _, err := living.File().WriteString("two"); err != nil {
		t.Fatal(err)
	}
	if err := living.Publish(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "two" {
		t.Fatalf("%q, %v", got, err)
	}
	if err := named().Discard(); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); len(got) != 1 {
		t.Fatalf("%v", got)
	}
}

func TestScratchHasNoName(t *testing.T) {
	dir := t.TempDir()
	f, err := Scratch(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("x"); err != nil || len(names(t, dir)) != 0 {
		t.Fatalf("%v, %v", err, names(t, dir))
	}
}
