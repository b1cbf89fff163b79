package pipeline

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/sampler"
)

// big makes steps that are worth waking workers for.
func big(int64) int { return bigUnits }

const bigUnits = 32 << 10

func TestStepsAreTheSamplersWhateverTheWorkers(t *testing.T) {
	for _, mode := range []sampler.Mode{sampler.Sequential, sampler.IID, sampler.Cyclic} {
		for _, workers := range []int{0, 1, 3} {
			for _, ahead := range []int{0, 1, 4} {
				for _, units := range []int{1, 4096} {
					t.Run(fmt.Sprintf("%v/workers=%d/ahead=%d/units=%d", mode, workers, ahead, units), func(t *testing.T) {
						records := &fake{size: func(int64) int { return units }}
						cfg := Config{
							Plan: plan(34, 16, mode), Workers: workers, Ahead: ahead, Slots: ahead + 2, Step: 3,
							Streams: []Stream{
								{Name: "a", Records: records, RowBytes: int64(8 * units)},
								{Name: "b", Records: &fake{}, RowBytes: 8},
							},
						}
						o := open(t, cfg, 16*8*units, 16*8)
						last := -1
						for step := uint64(3); step < 20; step++ {
							if last >= 0 {
								o.give(last)
							}
							d := o.batch(step)
							last = d.Slot
							indices := want(t, cfg.Plan, step)
							equal(t, "indices", o.slots[d.Slot].Indices[:d.Records], indices)
							equal(t, "small stream", o.words(d.Slot, 1, d.Records), indices)
							all := o.words(d.Slot, 0, d.Records*units)
							for i, v := range all {
								if v != indices[i/units] {
									t.Fatalf("step %d: word %d is %d, want %d", step, i, v, indices[i/units])
								}
							}
						}
					})
				}
			}
		}
	}
}

func TestStepsAheadAreBounded(t *testing.T) {
	var mu sync.Mutex
	seen := map[int64]bool{}
	records := &fake{size: big, gate: func(i int64) {
		mu.Lock()
		seen[i] = true
		mu.Unlock()
	}}
	cfg := Config{
		Plan: plan(1000, 1, sampler.Sequential), Workers: 4, Ahead: 3, Slots: 8,
		Streams: []Stream{{Name: "x", Records: records, RowBytes: 8 * bigUnits}},
	}
	o := open(t, cfg, 8*bigUnits)
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(seen)
	}
	for end := time.Now().Add(20 * time.Second); count() < 3 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond) // in which it would go too far
	if n := count(); n != 3 {
		t.Fatalf("%d steps were begun, want 3", n)
	}
	o.batch(0)
	for end := time.Now().Add(20 * time.Second); count() < 4 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if n := count(); n != 4 {
		t.Fatalf("%d steps were begun after one was taken, want 4", n)
	}
}

func TestNobodyWritesIntoASlotThatWasDelivered(t *testing.T) {
	cfg := Config{
		Plan: plan(50, 2, sampler.IID), Workers: 2, Ahead: 2, Slots: 4,
		Streams: []Stream{{Name: "x", Records: &fake{size: big}, RowBytes: 8 * bigUnits}},
	}
	o := open(t, cfg, 2*8*bigUnits)
	held := []Delivery{o.batch(0), o.batch(1)}
	for step := uint64(2); step < 40; step++ {
		d := o.batch(step)
		for k, h := range held {
			equal(t, "held", o.words(h.Slot, 0, 1), want(t, cfg.Plan, uint64(k))[:1])
		}
		o.give(d.Slot)
	}
}

func TestAnErrorComesAtItsStep(t *testing.T) {
	for _, workers := range []int{0, 3} {
		records := &fake{size: big, fails: func(i int64) error {
			if i >= 12 {
				return fmt.Errorf("record %d: %w", i, errBad)
			}
			return nil
		}}
		cfg := Config{
			Plan: plan(100, 2, sampler.Sequential), Workers: workers, Ahead: 4, Slots: 6,
			Streams: []Stream{{Name: "pictures", Records: records, RowBytes: 8 * bigUnits}},
		}
		o := open(t, cfg, 2*8*bigUnits)
		for step := range uint64(6) {
			o.give(o.batch(step).Slot)
		}
		for range 2 {
			_, err := o.next(6)
			wantErr(t, "step 6", err, errs.ErrCorrupt)
			for _, part := range []string{"step 6", `stream "pictures"`, "record 12"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
		}
	}
}

func TestAPanicIsAnError(t *testing.T) {
	cfg := Config{
		Plan: plan(100, 2, sampler.Sequential), Workers: 2, Ahead: 4, Slots: 6,
		Streams: []Stream{{Name: "x", Records: &fake{size: big, gate: func(i int64) {
			if i == 4 {
				panic("oh")
			}
		}}, RowBytes: 8 * bigUnits}},
	}
	o := open(t, cfg, 2*8*bigUnits)
	o.batch(0)
	o.batch(1)
	_, err := o.next(2)
	wantErr(t, "step 2", err, errs.ErrInternal)
}

func TestAStepIsDeliveredAgainUntilItsSlotIsGivenBack(t *testing.T) {
	cfg := Config{
		Plan: plan(100, 2, sampler.IID), Workers: 1, Ahead: 2, Slots: 4,
		Streams: []Stream{{Name: "x", Records: &fake{}, RowBytes: 8}},
	}
	o := open(t, cfg, 16)
	d := o.batch(0)
	if again := o.batch(0); again.Slot != d.Slot {
		t.Fatalf("slot %d, then %d", d.Slot, again.Slot)
	}
	o.batch(1)
	equal(t, "step 0", o.words(d.Slot, 0, 2), want(t, cfg.Plan, 0))
	o.give(d.Slot)
	_, err := o.next(0)
	wantErr(t, "after giving it back", err, errs.ErrArgument)
	wantErr(t, "giving it twice", o.p.Give(d.Slot, o.slots[d.Slot]), errs.ErrArgument)
}

func TestOnePassEnds(t *testing.T) {
	cfg := Config{
		Plan: sampler.Plan{Length: 34, Batch: 4, World: 2, Rank: 1, Once: true}, Workers: 2, Ahead: 3, Slots: 5,
		Streams: []Stream{{Name: "x", Records: &fake{}, RowBytes: 8}},
	}
	o := open(t, cfg, 32)
	var all []int64
	for step := uint64(0); ; step++ {
		d, err := o.next(step)
		if err != nil {
			t.Fatal(err)
		}
		if d.Outcome == End {
			break
		}
		all = append(all, o.words(d.Slot, 0, d.Records)...)
		o.give(d.Slot)
	}
	equal(t, "all", all, []int64{4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31, 33})
}

func TestManyCallersGetEachStepOnce(t *testing.T) {
	cfg := Config{
		Plan: plan(1000, 2, sampler.Cyclic), Workers: 2, Ahead: 2, Slots: 8,
		Streams: []Stream{{Name: "x", Records: &fake{size: big}, RowBytes: 8 * bigUnits}},
	}
	o := open(t, cfg, 2*8*bigUnits)
	var wg sync.WaitGroup
	for k := range uint64(4) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for step := k; step < 200; step += 4 {
				d, err := o.next(step)
				if err != nil {
					t.Errorf("step %d: %v", step, err)
					return
				}
				if got := o.words(d.Slot, 0, 1)[0]; got != want(t, cfg.Plan, step)[0] {
					t.Errorf("step %d begins with %d", step, got)
				}
				if err := o.p.Give(d.Slot, o.slots[d.Slot]); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	good := func() Config {
		return Config{Plan: plan(10, 2, sampler.IID), Slots: 2, Streams: []Stream{{Name: "x", Records: &fake{}, RowBytes: 8}}}
	}
	for name, change := range map[string]func(*Config){
		"no streams": func(c *Config) { c.Streams = nil },
		"no records": func(c *Config) { c.Streams[0].Records = nil },
		"kind":       func(c *Config) { c.Streams[0].Kind = 3 },
		"empty rows": func(c *Config) { c.Streams[0].RowBytes = 0 },
		"width":      func(c *Config) { c.Streams[0].Width = -1 },
		"filler":     func(c *Config) { c.Streams[0].Filler = make([]byte, 3) },
		"slots":      func(c *Config) { c.Slots = 0 },
		"workers":    func(c *Config) { c.Workers = -1 },
		"rank":       func(c *Config) { c.Plan.Rank = 1 },
		"first step": func(c *Config) { c.Plan.FromStep = 5 },
	} {
		c := good()
		change(&c)
		_, err := New(c)
		wantErr(t, name, err, errs.ErrArgument)
	}
	p, err := New(good())
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, "small buffer", p.Give(0, Slot{Indices: make([]int64, 2), Buffers: []Buffer{{Data: make([]byte, 15)}}}), errs.ErrBuffer)
	wantErr(t, "few indices", p.Give(0, Slot{Indices: make([]int64, 1), Buffers: []Buffer{{Data: make([]byte, 16)}}}), errs.ErrBuffer)
	wantErr(t, "unknown slot", p.Give(2, Slot{}), errs.ErrArgument)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
}
