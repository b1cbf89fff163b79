package zrecord

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"loaderx/gopkg/codec"
)

// benchStore makes a synced store of n records of size bytes, half noise so
// that they compress about twofold.
func benchStore(b *testing.B, n, size int, tag codec.Tag) *Store {
	b.Helper()
	s, err := Open(b.TempDir(), Options{Mode: CreateNew})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	rng := rand.New(rand.NewPCG(1, 2))
	src, offsets := make([]byte, n*size), make([]uint64, n)
	for i := range src {
		if i/64%2 == 0 {
			src[i] = byte(rng.Uint32())
		}
	}
	for i := range offsets {
		offsets[i] = uint64(i * size)
	}
	if tag == codec.ZstdDict {
		m := min(n, 1000)
		sizes := make([]uint64, m)
		for i := range sizes {
			sizes[i] = uint64(size)
		}
		if _, err := s.TrainDict(context.Background(), src[:m*size], sizes, 64<<10); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := s.Append(context.Background(), src, offsets, tag); err != nil {
		b.Fatal(err)
	}
	if err := s.Sync(); err != nil {
		b.Fatal(err)
	}
	return s
}

func BenchmarkGather(b *testing.B) {
	for _, c := range []struct {
		n, size, batch int
		tag            codec.Tag
	}{
		{1 << 20, 64, 8192, codec.Raw},
		{1 << 17, 1 << 10, 1024, codec.Raw},
		{20_000, 12 << 10, 1, codec.Raw},
		{20_000, 12 << 10, 256, codec.Raw},
		{400, 600 << 10, 16, codec.Raw},
		{5_000, 12 << 10, 256, codec.Zstd},
		{200, 12 << 10, 256, codec.ZstdDict},
	} {
		b.Run(fmt.Sprintf("%s/%dx%d", c.tag, c.batch, c.size), func(b *testing.B) {
			s := benchStore(b, c.n, c.size, c.tag)
			rng := rand.New(rand.NewPCG(3, 4))
			batches := make([][]int64, 64)
			for i := range batches {
				batches[i] = make([]int64, c.batch)
				for j := range batches[i] {
					batches[i][j] = rng.Int64N(int64(c.n))
				}
			}
			r := Request{Dst: make([]byte, c.batch*c.size), RowBytes: int64(c.size)}
			b.SetBytes(int64(len(r.Dst)))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				r.Idxs = batches[i%len(batches)]
				if _, err := s.Gather(&r, 0, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, c := range []struct {
		n, size int
		tag     codec.Tag
	}{
		{1 << 16, 64, codec.Raw},
		{1 << 10, 12 << 10, codec.Raw},
		{1 << 10, 12 << 10, codec.Zstd},
		{1 << 6, 12 << 10, codec.ZstdDict},
	} {
		b.Run(fmt.Sprintf("%s/%dx%d", c.tag, c.n, c.size), func(b *testing.B) {
			s := benchStore(b, 100, c.size, c.tag)
			src, offsets := make([]byte, c.n*c.size), make([]uint64, c.n)
			rng := rand.New(rand.NewPCG(5, 6))
			for i := range src {
				if i/64%2 == 0 {
					src[i] = byte(rng.Uint32())
				}
			}
			for i := range offsets {
				offsets[i] = uint64(i * c.size)
			}
			b.SetBytes(int64(len(src)))
			b.ReportAllocs()
			for b.Loop() {
				w := s.writer.(*writer3)
				// The same place again and again: the disk does not fill up.
				w.committed, w.placed = w.published, w.published
				if _, err := s.Append(context.Background(), src, offsets, c.tag); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkOpen(b *testing.B) {
	s := benchStore(b, 1000, 64, codec.Raw)
	b.ReportAllocs()
	for b.Loop() {
		r, err := Open(s.Path(), Options{})
		if err != nil {
			b.Fatal(err)
		}
		r.Close()
	}
}
