package zrecord

import "sync/atomic"

// life counts the running calls of a store, and ends when the last one left.
// One call may ask to be the only one for a while.
type life struct {
	calls   atomic.Int64
	drained chan struct{}
}

// These are added to the count by end and by claim: no number of calls makes
// up for them, so that enter refuses.
const (
	ended   = -1 << 62
	claimed = -1 << 61
)

func (l *life) enter() bool {
	if l.calls.Add(1) > 0 {
		return true
	}
	l.leave()
	return false
}

func (l *life) leave() { l.check(l.calls.Add(-1)) }

// check wakes end when the last call has left; that call may have kept its
// claim.
func (l *life) check(calls int64) {
	if calls == ended || calls == ended+claimed {
		select {
		case l.drained <- struct{}{}:
		default:
		}
	}
}

// claim makes the running call, which has entered, the only one until release:
// others are refused. It returns false when others are running.
func (l *life) claim() bool { return l.calls.CompareAndSwap(1, 1+claimed) }

func (l *life) release() { l.calls.Add(-claimed) }

// over reports whether end was called.
func (l *life) over() bool { return l.calls.Load() < claimed+claimed/2 }

// end refuses new calls and waits for the running ones; it is called once.
func (l *life) end() {
	l.check(l.calls.Add(ended))
	<-l.drained
}
