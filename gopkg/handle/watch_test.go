package handle

import (
	"sync"
	"testing"

	"loaderx/gopkg/errs"
)

func TestWatchKeepsFindingsUntilTheyAreTaken(t *testing.T) {
	var w Watch
	w.Take(10, func(got []Finding) bool {
		if len(got) > 0 {
			t.Errorf("new: %v", got)
		}
		return true
	})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 100 {
				w.Find(int64(g*100+i), errs.ErrCorrupt)
				w.Progress(int64(i), 100)
			}
		})
	}
	wg.Wait()
	if done, total := w.Done(); done != 99 || total != 100 {
		t.Errorf("%d of %d", done, total)
	}
	seen := map[int64]bool{}
	for round := range 20 {
		w.Take(30, func(got []Finding) bool {
			if round%2 == 0 {
				return false // no room; they stay
			}
			for _, f := range got {
				if seen[f.Index] || f.Code != errs.ErrCorrupt.Code() || f.Text == "" {
					t.Errorf("%+v", f)
				}
				seen[f.Index] = true
			}
			return true
		})
	}
	if len(seen) != 300 {
		t.Errorf("%d findings in ten batches of 30", len(seen))
	}
}
