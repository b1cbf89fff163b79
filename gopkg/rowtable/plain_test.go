package rowtable

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"loaderx/gopkg/errs"
)

func TestPlainFilesAreReadAsTables(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows")
	want := make([]byte, 12*100)
	for i := range want {
		want[i] = byte(i * 7)
	}
	if err := os.WriteFile(path, want, 0o600); err != nil {
		t.Fatal(err)
	}
	rows, err := Open(path, Options{PlainRowBytes: 12, Verify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	if i := rows.Info(); i.Rows != 100 || i.FileBytes != 1200 || !i.Raw || !i.Identity || i.Blocks != 0 {
		t.Errorf("Info() = %+v", i)
	}
	got := make([]byte, 36)
	if err := rows.GatherAll(context.Background(), []int64{99, 0, 5}, false, got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, append(append(bytes.Clone(want[1188:]), want[:12]...), want[60:72]...)) {
		t.Error("other rows than in the file")
	}
	if err := rows.Prefetch([]int64{3, 1}, false); err != nil {
		t.Error(err)
	}
	if bad, err := rows.Verify(context.Background(), nil, nil); bad != 0 || err != nil {
		t.Errorf("Verify() = %d, %v", bad, err)
	}
	if err := rows.GatherAll(context.Background(), []int64{100}, false, got[:12]); !errors.Is(err, errs.ErrIndex) {
		t.Errorf("row 100: %v", err)
	}
}

func TestPlainFilesThatAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows")
	if err := os.WriteFile(path, make([]byte, 13), 0o600); err != nil {
		t.Fatal(err)
	}
	for width, want := range map[int64]error{12: errs.ErrCorrupt, -1: errs.ErrArgument, MaxRowBytes + 1: errs.ErrArgument} {
		if _, err := Open(path, Options{PlainRowBytes: width}); !errors.Is(err, want) {
			t.Errorf("rows of %d bytes: %v, want %v", width, err, want)
		}
	}
}
