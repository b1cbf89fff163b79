package work

import "sync/atomic"

// Life counts the running calls of something that is closed in the end, and
// ends when the last one has left. One call may ask to be the only one for a
// while. NewLife makes one.
type Life struct {
	calls   atomic.Int64
	drained chan struct{}
}

// These are added to the count by End and by Claim: no number of calls makes
// up for them, so that Enter refuses.
const (
	ended   = -1 << 62
	claimed = -1 << 61
)

// NewLife returns a life without calls.
func NewLife() Life { return Life{drained: make(chan struct{}, 1)} }

// Enter begins a call, which ends with Leave. It returns false, and nothing
// has begun, after End and while another call has its claim.
func (l *Life) Enter() bool {
	if l.calls.Add(1) > 0 {
		return true
	}
	l.Leave()
	return false
}

// Leave ends a call that has entered.
func (l *Life) Leave() { l.check(l.calls.Add(-1)) }

// check wakes End when the last call has left; that call may have kept its
// claim.
func (l *Life) check(calls int64) {
	if calls == ended || calls == ended+claimed {
		select {
		case l.drained <- struct{}{}:
		default:
		}
	}
}

// Claim makes the running call, which has entered, the only one until Release:
// others are refused. It returns false when others are running.
func (l *Life) Claim() bool { return l.calls.CompareAndSwap(1, 1+claimed) }

// Release ends a claim.
func (l *Life) Release() { l.calls.Add(-claimed) }

// Over reports whether End was called.
func (l *Life) Over() bool { return l.calls.Load() < claimed+claimed/2 }

// End refuses new calls and waits for the running ones; it is called once.
func (l *Life) End() {
	l.check(l.calls.Add(ended))
	<-l.drained
}
