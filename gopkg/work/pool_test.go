package work

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

type scratch struct{ used int }

type sum struct {
	left, done atomic.Int64
}

func (s *sum) Help(l *scratch) {
	l.used++
	for s.left.Add(-1) >= 0 {
		s.done.Add(1)
	}
}

func TestHelpersHelpAndBusyOnesAreNotWaitedFor(t *testing.T) {
	var pool Pool[scratch, *sum]
	s := new(sum)
	s.left.Store(1000)
	pool.Call(s, 100)
	if runtime.GOMAXPROCS(0) > 1 {
		for deadline := time.Now().Add(time.Minute); s.done.Load() < 1000; pool.Call(s, 1) {
			if time.Now().After(deadline) {
				t.Fatalf("%d of 1000 parts are done", s.done.Load())
			}
			runtime.Gosched()
		}
	}
	s.Help(new(scratch))
	if s.left.Load() >= 0 {
		t.Fatal("parts are left")
	}
}
