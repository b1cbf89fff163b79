package zrecord_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/zrecord"
)

// A store is written once and read in any order.
func Example() {
	dir, err := os.MkdirTemp("", "zrecord")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "words")

	w, err := zrecord.Open(path, zrecord.Options{Mode: zrecord.CreateNew})
	if err != nil {
		log.Fatal(err)
	}
	first, err := w.Append(context.Background(), []byte("onetwothree"), []uint64{0, 3, 6}, codec.Zstd)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("first index:", first)
	// Close makes the records durable; other processes see them from then on.
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}

	r, err := zrecord.Open(path, zrecord.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	idxs := []int64{-1, 0}
	sizes := make([]uint32, len(idxs))
	total, err := r.Lengths(idxs, zrecord.PresentLength, sizes)
	if err != nil {
		log.Fatal(err)
	}
	dst := make([]byte, total)
	req := zrecord.Request{Idxs: idxs, Wrap: zrecord.PresentLength, Dst: dst, Offsets: []uint64{0, uint64(sizes[0])}}
	if _, err := r.Gather(&req, 0, 0); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d records, %s\n", r.Len(), dst)
	// Output:
	// first index: 0
	// 3 records, threeone
}
