package work

import (
	"runtime"
	"sync"
)

// Helped is a call that others may help with, on scratch memory of their own
// of type L.
type Helped[L any] interface {
	// Help does a part of what is left to do, if anything is.
	Help(l *L)
}

// Pool is a fixed set of goroutines that help calls, for the whole process. It
// is started by the first call that is large enough for help. The zero Pool is
// ready to use.
type Pool[L any, W Helped[L]] struct {
	once sync.Once
	size int
	wake chan W
}

func (p *Pool[L, W]) start() {
	p.size = runtime.GOMAXPROCS(0)
	p.wake = make(chan W)
	for range p.size {
		go func() {
			// It lives as long as the process does.
			l := new(L)
			for w := range p.wake {
				w.Help(l)
			}
		}()
	}
}

// Call asks up to n idle helpers to help w, at most one less than there are
// processors. Busy ones are not waited for: the caller does the work itself
// meanwhile.
func (p *Pool[L, W]) Call(w W, n int) {
	p.once.Do(p.start)
	for range min(n, p.size-1) {
		select {
		case p.wake <- w:
		default:
			return
		}
	}
}
