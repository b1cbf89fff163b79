package sampler

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"loaderx/gopkg/errs"
)

func fillStep(t *testing.T, p Plan, step uint64) []int64 {
	t.Helper()
	most, err := p.Most()
	if err != nil {
		t.Fatal(err)
	}
	out := make([]int64, most)
	n, err := p.Fill(step, out)
	if err != nil {
		t.Fatal(err)
	}
	return out[:n]
}

func global(t *testing.T, p Params, step uint64) []int64 {
	t.Helper()
	n, err := p.PerStep()
	if err != nil {
		t.Fatal(err)
	}
	out := make([]int64, n)
	if _, err := Fill(p, step, 1, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestRanksTogetherDrawTheGlobalBatch(t *testing.T) {
	for _, mode := range []Mode{Sequential, IID, Cyclic} {
		for _, n := range []uint64{1, 3, 34, 64, 1000, 3 << 40} {
			for _, batch := range []uint64{1, 2, 16, 33} {
				for _, world := range []uint64{1, 2, 3, 8} {
					name := fmt.Sprintf("%v/n=%d/batch=%d/world=%d", mode, n, batch, world)
					p := Plan{Length: n, Batch: batch, Mode: mode, Seed: 5, World: world}
					if mode == Cyclic && n < world {
						for rank := range world {
							p.Rank = rank
							if err := p.Check(); !errors.Is(err, errs.ErrArgument) {
								t.Errorf("%s: rank %d: got %v, want ErrArgument", name, rank, err)
							}
						}
						continue
					}
					for step := range uint64(40) {
						var all []int64
						for rank := range world {
							p.Rank = rank
							part := fillStep(t, p, step)
							if mode != Cyclic || n >= world*batch {
								if uint64(len(part)) != batch {
									t.Fatalf("%s: rank %d has %d indices", name, rank, len(part))
								}
							} else if d := int64(len(part)) - int64(n/world); d < 0 || d > 1 {
								t.Fatalf("%s: rank %d has %d of %d indices", name, rank, len(part), n)
							}
							all = append(all, part...)
						}
						want := global(t, Params{Length: n, Batch: world * batch, Mode: mode, Seed: 5}, step)
						if !slices.Equal(all, want) {
							t.Fatalf("%s step %d: ranks draw %v, want %v", name, step, all, want)
						}
					}
				}
			}
		}
	}
}

func TestAnotherWorldWithTheSameGlobalBatchContinuesExactly(t *testing.T) {
	for _, mode := range []Mode{Sequential, IID, Cyclic} {
		before := Plan{Length: 1000, Batch: 24, Mode: mode, Seed: 9, World: 2}
		for step := range uint64(60) {
			at, err := before.Position(step)
			if err != nil {
				t.Fatal(err)
			}
			for _, world := range []uint64{1, 3, 4} {
				var all []int64
				after := before
				after.World, after.Batch, after.FromStep, after.From = world, 48/world, step, at
				for rank := range world {
					after.Rank = rank
					all = append(all, fillStep(t, after, step+5)...)
				}
				want := global(t, Params{Length: 1000, Batch: 48, Mode: mode, Seed: 9}, step+5)
				if !slices.Equal(all, want) {
					t.Fatalf("%v: stopped at %d, world %d: got %v, want %v", mode, step, world, all, want)
				}
			}
		}
	}
}

// The draws of the whole run, over several changes of the global batch, are
// those of one run that draws them one at a time.
func TestAnotherGlobalBatchContinuesAtTheSamePosition(t *testing.T) {
	const n = 100
	for _, mode := range []Mode{Sequential, IID, Cyclic} {
		one := Params{Length: n, Batch: 1, Mode: mode, Seed: 77}
		p := Plan{Length: n, Mode: mode, Seed: 77, World: 1}
		step, want := uint64(0), uint64(0)
		for _, batch := range []uint64{7, 3, 64, 5, 100, 1, 33} {
			p.Batch = batch
			for range 6 {
				at, err := p.Position(step)
				if err != nil {
					t.Fatal(err)
				}
				if at != (Position{0, want}) {
					t.Fatalf("%v: step %d of batch %d is at %v, want %d", mode, step, batch, at, want)
				}
				if mode == Cyclic && want%n+batch > n {
					want += n - want%n // the end of the cycle is dropped
				}
				got := fillStep(t, p, step)
				for i := range got {
					if draw := global(t, one, want+uint64(i)); got[i] != draw[0] {
						t.Fatalf("%v: step %d of batch %d: index %d is %d, want %d", mode, step, batch, i, got[i], draw[0])
					}
				}
				step, want = step+1, want+batch
			}
			at, err := p.Position(step)
			if err != nil {
				t.Fatal(err)
			}
			p.FromStep, p.From = step, at
		}
	}
}

func TestAPositionInTheDroppedRestBeginsTheNextCycle(t *testing.T) {
	p := Plan{Length: 10, Batch: 4, Mode: Cyclic, Seed: 1, World: 1, FromStep: 3, From: Position{0, 17}}
	want := global(t, Params{Length: 10, Batch: 4, Mode: Cyclic, Seed: 1}, 4) // cycle 2
	if got := fillStep(t, p, 3); !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	if at, _ := p.Position(4); at != (Position{0, 24}) {
		t.Fatalf("position %v, want 24", at)
	}
}

func TestPositionsOf128Bits(t *testing.T) {
	p := Plan{Length: 1 << 40, Batch: 1 << 61, Mode: IID, Seed: 3, World: 2, Rank: 1}
	at, err := p.Position(1 << 40)
	if err != nil || at != (Position{1 << 38, 0}) {
		t.Fatalf("got %v, %v", at, err)
	}
	c := Plan{Length: 1 << 62, Batch: 1 << 20, Mode: Cyclic, Seed: 3, World: 4}
	at, err = c.Position(1<<63 + 5)
	if err != nil {
		t.Fatal(err)
	}
	d := c
	d.FromStep, d.From = 1<<63+5, at
	d.Batch, d.World = 4, 1
	c.Batch, c.World = 4, 1
	c.FromStep, c.From = 1<<63+5, at
	if got, want := fillStep(t, d, 1<<63+9), fillStep(t, c, 1<<63+9); !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func TestOnePassHasEveryRecordOnce(t *testing.T) {
	for _, n := range []uint64{1, 3, 34, 64, 1000} {
		for _, batch := range []uint64{1, 2, 16, 33} {
			for _, world := range []uint64{1, 2, 3, 8} {
				p := Plan{Length: n, Batch: batch, Mode: Cyclic, World: world, Once: true}
				var all []int64
				steps := (n-1)/(world*batch) + 1
				for step := range steps {
					for rank := range world {
						p.Rank = rank
						part := fillStep(t, p, step)
						if (len(part) > 0) != (step < p.Steps()) {
							t.Fatalf("n=%d batch=%d world=%d: rank %d has %d records in step %d of %d", n, batch, world, rank, len(part), step, p.Steps())
						}
						all = append(all, part...)
					}
				}
				for i, v := range all {
					if v != int64(i) {
						t.Fatalf("n=%d batch=%d world=%d: place %d holds %d", n, batch, world, i, v)
					}
				}
				if uint64(len(all)) != n {
					t.Fatalf("n=%d batch=%d world=%d: %d records", n, batch, world, len(all))
				}
				if got := fillStep(t, p, steps); len(got) != 0 {
					t.Fatalf("records after the end: %v", got)
				}
			}
		}
	}
}

func TestImpossiblePlans(t *testing.T) {
	good := Plan{Length: 10, Batch: 2, Mode: Cyclic, World: 2}
	for name, change := range map[string]func(*Plan){
		"rank past the world": func(p *Plan) { p.Rank = 2 },
		"no world":            func(p *Plan) { p.World = 0 },
		"no records":          func(p *Plan) { p.Length = 0 },
		"no batch":            func(p *Plan) { p.Batch = 0 },
		"global batch":        func(p *Plan) { p.Batch, p.World = 1<<62, 4 },
		"wrapping batch":      func(p *Plan) { p.Batch, p.World = 1<<33, 1<<31 },
		"mode":                func(p *Plan) { p.Mode = 3 },
		"more ranks":          func(p *Plan) { p.World = 11 },
		"position":            func(p *Plan) { p.From.Hi = math.MaxUint64 },
	} {
		p := good
		change(&p)
		if err := p.Check(); !errors.Is(err, errs.ErrArgument) {
			t.Errorf("%s: got %v, want ErrArgument", name, err)
		}
		if _, err := p.Fill(0, make([]int64, 100)); !errors.Is(err, errs.ErrArgument) {
			t.Errorf("%s: Fill gives %v, want ErrArgument", name, err)
		}
	}
	if _, err := good.Fill(0, make([]int64, 1)); !errors.Is(err, errs.ErrBuffer) {
		t.Errorf("small buffer: %v", err)
	}
	good.FromStep = 5
	if _, err := good.Fill(4, make([]int64, 2)); !errors.Is(err, errs.ErrArgument) {
		t.Errorf("step before the first: %v", err)
	}
}
