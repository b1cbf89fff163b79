package pipeline

import (
	"fmt"
	"runtime"
	"time"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/sampler"
	"loaderx/gopkg/zrecord"
)

// Records is what a stream reads; zrecord.Store is one. It must be safe for
// concurrent use.
type Records interface {
	Gather(r *zrecord.Request, from int, budget time.Duration) (next int, err error)
	Lengths(idxs []int64, wrap int64, out []uint32) (total int64, err error)
}

// Kind is the form that a stream's records take in a batch.
type Kind uint8

// The kinds. The numbers are part of the boundary to Python.
const (
	// Dense records have one size and lie side by side.
	Dense Kind = 0
	// Pad fills every record up to the same number of rows.
	Pad Kind = 1
	// Flat lets records of any length lie side by side.
	Flat Kind = 2
)

// Stream is one array of every batch.
type Stream struct {
	Name    string // for messages
	Records Records
	Kind    Kind
	// RowBytes is the size of a Dense record, and of one row of the others.
	RowBytes int64
	// Width is the number of rows that Pad gives every record, 0 for that of
	// the longest in the batch.
	Width int64
	// Truncate cuts records of more than Width rows; without it they are an
	// error.
	Truncate bool
	// Filler is the element that Pad fills up with, empty for zeros. Its length
	// divides RowBytes.
	Filler []byte
}

// Config is what a pipeline does.
type Config struct {
	Plan    sampler.Plan
	Step    uint64 // the first to be delivered
	Streams []Stream
	// Workers is the number of goroutines, 0 to leave all work to Next. More
	// than the processors left over by the consumer are not started.
	Workers int
	// Ahead is how many steps may be begun before they are asked for.
	Ahead int
	// Slots is how many slots the caller will give: ids 0..Slots-1.
	Slots int
}

const maxSlots = 1 << 20

// check validates what does not depend on slots.
func (c *Config) check() error {
	if err := c.Plan.Check(); err != nil {
		return err
	}
	if c.Step < c.Plan.FromStep {
		return fmt.Errorf("step %d, the plan begins at step %d: %w", c.Step, c.Plan.FromStep, errs.ErrArgument)
	}
	if c.Workers < 0 || c.Ahead < 0 || c.Slots < 1 || c.Slots > maxSlots {
		return fmt.Errorf("%d workers, %d steps ahead, %d slots: %w", c.Workers, c.Ahead, c.Slots, errs.ErrArgument)
	}
	if len(c.Streams) == 0 {
		return fmt.Errorf("no streams: %w", errs.ErrArgument)
	}
	for i := range c.Streams {
		s := &c.Streams[i]
		if s.Records == nil || s.Kind > Flat || s.RowBytes < 1 || s.Width < 0 {
			return fmt.Errorf("stream %q: kind %d, row of %d bytes, width %d: %w", s.Name, s.Kind, s.RowBytes, s.Width, errs.ErrArgument)
		}
		if n := int64(len(s.Filler)); n > 0 && s.RowBytes%n != 0 {
			return fmt.Errorf("stream %q: filler of %d bytes for a row of %d: %w", s.Name, n, s.RowBytes, errs.ErrArgument)
		}
	}
	return nil
}

// goroutines returns how many workers to start. One processor is left for the
// consumer, which does its share: with all of them busy its calls into Go
// would wait for a worker to be preempted.
func (c *Config) goroutines() int {
	return min(c.Workers, max(1, runtime.GOMAXPROCS(0)-1))
}
