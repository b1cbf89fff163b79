package zrecord

import "sync/atomic"

// life counts the running calls of a store, and ends when the last one left.
type life struct {
	calls   atomic.Int64
	drained chan struct{}
}

// ended is added to the count by end: no number of calls makes up for it.
const ended = -1 << 62

func (l *life) enter() bool {
	if l.calls.Add(1) > 0 {
		return true
	}
	l.leave()
	return false
}

func (l *life) leave() {
	if l.calls.Add(-1) == ended {
		select {
		case l.drained <- struct{}{}:
		default:
		}
	}
}

// end refuses new calls and waits for the running ones; it is called once.
func (l *life) end() {
	if l.calls.Add(ended) != ended {
		<-l.drained
	}
}
