package pipeline

import (
	"fmt"
	"math/bits"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
	"loaderx/gopkg/zrecord"
)

// Buffer is where one stream's part of a step goes.
type Buffer struct {
	Data []byte
	// Aux takes the rows of each record of a Pad stream, and of a Flat one
	// where each record begins, in rows, and the end of the last.
	Aux []int64
}

// Slot is the memory of one step. The caller owns it, and leaves it in place
// from Give until Next delivers it or Close returns.
type Slot struct {
	Indices []int64 // takes the step's indices; at least as many as a step has
	Buffers []Buffer
}

// state says who may touch a slot.
type state uint8

const (
	taken     state = iota // the caller's; also before its first Give
	free                   // waits for a step
	planning               // claimed to be planned
	unplanned              // has a step, and waits to be planned (again)
	starved                // needs larger buffers
	filling                // its blocks are claimed and copied
	ready                  // all done, or failed
)

// slot is a Slot and the step in it. All but the buffers' content is guarded
// by the pipeline's lock, except while planning: then it is the planner's.
type slot struct {
	Slot
	id    int
	state state
	words []uint64 // the caller's description, see GiveAt

	step    uint64
	n       int // records
	parts   []part
	claimed int // blocks, in the order of streams
	blocks  int
	left    int // blocks not yet finished
	err     error
	errAt   int   // block that err belongs to
	cost    int64 // nanoseconds spent
}

// part is one stream's share of a step.
type part struct {
	per   int // records in a block
	until int // number of the first block of the next stream
	width int64
	rows  int64 // of the result: Pad's width, Flat's total
	need  int64 // bytes of the result
	lens  []uint32
	offs  []uint64
}

// plan draws the step's indices and lays its blocks out. It reports whether
// the buffers are large enough.
func (s *slot) plan(c *Config) (fits bool, err error) {
	if s.n, err = c.Plan.Fill(s.step, s.Indices); err != nil {
		return false, err
	}
	idxs := s.Indices[:s.n]
	fits = true
	blocks := 0
	for i := range c.Streams {
		stream, p, buf := &c.Streams[i], &s.parts[i], &s.Buffers[i]
		each := stream.RowBytes
		if stream.Kind == Dense {
			p.rows, p.need = int64(s.n), int64(s.n)*each
		} else if each, err = p.ragged(stream, idxs, buf.Aux); err != nil {
			return false, fmt.Errorf("stream %q: %w", stream.Name, err)
		}
		fits = fits && p.need <= int64(len(buf.Data))
		p.per = zrecord.BlockRecords(each)
		blocks += (s.n + p.per - 1) / p.per
		p.until = blocks
	}
	s.blocks, s.claimed, s.left = blocks, 0, blocks
	return fits, nil
}

// ragged measures the records of a step, and returns about how many bytes
// each has in the result.
func (p *part) ragged(stream *Stream, idxs []int64, aux []int64) (each int64, err error) {
	n := len(idxs)
	if cap(p.lens) < n {
		p.lens, p.offs = make([]uint32, n), make([]uint64, n)
	}
	p.lens, p.offs = p.lens[:n], p.offs[:n]
	if _, err := stream.Records.Lengths(idxs, 0, p.lens); err != nil {
		return 0, err
	}
	if len(aux) < n+1 {
		return 0, fmt.Errorf("room for %d numbers, want %d: %w", len(aux), n+1, errs.ErrBuffer)
	}
	row := stream.RowBytes
	longest, at, total := int64(0), 0, int64(0)
	for i, size := range p.lens {
		rows := int64(size) / row
		if rows*row != int64(size) {
			return 0, fmt.Errorf("record %d has %d bytes, which is not a multiple of its row of %d: %w", idxs[i], size, row, errs.ErrCorrupt)
		}
		aux[i] = rows
		if rows > longest {
			longest, at = rows, i
		}
		if stream.Kind == Flat {
			aux[i] = total
			p.offs[i] = uint64(total * row)
			total += rows
		}
	}
	if stream.Kind == Flat {
		aux[n] = total
		p.rows, p.need = total, total*row
		return p.need / int64(max(n, 1)), nil
	}
	p.width = longest
	if stream.Width > 0 {
		p.width = stream.Width
		if longest > p.width && !stream.Truncate {
			return 0, errs.ErrArgument.Errorf("record %d has %d rows, more than the %d that records are padded to: pad to more (max_len), or cut longer ones (truncate=True)", idxs[at], longest, p.width)
		}
	}
	p.rows = p.width
	over, bytes := bits.Mul64(uint64(p.width), uint64(row))
	over2, all := bits.Mul64(bytes, uint64(n))
	if over != 0 || over2 != 0 || all > 1<<62 {
		return 0, fmt.Errorf("%d records of %d rows of %d bytes: %w", n, p.width, row, errs.ErrArgument)
	}
	p.need = int64(all)
	for i := range p.offs {
		p.offs[i] = uint64(i) * bytes
		aux[i] = min(aux[i], p.width)
	}
	return int64(bytes), nil
}

// give takes over the memory of a slot.
func (s *slot) give(c *Config, m Slot, most int) error {
	if len(m.Buffers) != len(c.Streams) || len(m.Indices) < most {
		return fmt.Errorf("slot %d has %d buffers and room for %d indices, want %d and %d: %w",
			s.id, len(m.Buffers), len(m.Indices), len(c.Streams), most, errs.ErrBuffer)
	}
	for i := range m.Buffers {
		// A dense stream's need is known, so its buffer never starves.
		if want := int64(most) * c.Streams[i].RowBytes; c.Streams[i].Kind == Dense && int64(len(m.Buffers[i].Data)) < want {
			return fmt.Errorf("slot %d: buffer of %d bytes for stream %q, want %d: %w",
				s.id, len(m.Buffers[i].Data), c.Streams[i].Name, want, errs.ErrBuffer)
		}
	}
	s.Slot = m
	return nil
}

// GiveAt is Give for a slot that the caller describes in 64-bit words at an
// address. The words, and all the memory they name, are the caller's.
//
//	0            step, written by NextAt
//	1            records in it, written by NextAt
//	2            address of the indices, int64
//	3+4i         stream i: address of its data
//	4+4i         their size in bytes
//	5+4i         address of the numbers of a ragged stream, int64
//	6+4i         written by NextAt: rows of the result, or for Grow the bytes it needs
func (p *Pipeline) GiveAt(id int64, addr uint64) error {
	words, err := mem.Slice[uint64](addr, int64(3+4*len(p.cfg.Streams)))
	if err != nil {
		return err
	}
	if id < 0 || id >= int64(len(p.slots)) {
		return fmt.Errorf("slot %d of %d: %w", id, len(p.slots), errs.ErrArgument)
	}
	s := &p.slots[id]
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.mayGive(s); err != nil {
		return err
	}
	m := Slot{Buffers: s.Buffers[:0]}
	if m.Indices, err = mem.Slice[int64](words[2], int64(p.most)); err != nil {
		return err
	}
	for i := range p.cfg.Streams {
		var b Buffer
		w := words[3+4*i:]
		if b.Data, err = mem.Slice[byte](w[0], int64(w[1])); err != nil {
			return err
		}
		if p.cfg.Streams[i].Kind != Dense {
			if b.Aux, err = mem.Slice[int64](w[2], int64(p.most)+1); err != nil {
				return err
			}
		}
		m.Buffers = append(m.Buffers, b)
	}
	s.words = words
	return p.give(s, m)
}

// tell writes what a delivery holds into the caller's words.
func (s *slot) tell(kind Outcome) {
	if s.words == nil {
		return
	}
	s.words[0], s.words[1] = s.step, uint64(s.n)
	for i := range s.parts {
		s.words[6+4*i] = uint64(s.parts[i].rows)
		if kind == Grow {
			s.words[6+4*i] = uint64(s.parts[i].need)
		}
	}
}
