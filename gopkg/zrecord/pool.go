package zrecord

import (
	"runtime"
	"sync"
)

// helperPool is the fixed set of goroutines that help gathers, shared by all
// stores of the process. It is started by the first gather that is large
// enough for help.
type helperPool struct {
	once sync.Once
	size int
	wake chan *gather
}

var pool helperPool

func (p *helperPool) start() {
	p.size = runtime.GOMAXPROCS(0)
	p.wake = make(chan *gather)
	for range p.size {
		go func() {
			// The lane lives as long as the process does.
			l := new(lane)
			for g := range p.wake {
				g.help(l)
			}
		}()
	}
}

// call asks up to n idle helpers to join g. Busy ones are not waited for: the
// caller does the work itself meanwhile.
func (p *helperPool) call(g *gather, n int) {
	p.once.Do(p.start)
	for range min(n, p.size-1) {
		select {
		case p.wake <- g:
		default:
			return
		}
	}
}
