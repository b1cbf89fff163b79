package mem

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"loaderx/gopkg/errs"
)

func TestSliceViewsTheCallersMemory(t *testing.T) {
	src := []int64{1, -2, 3}
	got, err := Slice[int64](Address(src), 3)
	if err != nil {
		t.Fatal(err)
	}
	got[1] = 7
	if src[1] != 7 {
		t.Fatalf("src[1] = %d, want the value written through the view", src[1])
	}
}

func TestSliceRefusesWhatItCannotView(t *testing.T) {
	word := []int64{0}
	cases := []struct {
		name string
		addr uint64
		n    int64
	}{
		{"negative count", Address(word), -1},
		{"nil address", 0, 1},
		{"misaligned", Address(word) + 1, 1},
		{"byte count overflows", Address(word), math.MaxInt64},
		{"end overflows", math.MaxUint64 - 7, 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if _, err := Slice[int64](c.addr, c.n); !errors.Is(err, errs.ErrArgument) {
				t.Fatalf("err = %v, want ErrArgument", err)
			}
		})
	}
	if got, err := Slice[int64](0, 0); err != nil || len(got) != 0 {
		t.Fatalf("empty view: %v, %v", got, err)
	}
}

func TestGuardTurnsTruncationIntoAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	size := int64(4 * os.Getpagesize())
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Map(f, size)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := os.Truncate(path, 1); err != nil {
		t.Fatal(err)
	}
	dst := make([]byte, size)
	err = Guard(func() error { copy(dst, m.Bytes()); return nil })
	if !errors.Is(err, errs.ErrFault) {
		t.Fatalf("err = %v, want ErrFault", err)
	}
}

func TestGuardKeepsErrorsAndRecoversPanics(t *testing.T) {
	if err := Guard(func() error { return errs.ErrIndex }); !errors.Is(err, errs.ErrIndex) {
		t.Fatalf("returned error: %v", err)
	}
	if err := Guard(func() error { panic("boom") }); !errors.Is(err, errs.ErrInternal) {
		t.Fatalf("panic with a string: %v", err)
	}
	err := Guard(func() error { var p *int; *p = 1; return nil })
	if err == nil {
		t.Fatal("nil dereference passed")
	}
	if err := Guard(func() error { var s []int; _ = s[3:]; return nil }); !errors.Is(err, errs.ErrInternal) {
		t.Fatalf("run-time error: %v", err)
	}
}

func TestMapOfAnEmptyFileAndDoubleClose(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "f")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := Map(f, 0)
	if err != nil || len(m.Bytes()) != 0 {
		t.Fatalf("%v, %v", m, err)
	}
	for range 2 {
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Map(f, -1); !errors.Is(err, errs.ErrArgument) {
		t.Fatalf("negative size: %v", err)
	}
}
