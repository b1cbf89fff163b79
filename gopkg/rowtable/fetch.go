package rowtable

import (
	"context"
	"fmt"
	"math/bits"
	"slices"
	"time"
)

// fetchAll copies the rows of a table whose blocks may be compressed, chunk by
// chunk.
func (q *query) fetchAll(out []byte, from int, budget time.Duration) (next int, err error) {
	start := time.Now()
	n, width := len(q.ids), q.t.h.rowBytes
	for next = from; next < n; {
		end := min(next+q.step, n)
		if err := q.fetch(out[int64(next)*width:int64(end)*width], nil, next, end); err != nil {
			return from, err
		}
		next = end
		if budget > 0 && time.Since(start) >= budget {
			break
		}
	}
	return next, nil
}

// fetch copies the rows of the ids from from to to into out, the i-th to row i
// of it. Unless places is nil it notes there where in out each row is, and
// copies a row that must be decoded only once for all of its ids.
//
// First all goroutines look: cached rows are copied, before anything can push
// them out, and raw ones. The rest is sorted by stored row, and then goroutines
// decode one block after the other, each once, and copy its rows.
func (q *query) fetch(out []byte, places []int64, from, to int) error {
	n, width := to-from, q.t.h.rowBytes
	q.first, q.chunk, q.out, q.places = from, q.ids[from:to], out, places
	q.posBits = bits.Len(uint(n - 1))
	if bits.Len64(uint64(q.t.h.stored-1))+q.posBits > 64 {
		return q.halves(out, places, from, to)
	}
	if cap(q.missed) < n {
		q.missed, q.spare = make([]uint64, n), make([]uint64, n)
	}
	q.misses.Store(0)
	if q.cache = q.t.useCache(); q.cache != nil {
		q.now = q.cache.clock.Add(1)
	}
	err := q.fetchChunk(n, width)
	if q.cache != nil {
		q.cache.life.Leave()
		q.cache = nil
	}
	return q.t.explain(err)
}

func (q *query) fetchChunk(n int, width int64) error {
	q.crew.limit(q.ctx, 0)
	// Large portions let a shard's lock be taken once for many rows.
	per := max(q.portion(), min(maxPortion, n/4, int(8*portionBytes/width)))
	if _, err := q.crew.run(&q.lane, q.lookStep, 0, n, per, q.helpers(int64(n)*width, shareCopied)); err != nil {
		return err
	}
	missed := q.missed[:q.misses.Load()]
	if len(missed) == 0 {
		return nil
	}
	missed, err := sortRows(q.ctx, missed, q.spare[:len(missed)], q.posBits)
	if err != nil {
		return err
	}
	q.spare, q.missed = q.spare[:cap(q.spare)], q.missed[:cap(q.missed)]
	if &missed[0] != &q.missed[0] {
		q.missed, q.spare = q.spare, q.missed
	}
	q.groups = q.groups[:0]
	last := int64(-1)
	for i, key := range missed {
		if i%untilEnded == 0 {
			if err := stopped(q.ctx); err != nil {
				return err
			}
		}
		if block := q.t.blockOf(int64(key >> q.posBits)); block != last {
			q.groups = append(q.groups, i)
			last = block
		}
	}
	q.groups = append(q.groups, len(missed))
	blocks := len(q.groups) - 1
	decoded := q.t.h.blockRows * width
	helpers := q.helpers(int64(blocks)*decoded, shareDecoded)
	// Large blocks one at a time, so that their memory is taken once.
	helpers = min(helpers, int(largeBytes/decoded))
	_, err = q.crew.run(&q.lane, q.groupStep, 0, blocks, 1, helpers)
	return err
}

// largeBytes bounds the sum of the decoded blocks that helpers work on.
const largeBytes = 256 << 20

// halves fetches a chunk whose stored rows and positions fill more than 64
// bits together.
func (q *query) halves(out []byte, places []int64, from, to int) error {
	mid := (to - from) / 2
	at := int64(mid) * q.t.h.rowBytes
	var low, high []int64
	if places != nil {
		low, high = places[:mid], places[mid:]
	}
	if err := q.fetch(out[:at], low, from, from+mid); err != nil {
		return err
	}
	if err := q.fetch(out[at:], high, from+mid, to); err != nil {
		return err
	}
	for i := range high {
		high[i] += at
	}
	return nil
}

// look copies the cached and raw rows of a part of the chunk, and notes the
// others.
func (q *query) look(l *lane, from, to int) error {
	t, width := q.t, q.t.h.rowBytes
	rows := l.rows[:to-from]
	if err := t.resolve(rows, q.chunk[from:to], q.first+from, q.unsigned); err != nil {
		return err
	}
	out := q.out[int64(from)*width : int64(to)*width]
	if q.places != nil {
		for i := from; i < to; i++ {
			q.places[i] = int64(i) * width
		}
	}
	hits := 0
	if q.cache != nil {
		hits = q.cache.read(q, l, rows, out)
		if hits > 0 {
			q.counts.hits.Add(int64(hits))
		}
		if hits == len(rows) {
			return nil
		}
	}
	found := 0
	for i, row := range rows {
		if q.cache != nil && !l.missing[i] {
			continue
		}
		block := t.blockOf(row)
		if Codec(t.data[t.h.descriptors+block*descriptorBytes+codecAt]) == Raw {
			d, err := t.descriptor(block)
			if err != nil {
				return fmt.Errorf("table %s: %w", t.path, err)
			}
			if d.codec == Raw {
				at := d.at + (row-block*t.h.blockRows)*width
				copy(out[int64(i)*width:int64(i+1)*width], t.data[at:at+width])
				continue
			}
		}
		l.missed[found] = uint64(row)<<q.posBits | uint64(from+i)
		found++
	}
	end := q.misses.Add(int64(found))
	copy(q.missed[end-int64(found):end], l.missed[:found])
	if q.cache != nil && found > 0 {
		q.counts.misses.Add(int64(found))
	}
	return nil
}

// codecAt is where a descriptor has its codec.
const codecAt = 20

// group decodes blocks and copies their rows to all who asked for them.
func (q *query) group(l *lane, from, to int) error {
	for i := from; i < to; i++ {
		if err := q.deliver(l, q.missed[q.groups[i]:q.groups[i+1]]); err != nil {
			return fmt.Errorf("table %s: %w", q.t.path, err)
		}
	}
	return nil
}

// deliver decodes the block of missed rows, which are in order.
func (q *query) deliver(l *lane, missed []uint64) error {
	t, width := q.t, q.t.h.rowBytes
	number := t.blockOf(int64(missed[0] >> q.posBits))
	base := number * t.h.blockRows
	d, err := t.descriptor(number)
	if err != nil {
		return err
	}
	var b block
	if d.codec == Raw { // the file changed since look
		b = block{rows: t.data[d.at : d.at+d.bytes], rowBytes: int(width)}
	} else {
		last := int64(missed[len(missed)-1]>>q.posBits) - base
		keep := q.cache != nil && q.cache.policy == Blocks
		if keep {
			last = d.rows - 1
		}
		if b, err = t.decode(l, number, &d, last); err != nil {
			return err
		}
		if keep {
			if b.rows, err = b.all(l); err != nil {
				return err
			}
			b.size = 0
			q.cache.add(number, b.rows, q.now)
		}
		q.counts.blocks.Add(1)
		q.counts.compressed.Add(d.bytes)
		q.counts.decoded.Add(d.rows * width)
	}
	keep := q.cache != nil && q.cache.policy == Rows
	mask := uint64(1)<<q.posBits - 1
	var row []byte
	last, lastAt := int64(-1), int64(0)
	perLook := max(copiedUntilEnded/int(width), 1)
	for i, key := range missed {
		if i%perLook == perLook-1 {
			if err := stopped(q.ctx); err != nil {
				return err
			}
		}
		stored, at := int64(key>>q.posBits), int64(key&mask)*width
		if stored != last {
			if row, err = b.row(l, stored-base); err != nil {
				return err
			}
			if keep {
				q.cache.add(stored, row, q.now)
			}
			last, lastAt = stored, at
		} else if q.places != nil {
			q.places[key&mask] = lastAt
			continue
		}
		copy(q.out[at:at+width], row)
	}
	return nil
}

// copiedUntilEnded is how many bytes deliver copies before it looks whether the
// query's context ended.
const copiedUntilEnded = 1 << 20

// sortRows sorts keys by what lies above their lowest low bits, and returns
// them or the spare memory, whichever holds the result. If ctx ends it, both are
// undefined.
func sortRows(ctx context.Context, keys, spare []uint64, low int) ([]uint64, error) {
	if len(keys) < 256 {
		slices.Sort(keys)
		return keys, nil
	}
	const digit = 11
	var set, all uint64 = 0, ^uint64(0)
	for part := range slices.Chunk(keys, untilEnded) {
		if err := stopped(ctx); err != nil {
			return nil, err
		}
		for _, key := range part {
			set |= key
			all &= key
		}
	}
	differ := (set &^ all) >> low << low
	var counts [1 << digit]int
	for shift := low; shift < 64 && differ>>shift != 0; shift += digit {
		if differ>>shift&(1<<digit-1) == 0 {
			continue
		}
		clear(counts[:])
		for part := range slices.Chunk(keys, untilEnded) {
			if err := stopped(ctx); err != nil {
				return nil, err
			}
			for _, key := range part {
				counts[key>>shift&(1<<digit-1)]++
			}
		}
		sum := 0
		for i, n := range counts {
			counts[i] = sum
			sum += n
		}
		for part := range slices.Chunk(keys, untilEnded) {
			if err := stopped(ctx); err != nil {
				return nil, err
			}
			for _, key := range part {
				at := &counts[key>>shift&(1<<digit-1)]
				spare[*at] = key
				*at++
			}
		}
		keys, spare = spare, keys
	}
	return keys, nil
}
