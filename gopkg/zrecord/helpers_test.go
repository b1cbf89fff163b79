package zrecord

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"loaderx/gopkg/codec"
)

// sample is record i of a test store: its length and bytes follow from i. It
// compresses, and better so with a dictionary.
func sample(i int) []byte {
	rng := rand.New(rand.NewPCG(uint64(i), 7))
	b := make([]byte, 1+rng.IntN(3000))
	for j := range b {
		b[j] = byte(j % 97)
		if j%25 == 0 {
			b[j] = byte(rng.Uint32())
		}
	}
	b[0] = byte(i)
	return b
}

// samples packs records from to to-1 as Append takes them.
func samples(from, to int) (src []byte, offsets []uint64) {
	for i := from; i < to; i++ {
		offsets = append(offsets, uint64(len(src)))
		src = append(src, sample(i)...)
	}
	return src, offsets
}

func openStore(t testing.TB, path string, mode Mode) *Store {
	t.Helper()
	s, err := Open(path, Options{Mode: mode})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// appendSamples appends records from to to-1, which must get these indices.
func appendSamples(t testing.TB, s *Store, from, to int, tag codec.Tag) {
	t.Helper()
	src, offsets := samples(from, to)
	first, err := s.Append(context.Background(), src, offsets, tag)
	if err != nil {
		t.Fatal(err)
	}
	if first != int64(from) {
		t.Fatalf("first index %d, want %d", first, from)
	}
}

func trainSamples(t testing.TB, s *Store) {
	t.Helper()
	var all []byte
	var sizes []uint64
	for i := range 100 {
		b := sample(i)
		all, sizes = append(all, b...), append(sizes, uint64(len(b)))
	}
	if _, err := s.TrainDict(context.Background(), all, sizes, 4096); err != nil {
		t.Fatal(err)
	}
}

// read gathers records into one buffer and cuts it.
func read(s *Store, idxs []int64) ([][]byte, error) {
	sizes := make([]uint32, len(idxs))
	total, err := s.Lengths(idxs, PresentLength, sizes)
	if err != nil {
		return nil, err
	}
	dst, offsets, out := make([]byte, total), make([]uint64, len(idxs)), make([][]byte, len(idxs))
	at := uint64(0)
	for i, n := range sizes {
		offsets[i] = at
		out[i] = dst[at : at+uint64(n)]
		at += uint64(n)
	}
	_, err = s.Gather(&Request{Idxs: idxs, Wrap: PresentLength, Dst: dst, Offsets: offsets}, 0, 0)
	return out, err
}

// wantSamples checks that the store holds exactly records 0 to n-1.
func wantSamples(t testing.TB, s *Store, n int) {
	t.Helper()
	numbers := make([]int, n)
	for i := range numbers {
		numbers[i] = i
	}
	wantNumbers(t, s, numbers)
}

// wantNumbers checks that record i of the store is sample numbers[i], for all
// of them.
func wantNumbers(t testing.TB, s *Store, numbers []int) {
	t.Helper()
	if s.Len() != int64(len(numbers)) {
		t.Fatalf("len = %d, want %d", s.Len(), len(numbers))
	}
	idxs := make([]int64, len(numbers))
	for i := range idxs {
		idxs[i] = int64(i)
	}
	got, err := read(s, idxs)
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if !bytes.Equal(got[i], sample(numbers[i])) {
			t.Fatalf("record %d is not sample %d", i, numbers[i])
		}
	}
}

// deleteNumbers does to a list what Delete does to a store, one index after
// the other.
func deleteNumbers(numbers []int, idxs []int64) []int {
	numbers = slices.Clone(numbers)
	falling := slices.Clone(idxs)
	slices.Sort(falling)
	for _, idx := range slices.Backward(slices.Compact(falling)) {
		numbers[idx] = numbers[len(numbers)-1]
		numbers = numbers[:len(numbers)-1]
	}
	return numbers
}

// patch overwrites bytes of a store's file.
func patch(t testing.TB, store, name string, off int64, b []byte) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(store, name), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
}

// closedStore makes a store of n sample records in the temporary directory.
func closedStore(t testing.TB, n int, tag codec.Tag) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "store")
	s := openStore(t, path, CreateNew)
	if tag == codec.ZstdDict {
		trainSamples(t, s)
	}
	if n > 0 {
		appendSamples(t, s, 0, n, tag)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}
