package pybind

import (
	"encoding/json"
	"fmt"
	"math"
	"time"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/handle"
	"loaderx/gopkg/mem"
	"loaderx/gopkg/pipeline"
	"loaderx/gopkg/sampler"
)

// planJSON is a sampler.Plan as Python writes it.
type planJSON struct {
	Length, Batch, Rank, World uint64
	Mode                       int64
	Seed                       uint64
	FromStep, FromHi, FromLo   uint64
	Once                       bool
}

func (p planJSON) plan() sampler.Plan {
	return sampler.Plan{
		Length: p.Length, Batch: p.Batch, Mode: sampler.Mode(small(p.Mode)), Seed: p.Seed, Rank: p.Rank, World: p.World,
		FromStep: p.FromStep, From: sampler.Position{Hi: p.FromHi, Lo: p.FromLo}, Once: p.Once,
	}
}

// planOf reads a plan from the JSON text at an address.
func planOf(text uint64, textLen int64) (sampler.Plan, error) {
	var p planJSON
	raw, err := mem.Slice[byte](text, textLen)
	if err != nil {
		return sampler.Plan{}, err
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return sampler.Plan{}, fmt.Errorf("plan: %w: %w", errs.ErrArgument, err)
	}
	return p.plan(), nil
}

// PlanFill writes a rank's indices of one step of a plan, given as JSON, into
// out, a buffer of outLen int64, and returns how many there are.
func PlanFill(text uint64, textLen int64, step, out uint64, outLen int64) (status int64) {
	enter()
	defer guard(&status)
	plan, err := planOf(text, textLen)
	if err != nil {
		return fail(err)
	}
	dst, err := mem.Slice[int64](out, outLen)
	if err != nil {
		return fail(err)
	}
	n, err := plan.Fill(step, dst)
	return done(int64(n), err)
}

// PlanMost returns the largest number of indices in a step of a plan.
func PlanMost(text uint64, textLen int64) (status int64) {
	enter()
	defer guard(&status)
	plan, err := planOf(text, textLen)
	if err != nil {
		return fail(err)
	}
	n, err := plan.Most()
	return done(int64(n), err)
}

// PlanSteps returns how many steps a plan has for its rank.
func PlanSteps(text uint64, textLen int64) (status int64) {
	enter()
	defer guard(&status)
	plan, err := planOf(text, textLen)
	if err == nil {
		err = plan.Check()
	}
	return done(int64(min(plan.Steps(), math.MaxInt64)), err)
}

// PlanPosition writes how many samples all ranks draw before a step into out,
// two uint64, the high half first.
func PlanPosition(text uint64, textLen int64, step, out uint64) (status int64) {
	enter()
	defer guard(&status)
	plan, err := planOf(text, textLen)
	if err != nil {
		return fail(err)
	}
	dst, err := mem.Slice[uint64](out, 2)
	if err != nil {
		return fail(err)
	}
	at, err := plan.Position(step)
	dst[0], dst[1] = at.Hi, at.Lo
	return done(0, err)
}

// PipeOpen starts a pipeline as the reserved handle id; its configuration is
// JSON.
func PipeOpen(id int64, text uint64, textLen int64) (status int64) {
	enter()
	defer guard(&status)
	raw, err := mem.Slice[byte](text, textLen)
	if err != nil {
		return fail(err)
	}
	var c struct {
		Plan    planJSON
		Step    uint64
		Streams []struct {
			Name, Path      string
			Store           int64
			Kind            int64
			RowBytes, Width int64
			Truncate        bool
			Filler          []byte // in base 64
		}
		Workers, Ahead, Slots int
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return fail(fmt.Errorf("pipeline: %w: %w", errs.ErrArgument, err))
	}
	cfg := pipeline.Config{Plan: c.Plan.plan(), Step: c.Step, Workers: c.Workers, Ahead: c.Ahead, Slots: c.Slots}
	for _, s := range c.Streams {
		cfg.Streams = append(cfg.Streams, pipeline.Stream{
			Name: s.Name, Records: pipeline.ByHandle(&table, s.Store, s.Path), Kind: pipeline.Kind(small(s.Kind)),
			RowBytes: s.RowBytes, Width: s.Width, Truncate: s.Truncate, Filler: s.Filler,
		})
	}
	p, err := pipeline.New(cfg)
	if err != nil {
		return fail(err)
	}
	return done(0, table.Fill(id, p))
}

// PipeGive hands a slot to a pipeline; words describes its memory, which stays
// in place until PipeNext returns the slot or HandleClose has returned 1.
func PipeGive(id, slot int64, words uint64) (status int64) {
	enter()
	defer guard(&status)
	p, ref, err := handle.Use[*pipeline.Pipeline](&table, id)
	if err != nil {
		return fail(err)
	}
	defer ref.Release()
	return done(0, p.GiveAt(slot, words))
}

// PipeNext gives a slot back, unless it is negative, and waits up to waitMs for
// a step. It returns the outcome plus 4 times the number of the step's slot
// counted from 1, or 0 for none.
func PipeNext(id int64, step uint64, slot int64, words uint64, waitMs int64) (status int64) {
	enter()
	defer guard(&status)
	p, ref, err := handle.Use[*pipeline.Pipeline](&table, id)
	if err != nil {
		return fail(err)
	}
	defer ref.Release()
	if slot >= 0 {
		if err := p.GiveAt(slot, words); err != nil {
			return fail(err)
		}
	}
	at, outcome, err := p.NextAt(step, time.Duration(waitMs)*time.Millisecond)
	return done(int64(outcome)+4*(at+1), err)
}

// PipeStop ends a pipeline's calls and goroutines soon, and waits for none;
// HandleClose waits.
func PipeStop(id int64) (status int64) {
	enter()
	defer guard(&status)
	p, ref, err := handle.Use[*pipeline.Pipeline](&table, id)
	if err != nil {
		return fail(err)
	}
	defer ref.Release()
	p.Stop()
	return 0
}
