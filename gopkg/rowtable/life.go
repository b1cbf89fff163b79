package rowtable

import "sync/atomic"

// life counts the running users of something, and ends when the last one left.
type life struct {
	users   atomic.Int64
	drained chan struct{}
}

// ended is added to the count by end: no number of users makes up for it, so
// that enter refuses.
const ended = -1 << 62

func newLife() life { return life{drained: make(chan struct{}, 1)} }

// enter reports whether there is still something to use; leave ends the use.
func (l *life) enter() bool {
	if l.users.Add(1) > 0 {
		return true
	}
	l.leave()
	return false
}

func (l *life) leave() { l.check(l.users.Add(-1)) }

// over reports whether end was called.
func (l *life) over() bool { return l.users.Load() < 0 }

// check wakes end when the last user has left.
func (l *life) check(users int64) {
	if users == ended {
		select {
		case l.drained <- struct{}{}:
		default:
		}
	}
}

// end refuses new users and waits for the present ones; it is called once.
func (l *life) end() {
	l.check(l.users.Add(ended))
	<-l.drained
}
