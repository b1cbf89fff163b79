package handle

import (
	"sync"

	"loaderx/gopkg/errs"
)

// Finding is something that a job found and that is no reason to end it.
type Finding struct {
	Index int64     `json:"index"`
	Code  errs.Code `json:"code"`
	Text  string    `json:"text"`
}

// Watch carries what a job tells while it runs to a caller who asks now and
// then. Safe for concurrent use. The zero value is ready.
type Watch struct {
	mu          sync.Mutex
	done, total int64
	findings    []Finding
}

// Progress notes how much of the work is done.
func (w *Watch) Progress(done, total int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done, w.total = done, total
}

// Done returns how much was done when the job last told.
func (w *Watch) Done() (done, total int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.done, w.total
}

// Find keeps a finding until it is taken.
func (w *Watch) Find(index int64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.findings = append(w.findings, Finding{index, errs.CodeOf(err), err.Error()})
}

// Take offers the oldest findings, at most n, to use and forgets them if it
// returns true.
func (w *Watch) Take(n int, use func([]Finding) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n = min(n, len(w.findings))
	if use(append([]Finding{}, w.findings[:n]...)) {
		w.findings = w.findings[n:]
	}
}

// Close does nothing; a Watch lives in a Table.
func (w *Watch) Close() error { return nil }
