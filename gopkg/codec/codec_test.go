package codec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"loaderx/gopkg/codec/purezstd"
	"loaderx/gopkg/errs"
)

// text makes n records of about size bytes that compress, each its own.
func text(n, size int) [][]byte {
	rng := rand.New(rand.NewPCG(1, 2))
	out := make([][]byte, n)
	for i := range out {
		var b []byte
		for len(b) < size {
			b = fmt.Appendf(b, "record %d field%d=%d;", i, rng.IntN(9), rng.IntN(50))
		}
		out[i] = b[:size]
	}
	return out
}

func join(parts [][]byte) (all []byte, sizes []uint64) {
	for _, p := range parts {
		all = append(all, p...)
		sizes = append(sizes, uint64(len(p)))
	}
	return all, sizes
}

func trained(t testing.TB) *Dict {
	t.Helper()
	all, sizes := join(text(300, 400))
	content, err := Train(context.Background(), all, sizes, 4096)
	if err != nil {
		t.Fatal(err)
	}
	dict, err := NewDict(content)
	if err != nil {
		t.Fatal(err)
	}
	return dict
}

func TestNamesAndNumbersOfCodecs(t *testing.T) {
	for tag, name := range map[Tag]string{Raw: "raw", Zstd: "zstd", ZstdDict: "zstd_dict"} {
		if !tag.Valid() || tag.String() != name {
			t.Errorf("codec %d is %s, want %s", tag, tag, name)
		}
	}
	if Tag(9).Valid() || Tag(9).String() != "codec(9)" {
		t.Errorf("unknown number: %s", Tag(9))
	}
}

// Records of every size class come back, and the second decoder agrees.
func TestBothDecodersAgree(t *testing.T) {
	dict := trained(t)
	second := purezstd.Backend{}
	plainSecond, err := second.NewDecoder(nil)
	if err != nil {
		t.Fatal(err)
	}
	dictSecond, err := second.NewDecoder(dict.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for _, size := range []int{1, 2, 255, 256, 257, 4096, 65535, 65536, 65791, 65792, 200_000, 1 << 20} {
		record := text(1, size)[0]
		for i := 0; i < size; i += 50 {
			record[i] = byte(rng.Uint32())
		}
		for _, tag := range []Tag{Zstd, ZstdDict} {
			for _, level := range []int{0, 1, 9} {
				encode, err := NewEncoder(tag, level, dict)
				if err != nil {
					t.Fatal(err)
				}
				stored, err := encode(make([]byte, 0, Bound(size)), record)
				if err != nil {
					t.Fatal(err)
				}
				with, again := (*Dict)(nil), plainSecond
				if tag == ZstdDict {
					with, again = dict, dictSecond
				}
				got := make([]byte, size)
				if err := Decode(got, stored, with); err != nil || !bytes.Equal(got, record) {
					t.Fatalf("%s level %d, %d bytes: %v", tag, level, size, err)
				}
				got = make([]byte, size)
				if n, err := again(got, stored); err != nil || n != size || !bytes.Equal(got, record) {
					t.Fatalf("%s level %d, %d bytes, second decoder: %d, %v", tag, level, size, n, err)
				}
			}
		}
	}
}

// A decoder never writes behind dst, and any size but the record's is an error.
func TestDecodeKeepsToItsBuffer(t *testing.T) {
	record := text(1, 1000)[0]
	encode, err := NewEncoder(Zstd, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := encode(make([]byte, 0, Bound(len(record))), record)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{1, 999, 1001, 4000} {
		buffer := bytes.Repeat([]byte{0xAA}, 5000)
		if err := Decode(buffer[:want], stored, nil); !errors.Is(err, errs.ErrCorrupt) {
			t.Errorf("into %d bytes: %v", want, err)
		}
		if want < 5000 && !bytes.Equal(buffer[want:], bytes.Repeat([]byte{0xAA}, 5000-want)) {
			t.Errorf("into %d bytes: wrote behind them", want)
		}
	}
	if err := Decode(make([]byte, 1000), stored[:len(stored)-3], nil); !errors.Is(err, errs.ErrCorrupt) {
		t.Errorf("cut frame: %v", err)
	}
	if err := Decode(make([]byte, 1000), stored, trained(t)); !errors.Is(err, errs.ErrCorrupt) {
		t.Errorf("with a dictionary that was not used: %v", err)
	}
	huge := append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0}, bytes.Repeat([]byte{0xff}, 8)...)
	if err := Decode(make([]byte, 1000), huge, nil); !errors.Is(err, errs.ErrCorrupt) {
		t.Errorf("frame that declares 2^64-1 bytes: %v", err)
	}
}

func TestDecodeIntoCallersMemoryDoesNotAllocate(t *testing.T) {
	if Backend() != "libzstd" {
		t.Log("only libzstd promises this")
		return
	}
	record := text(1, 12<<10)[0]
	encode, _ := NewEncoder(Zstd, 0, nil)
	stored, err := encode(make([]byte, 0, Bound(len(record))), record)
	if err != nil {
		t.Fatal(err)
	}
	dst := make([]byte, len(record))
	if n := testing.AllocsPerRun(200, func() {
		if err := Decode(dst, stored, nil); err != nil {
			t.Fatal(err)
		}
	}); n >= 1 {
		t.Errorf("%v allocations a record", n)
	}
}

// Training on what zstd can't use is an error that says the minimum.
func TestTrainOnDegenerateSamples(t *testing.T) {
	repeat := func(n, size int) [][]byte {
		out := make([][]byte, n)
		for i := range out {
			out[i] = bytes.Repeat([]byte{'a'}, size)
		}
		return out
	}
	refused := map[string][][]byte{
		"none":                nil,
		"one":                 text(1, 1000),
		"six":                 text(6, 1000),
		"seven, six empty":    append(text(1, 1000), repeat(6, 0)...),
		"seven of one byte":   repeat(7, 1),
		"too few bytes":       text(30, 8),
		"none but empty ones": repeat(50, 0),
	}
	for name, parts := range refused {
		t.Run(name, func(t *testing.T) {
			all, sizes := join(parts)
			if _, err := Train(context.Background(), all, sizes, 4096); !errors.Is(err, errs.ErrDict) {
				t.Fatalf("err = %v, want ErrDict", err)
			}
		})
	}
	// These may or may not give a dictionary; they must not crash, and a
	// dictionary must work.
	tried := map[string][][]byte{
		"32 identical":             repeat(32, 1000),
		"300 of one byte":          repeat(300, 1),
		"300 of seven bytes":       text(300, 7),
		"identical and large":      repeat(10, 1<<18),
		"seven":                    text(7, 1000),
		"empty ones in the middle": append(append(text(10, 500), repeat(5, 0)...), text(10, 500)...),
	}
	for name, parts := range tried {
		t.Run(name, func(t *testing.T) {
			all, sizes := join(parts)
			content, err := Train(context.Background(), all, sizes, 8192)
			if errors.Is(err, errs.ErrDict) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			dict, err := NewDict(content)
			if err != nil {
				t.Fatal(err)
			}
			encode, err := NewEncoder(ZstdDict, 0, dict)
			if err != nil {
				t.Fatal(err)
			}
			record := text(1, 500)[0]
			stored, err := encode(make([]byte, 0, Bound(len(record))), record)
			got := make([]byte, len(record))
			if err != nil || Decode(got, stored, dict) != nil || !bytes.Equal(got, record) {
				t.Fatalf("round trip: %v", err)
			}
		})
	}
}

func TestTrainChecksItsArguments(t *testing.T) {
	all, sizes := join(text(300, 400))
	ctx := context.Background()
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	cases := []struct {
		name   string
		ctx    context.Context
		sizes  []uint64
		target int64
		want   error
	}{
		{"dictionary too small", ctx, sizes, 255, errs.ErrDict},
		{"dictionary too large", ctx, sizes, 1 << 40, errs.ErrDict},
		{"negative", ctx, sizes, -1, errs.ErrDict},
		{"sizes short of the buffer", ctx, sizes[1:], 4096, errs.ErrArgument},
		{"sizes beyond the buffer", ctx, append(sizes[1:], 1<<63), 4096, errs.ErrArgument},
		{"cancelled", cancelled, sizes, 4096, errs.ErrCancelled},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if _, err := Train(c.ctx, all, c.sizes, c.target); !errors.Is(err, c.want) {
				t.Fatalf("err = %v, want %v", err, c.want)
			}
		})
	}
}

func TestBadDictionariesAreRefused(t *testing.T) {
	good := trained(t).Bytes()
	for name, content := range map[string][]byte{
		"empty":       {},
		"other magic": append([]byte{1, 2, 3, 4}, good[4:]...),
		"header only": good[:8],
	} {
		t.Run(name, func(t *testing.T) {
			dict, err := NewDict(content)
			if err == nil {
				_, err = NewEncoder(ZstdDict, 0, dict)
			}
			if err == nil {
				t.Fatal("accepted")
			}
		})
	}
}

func TestLevels(t *testing.T) {
	for level, ok := range map[int]bool{-1: false, 0: true, 1: true, 22: true, 23: false} {
		if _, err := NewEncoder(Zstd, level, nil); (err == nil) != ok {
			t.Errorf("level %d: %v", level, err)
		}
	}
	if _, err := NewEncoder(ZstdDict, 0, nil); !errors.Is(err, errs.ErrDict) {
		t.Errorf("zstd_dict without a dictionary: %v", err)
	}
	if _, err := NewEncoder(Raw, 0, nil); !errors.Is(err, errs.ErrArgument) {
		t.Errorf("raw: %v", err)
	}
}

// A frame that makes a decoder stream, for which it may demand a window of any
// size, is refused before: two frames, one without a size, one with a tail.
func TestDecodeTakesOneSizedFrameOnly(t *testing.T) {
	src := text(1, 5000)[0]
	encode, err := NewEncoder(Zstd, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	good, err := encode(make([]byte, 0, Bound(len(src))), src)
	if err != nil {
		t.Fatal(err)
	}
	if err := Decode(make([]byte, len(src)), good, nil); err != nil {
		t.Fatal(err)
	}
	// An empty raw block in a frame with a window of 2 GiB and no size.
	hostile := []byte{0x28, 0xB5, 0x2F, 0xFD, 0x00, 0xA8, 0x01, 0x00, 0x00}
	unsized := append(slices.Clone(good[:4]), 0x00, 0x50, 0x01, 0x00, 0x00)
	for name, stored := range map[string][]byte{
		"a second frame":   append(slices.Clone(good), hostile...),
		"no size":          unsized,
		"bytes behind it":  append(slices.Clone(good), 0),
		"cut":              good[:len(good)-1],
		"a reserved block": append(slices.Clone(good[:7]), 0x07, 0, 0),
	} {
		if err := Decode(make([]byte, len(src)), stored, nil); !errors.Is(err, errs.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Any bytes: an error or the right number of bytes, in bounded memory.
func FuzzDecode(f *testing.F) {
	encode, _ := NewEncoder(Zstd, 0, nil)
	for _, size := range []int{1, 300, 70_000} {
		stored, _ := encode(make([]byte, 0, Bound(size)), text(1, size)[0])
		f.Add(stored, size)
	}
	f.Fuzz(func(t *testing.T, stored []byte, size int) {
		dst := make([]byte, min(max(size, 0), 1<<20))
		if err := Decode(dst, stored, nil); err != nil && !errors.Is(err, errs.ErrCorrupt) {
			t.Fatal(err)
		}
	})
}
