package work

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestEndWaitsForCallsAndRefusesLaterOnes(t *testing.T) {
	l := NewLife()
	if !l.Enter() || l.Over() {
		t.Fatal("a new life refuses calls")
	}
	ended := make(chan struct{})
	go func() {
		l.End()
		close(ended)
	}()
	for !l.Over() {
		time.Sleep(time.Microsecond)
	}
	if l.Enter() {
		t.Fatal("a call entered behind the end")
	}
	select {
	case <-ended:
		t.Fatal("the end did not wait")
	default:
	}
	l.Leave()
	<-ended
}

func TestAClaimIsForTheOnlyCall(t *testing.T) {
	l := NewLife()
	if l.Claim() {
		t.Fatal("a claim without a call")
	}
	for range 2 {
		if !l.Enter() {
			t.Fatal("refused without a claim")
		}
	}
	if l.Claim() {
		t.Fatal("a claim beside another call")
	}
	l.Leave()
	if !l.Claim() || l.Enter() || l.Over() {
		t.Fatal("the only call has no claim")
	}
	l.Release()
	if !l.Enter() {
		t.Fatal("refused behind a claim")
	}
	l.Leave()
	if !l.Claim() {
		t.Fatal("no second claim")
	}
	l.Leave() // with its claim
	l.End()   // does not wait for ever
	if !l.Over() || l.Enter() {
		t.Fatal("open behind the end")
	}
}

func TestCallsThatComeWhileItEnds(t *testing.T) {
	for range 200 {
		l := NewLife()
		var ended, behind atomic.Bool
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				for l.Enter() {
					runtime.Gosched()
					if ended.Load() {
						behind.Store(true)
					}
					l.Leave()
				}
			})
		}
		runtime.Gosched()
		l.End()
		ended.Store(true)
		group.Wait()
		if behind.Load() {
			t.Fatal("a call was running behind the end")
		}
	}
}
