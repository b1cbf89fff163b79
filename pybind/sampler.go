package pybind

import (
	"loaderx/gopkg/mem"
	"loaderx/gopkg/sampler"
)

// SamplerFill writes the indices of steps consecutive batches into out, a
// buffer of outLen int64, and returns the number of indices in each batch.
func SamplerFill(length, batch uint64, mode int64, seed, step uint64, steps int64, out uint64, outLen int64) (status int64) {
	enter()
	defer guard(&status)
	dst, err := mem.Slice[int64](out, outLen)
	if err != nil {
		return fail(err)
	}
	params := sampler.Params{Length: length, Batch: batch, Mode: sampler.Mode(small(mode)), Seed: seed}
	perStep, err := sampler.Fill(params, step, int(steps), dst)
	return done(int64(perStep), err)
}
