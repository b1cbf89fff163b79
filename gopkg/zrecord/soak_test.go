package zrecord

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
)

// hashed is a record that carries the hash of its content.
func hashed(rng *rand.Rand) []byte {
	b := make([]byte, 8+rng.IntN(4000))
	for i := 8; i < len(b); i++ {
		b[i] = byte(rng.Uint32() & 15)
	}
	h := fnv.New64a()
	h.Write(b[8:])
	binary.LittleEndian.PutUint64(b, h.Sum64())
	return b
}

func hashFits(b []byte) bool {
	h := fnv.New64a()
	h.Write(b[8:])
	return len(b) >= 8 && binary.LittleEndian.Uint64(b) == h.Sum64()
}

// TestSoak gathers on eight goroutines while two append and one syncs, checks
// each row by its hash, and closes the store under them. It takes a second, or
// as long as `make soak` asks for.
func TestSoak(t *testing.T) {
	length := time.Second
	if text := os.Getenv("ZRECORD_SOAK"); text != "" {
		var err error
		length, err = time.ParseDuration(text)
		must(t, err)
	}
	path := filepath.Join(t.TempDir(), "store")
	s := openStore(t, path, CreateNew)
	trainSamples(t, s)
	appendHashed := func(rng *rand.Rand) error {
		var src []byte
		var offsets []uint64
		for range 1 + rng.IntN(60) {
			offsets = append(offsets, uint64(len(src)))
			src = append(src, hashed(rng)...)
		}
		_, err := s.Append(t.Context(), src, offsets, codec.Tag(rng.IntN(8)/3)) // the dictionary is slow
		return err
	}
	must(t, appendHashed(rand.New(rand.NewPCG(0, 0))))
	var wg sync.WaitGroup
	var rows, appends atomic.Int64
	until := make(chan struct{})
	loop := func(seed uint64, work func(rng *rand.Rand) error) {
		rng := rand.New(rand.NewPCG(seed, 9))
		wg.Go(func() {
			for {
				err := work(rng)
				if errors.Is(err, errs.ErrClosed) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for g := range uint64(8) {
		loop(g, func(rng *rand.Rand) error {
			idxs := make([]int64, 1+rng.IntN(300))
			n := s.Len()
			if n == 0 {
				return errs.ErrClosed
			}
			for i := range idxs {
				idxs[i] = rng.Int64N(n)
			}
			got, err := read(s, idxs)
			for i := range got {
				if err == nil && !hashFits(got[i]) {
					t.Errorf("record %d is damaged", idxs[i])
				}
			}
			rows.Add(int64(len(got)))
			return err
		})
	}
	for g := range uint64(2) {
		loop(100+g, func(rng *rand.Rand) error {
			select {
			case <-until: // the store stays small enough for a long run
				return errs.ErrClosed
			default:
			}
			if s.Len() > 200_000 {
				time.Sleep(time.Millisecond)
				return nil
			}
			appends.Add(1)
			return appendHashed(rng)
		})
	}
	loop(200, func(*rand.Rand) error {
		time.Sleep(20 * time.Millisecond)
		return s.Sync()
	})
	time.Sleep(length)
	must(t, s.Close())
	close(until)
	wg.Wait()
	r := openStore(t, path, ReadOnly)
	bad, err := r.Verify(t.Context(), nil, nil)
	if err != nil || bad > 0 {
		t.Errorf("%d bad records, %v", bad, err)
	}
	t.Logf("%d rows in %d records, %d appends", rows.Load(), r.Len(), appends.Load())
}
