package pipeline

import (
	"fmt"
	"time"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
	"loaderx/gopkg/zrecord"
)

// lane is what one goroutine, or one consumer's call, needs to work.
type lane struct {
	cfg  *Config
	s    *slot
	at   int // block to copy, planIt to plan the step
	fits bool
	run  func() error // work without its allocation for every block

	req     zrecord.Request
	scratch []byte
	offs    []uint64
}

const planIt = -1

func newLane() *lane {
	l := new(lane)
	l.run = l.work
	return l
}

// do runs the claimed work outside the lock, and returns what it took.
func (l *lane) do() (time.Duration, error) {
	start := time.Now()
	err := mem.Guard(l.run)
	// What the caller may free must not be found in a stale request.
	l.req = zrecord.Request{}
	return time.Since(start), err
}

func (l *lane) work() error {
	s := l.s
	if l.at == planIt {
		var err error
		l.fits, err = s.plan(l.cfg)
		return err
	}
	i, first := 0, 0
	for l.at >= s.parts[i].until {
		first = s.parts[i].until
		i++
	}
	p := &s.parts[i]
	from := (l.at - first) * p.per
	to := min(from+p.per, s.n)
	stream := &l.cfg.Streams[i]
	if err := l.copy(stream, p, s, s.Buffers[i].Data[:p.need], from, to); err != nil {
		return fmt.Errorf("stream %q: %w", stream.Name, err)
	}
	return nil
}

// copy fills the places from..to of a stream's buffer.
func (l *lane) copy(stream *Stream, p *part, s *slot, dst []byte, from, to int) error {
	l.req.Idxs = s.Indices[from:to]
	if stream.Kind == Dense {
		l.req.Dst, l.req.RowBytes = dst[int64(from)*stream.RowBytes:int64(to)*stream.RowBytes], stream.RowBytes
		return l.gather(stream)
	}
	lens, offs := p.lens[from:to], p.offs[from:to]
	if stream.Kind == Flat {
		l.req.Dst, l.req.Offsets = dst, offs
		return l.gather(stream)
	}
	room := uint64(p.width * stream.RowBytes)
	whole := true
	for _, n := range lens {
		whole = whole && uint64(n) <= room
	}
	if whole {
		l.req.Dst, l.req.Offsets = dst, offs
		if err := l.gather(stream); err != nil {
			return err
		}
	} else if err := l.cut(stream, lens, offs, dst, room); err != nil {
		return err
	}
	for i, n := range lens {
		fill(dst[offs[i] : offs[i]+room][min(uint64(n), room):], stream.Filler)
	}
	return nil
}

// cut gathers records of which some are longer than their room.
func (l *lane) cut(stream *Stream, lens []uint32, offs []uint64, dst []byte, room uint64) error {
	l.offs = l.offs[:0]
	total := uint64(0)
	for _, n := range lens {
		l.offs = append(l.offs, total)
		total += uint64(n)
	}
	if uint64(cap(l.scratch)) < total {
		l.scratch = make([]byte, total)
	}
	l.req.Dst, l.req.Offsets = l.scratch[:total], l.offs
	if err := l.gather(stream); err != nil {
		return err
	}
	for i, n := range lens {
		copy(dst[offs[i]:offs[i]+room], l.scratch[l.offs[i]:l.offs[i]+uint64(n)])
	}
	return nil
}

func (l *lane) gather(stream *Stream) error {
	next, err := stream.Records.Gather(&l.req, 0, 0)
	if err == nil && next != len(l.req.Idxs) {
		err = fmt.Errorf("gathered %d of %d records: %w", next, len(l.req.Idxs), errs.ErrInternal)
	}
	return err
}

// fill repeats an element; none stands for zeros.
func fill(dst, element []byte) {
	if len(element) == 0 {
		clear(dst)
		return
	}
	for done := copy(dst, element); done < len(dst) && done > 0; {
		done += copy(dst[done:], dst[:done])
	}
}
