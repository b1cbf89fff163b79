package zrecord

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
)

// crashRounds is how often the crash tests try; `make crash` asks for more
// than a test run has time for.
func crashRounds(t *testing.T, few int) int {
	text := os.Getenv("ZRECORD_CRASH")
	if text == "" {
		return few
	}
	n, err := strconv.Atoi(text)
	must(t, err)
	return n
}

// story is what happens to a store on a tape, and what must be true of it.
type story struct {
	t       *testing.T
	disk    *tapeDisk
	path    string
	store   *Store
	numbers []int
	dict    bool
	steps   []step
}

// step is one operation: until operation `end` of the tape it may have
// happened or not, afterwards it has.
type step struct {
	end        int
	numbers    []int // after it
	dict       bool
	missing    bool // before it there may be no store
	dictBefore bool
}

func (s *story) done(missing bool) {
	before := len(s.steps) > 0 && s.steps[len(s.steps)-1].dict
	s.steps = append(s.steps, step{len(s.disk.ops), slices.Clone(s.numbers), s.dict, missing, before})
}

func (s *story) create() {
	var err error
	s.store, err = openOn(s.disk, s.path, Options{Mode: CreateNew})
	must(s.t, err)
	s.done(true)
}

func (s *story) append(n int, tag codec.Tag) {
	first := 0
	for _, number := range s.numbers {
		first = max(first, number+1)
	}
	src, offsets := samples(first, first+n)
	_, err := s.store.Append(s.t.Context(), src, offsets, tag)
	must(s.t, err)
	must(s.t, s.store.Sync())
	for i := range n {
		s.numbers = append(s.numbers, first+i)
	}
	s.done(false)
}

func (s *story) train() {
	trainSamples(s.t, s.store)
	s.dict = true
	s.done(false)
}

func (s *story) delete(idxs ...int64) {
	must(s.t, s.store.Delete(context.Background(), idxs, true))
	for i, idx := range idxs {
		if idx < 0 {
			idxs[i] += int64(len(s.numbers))
		}
	}
	s.numbers = deleteNumbers(s.numbers, idxs)
	s.done(false)
}

func (s *story) compact(batchBytes, plainBytes int64) {
	small(s.store, batchBytes, plainBytes)
	must(s.t, s.store.Compact(s.t.Context(), nil))
	s.done(false)
}

// jump makes the next append roll over to another chunk.
func (s *story) jump() {
	w := s.store.writer.(*writer3)
	w.committed.offset, w.placed.offset = chunkSize-3000, chunkSize-3000
	must(s.t, s.store.Sync())
	s.done(false)
}

// TestPowerCut cuts the power behind every operation of some stories, with any
// part of the unsynced writes lost, and looks at what is left.
func TestPowerCut(t *testing.T) {
	stories := map[string]func(s *story){
		"append": func(s *story) {
			s.create()
			s.append(3, codec.Zstd)
			s.append(40, codec.Raw)
			s.jump()
			s.append(6, codec.Raw)
		},
		"train": func(s *story) {
			s.create()
			s.train()
			s.append(2, codec.Raw)
			s.train()
			s.append(5, codec.ZstdDict)
		},
		"delete": func(s *story) {
			s.create()
			s.append(60, codec.Zstd)
			s.delete(0, 40, 59)
			s.delete(-1, -2)
			s.append(1, codec.Zstd)
			s.delete(5, 6, 7, 30, 55)
			s.append(4, codec.Raw)
		},
		"compact": func(s *story) {
			s.create()
			s.append(24, codec.Zstd)
			s.delete(0, 9)
			s.compact(2500, 1<<40)
			s.append(2, codec.Zstd)
			s.delete(0, 1, 2, 3)
			s.compact(3000, 1)
			s.append(2, codec.Zstd)
		},
		"compact over chunks": func(s *story) {
			s.create()
			s.append(5, codec.Raw)
			s.jump()
			s.append(6, codec.Raw)
			s.delete(1, 8)
			s.compact(4000, 2000)
			s.append(2, codec.Zstd)
		},
	}
	rounds := crashRounds(t, 6)
	for name, tell := range stories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &story{t: t, disk: newTape(), path: filepath.Join(t.TempDir(), "store")}
			tell(s)
			s.disk.mu.Lock()
			defer s.disk.mu.Unlock()
			root := t.TempDir()
			for cut := range len(s.disk.ops) + 1 {
				for round := range rounds + 2 {
					l := loss{unit: 512, keep: float64(round), rng: rand.New(rand.NewPCG(uint64(cut), uint64(round)))}
					if round > 1 {
						l.keep = []float64{0.5, 0.2, 0.8}[round%3]
						l.unit = []int64{512, 4096}[round%2]
					}
					path := filepath.Join(root, "store")
					s.disk.after(t, cut, l, path)
					if !s.check(t, path, cut, round) {
						t.Fatalf("cut behind operation %d of %d, round %d", cut, len(s.disk.ops), round)
					}
					must(t, os.RemoveAll(path))
				}
			}
			s.store.Close()
		})
	}
}

// check opens what a power cut behind operation cut left.
func (s *story) check(t *testing.T, path string, cut, round int) bool {
	t.Helper()
	at := slices.IndexFunc(s.steps, func(st step) bool { return cut < st.end })
	if at < 0 {
		at = len(s.steps) - 1
	}
	now := s.steps[at]
	allowed := [][]int{now.numbers}
	if at > 0 && cut < now.end {
		allowed = append(allowed, s.steps[at-1].numbers)
	}
	r, err := Open(path, Options{})
	if err != nil {
		if now.missing && cut < now.end && (errors.Is(err, errs.ErrNotFound) || errors.Is(err, errs.ErrFormat)) {
			return true
		}
		t.Error(err)
		return false
	}
	held := content(t, r, allowed)
	must(t, r.Close())
	if held < 0 {
		return false
	}
	w, err := openOn(hastyDisk{}, path, Options{Mode: Append})
	if err != nil {
		t.Error(err)
		return false
	}
	defer w.Close()
	if got := content(t, w, allowed); got != held {
		t.Errorf("reader and writer see different stores: %d and %d", held, got)
		return false
	}
	if now.dictBefore && !w.HasDict() || w.HasDict() && !now.dict {
		t.Errorf("dictionary: %v", w.HasDict())
		return false
	}
	if now.dict && w.HasDict() {
		if _, err := w.Append(t.Context(), sample(999), []uint64{0}, codec.ZstdDict); err != nil {
			t.Error(err)
			return false
		}
		w.turnBack(int64(len(allowed[held])))
	}
	// Running an interrupted compact again finishes it.
	small(w, 4000, 2000)
	if err := w.Compact(t.Context(), nil); err != nil {
		t.Error(err)
		return false
	}
	st, err := w.Stats()
	if err != nil || st.Reclaimable > 3000*int64(w.writer.(*writer3).committed.chunk) {
		t.Errorf("%+v, %v", st, err)
		return false
	}
	return content(t, w, allowed[held:held+1]) == 0
}

// content returns which of the allowed lists of samples a store holds, -1 for
// none.
func content(t *testing.T, s *Store, allowed [][]int) int {
	t.Helper()
	n := s.Len()
	for i, numbers := range allowed {
		if int64(len(numbers)) != n {
			continue
		}
		idxs := make([]int64, n)
		for j := range idxs {
			idxs[j] = int64(j)
		}
		got, err := read(s, idxs)
		if err != nil {
			t.Error(err)
			return -1
		}
		same := true
		for j := range got {
			same = same && bytes.Equal(got[j], sample(numbers[j]))
		}
		if same {
			return i
		}
	}
	t.Errorf("%d records, which are none of the %d contents allowed", n, len(allowed))
	return -1
}
