package zrecord

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
)

// otherSamples is a sample from which another dictionary is trained than
// trainSamples makes, and quickly.
func otherSamples() (all []byte, sizes []uint64) {
	for i := range 20 {
		b := sample(1000 + i)
		all, sizes = append(all, b...), append(sizes, uint64(len(b)))
	}
	return all, sizes
}

// A store that closes at any instant of a training keeps the dictionary that
// its records need: a closing store must not count as one that has none.
func TestCloseDuringTrainDictKeepsADictionaryInUse(t *testing.T) {
	all, sizes := otherSamples()
	path := closedStore(t, 20, codec.ZstdDict)
	want, err := os.ReadFile(filepath.Join(path, dictName))
	must(t, err)
	for round := range 80 {
		s := openStore(t, path, Append)
		var wg sync.WaitGroup
		start := make(chan struct{})
		for range 4 {
			wg.Go(func() {
				<-start
				for { // so that the closing comes between a call's first steps in some rounds
					_, err := s.TrainDict(t.Context(), all, sizes, 1024)
					if errors.Is(err, errs.ErrClosed) {
						return
					}
					if !errors.Is(err, errs.ErrDict) {
						t.Errorf("training beside records that need a dictionary: %v", err)
						return
					}
				}
			})
		}
		wg.Go(func() {
			<-start
			time.Sleep(time.Duration(round%50) * 10 * time.Microsecond)
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		close(start)
		wg.Wait()
		got, err := os.ReadFile(filepath.Join(path, dictName))
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("round %d: the dictionary was replaced, %v", round, err)
		}
	}
	wantSamples(t, openStore(t, path, ReadOnly), 20)
}

// The first records that need a dictionary are appended while another is
// trained, and the store closes: whichever comes first, the one on disk is
// theirs from then on.
func TestAppendAndCloseDuringTrainDict(t *testing.T) {
	all, sizes := otherSamples()
	src, offsets := samples(0, 5)
	for round := range 30 {
		path := closedStore(t, 0, codec.ZstdDict)
		s := openStore(t, path, Append)
		var wg sync.WaitGroup
		start := make(chan struct{})
		var used []byte // the dictionary on disk when the records were there
		wg.Go(func() {
			<-start
			_, err := s.TrainDict(t.Context(), all, sizes, 1024)
			if err != nil && !errors.Is(err, errs.ErrDict) && !errors.Is(err, errs.ErrClosed) {
				t.Errorf("train: %v", err)
			}
		})
		wg.Go(func() {
			<-start
			time.Sleep(time.Duration(round) * 200 * time.Microsecond)
			_, err := s.Append(t.Context(), src, offsets, codec.ZstdDict)
			if errors.Is(err, errs.ErrDict) { // the training ended while this compressed
				_, err = s.Append(t.Context(), src, offsets, codec.ZstdDict)
			}
			if err != nil {
				t.Errorf("append: %v", err)
			}
			if used, err = os.ReadFile(filepath.Join(path, dictName)); err != nil {
				t.Error(err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		close(start)
		wg.Wait()
		got, err := os.ReadFile(filepath.Join(path, dictName))
		if err != nil || !bytes.Equal(got, used) {
			t.Fatalf("round %d: the dictionary of the records was replaced, %v", round, err)
		}
		wantSamples(t, openStore(t, path, ReadOnly), 5)
	}
}

// An append that compressed with a dictionary finds another one in its place
// when its turn comes.
func TestAppendRefusesFramesOfAReplacedDictionary(t *testing.T) {
	s := openStore(t, closedStore(t, 0, codec.ZstdDict), Append)
	all, sizes := otherSamples()
	other, err := codec.Train(t.Context(), all, sizes, 1024)
	must(t, err)
	replaced, err := codec.NewDict(other)
	must(t, err)
	must(t, s.lockAppend(t.Context()))
	src, offsets := samples(0, 5)
	done := make(chan error)
	go func() {
		_, err := s.Append(t.Context(), src, offsets, codec.ZstdDict)
		done <- err
	}()
	// It waits for the append lock with the old dictionary in hand, or has not
	// looked yet, and then everything is made with the new one.
	time.Sleep(50 * time.Millisecond)
	s.dict.Store(replaced)
	s.unlockAppend()
	if err := <-done; err == nil {
		t.Error("frames of the old dictionary were appended")
	} else if !errors.Is(err, errs.ErrDict) {
		t.Error(err)
	}
	if s.Len() != 0 {
		t.Errorf("%d records", s.Len())
	}
}
