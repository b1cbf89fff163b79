package rowtable

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
)

const (
	portionBytes = 128 << 10 // about what a portion of rows writes
	// From about this many bytes on a second goroutine pays for being woken:
	// plain copies, and blocks that must be decoded.
	shareCopied  = 384 << 10
	shareDecoded = 32 << 10
)

// Gather copies rows to out, one behind the other, from position from of ids
// on, and stops after about budget, or at the end; next is the position to go
// on from, and len(ids) when all is done. A budget of 0 or less sets no limit.
// A raw table is left at any time; another one at the end of a chunk of ids,
// for which all of its blocks may have to be decoded, so GatherAll is better
// for many of them.
//
// unsigned says that ids were unsigned numbers, which matters to messages. All
// ids are checked before anything is written; after any other error out's
// content is undefined. The caller owns ids and out and keeps them in place
// during the call.
func (t *Table) Gather(ids []int64, unsigned bool, out []byte, from int, budget time.Duration) (next int, err error) {
	return t.gather(context.Background(), ids, unsigned, out, from, budget, t.chunk)
}

// GatherAll copies the rows of all ids to out, until ctx ends it.
func (t *Table) GatherAll(ctx context.Context, ids []int64, unsigned bool, out []byte) error {
	return t.GatherChunked(ctx, ids, unsigned, out, 0)
}

// GatherChunked does the same with so many ids handled at once, instead of the
// table's Options.ChunkRows: 0 stands for that, less than 0 for all of them.
func (t *Table) GatherChunked(ctx context.Context, ids []int64, unsigned bool, out []byte, chunkRows int64) error {
	step := t.chunk
	if chunkRows != 0 {
		step = chunkOf(chunkRows)
	}
	_, err := t.gather(ctx, ids, unsigned, out, 0, 0, step)
	return err
}

func (t *Table) gather(ctx context.Context, ids []int64, unsigned bool, out []byte, from int, budget time.Duration, step int) (next int, err error) {
	if err := t.enter("gather"); err != nil {
		return from, err
	}
	defer t.life.Leave()
	n := len(ids)
	switch {
	case from < 0 || from > n:
		return from, fmt.Errorf("gather from position %d of %d: %w", from, n, errs.ErrArgument)
	case int64(n) > math.MaxInt64/t.h.rowBytes || int64(n)*t.h.rowBytes != int64(len(out)):
		return from, fmt.Errorf("gather: %d rows of %d bytes into %d bytes: table %s: %w",
			n, t.h.rowBytes, len(out), t.path, errs.ErrBuffer)
	}
	// Going on, it is enough that each portion checks its own again.
	if from == 0 {
		if err := t.checkAllIDs(ctx, ids, unsigned); err != nil {
			return from, fmt.Errorf("gather: %w", err)
		}
	}
	if from == n {
		return n, nil
	}
	q := t.newQuery(ctx, ids, unsigned)
	q.step, q.large = step, len(out) >= streamBytes
	if t.h.raw() {
		next, err = q.copyRaw(out, from, budget)
	} else {
		next, err = q.fetchAll(out, from, budget)
	}
	t.counts.add(&q.counts, next-from, from > 0)
	q.release()
	if err != nil {
		return from, fmt.Errorf("gather: %w", err)
	}
	return next, nil
}

// query is one running call: its ids, and what its goroutines share.
type query struct {
	crew     crew
	lane     lane // the caller's
	t        *Table
	ctx      context.Context
	ids      []int64 // all of the call's
	unsigned bool
	step     int  // ids handled at once
	large    bool // the whole result is, see streamBytes
	counts   counts

	// The chunk at work, see fetch.
	first    int
	chunk    []int64
	out      []byte
	places   []int64
	cache    *cache
	now      uint64 // the time of the chunk, for the cache
	posBits  int
	missed   []uint64 // stored row << posBits | position in chunk
	spare    []uint64
	misses   atomic.Int64
	groups   []int // where in missed a block begins, and the end
	room     []byte
	allPlace []int64

	rawStep, lookStep, groupStep func(*lane, int, int) error
}

var queries = sync.Pool{New: func() any {
	q := &query{}
	q.crew.done = make(chan struct{}, 1)
	q.rawStep, q.lookStep, q.groupStep = q.copyPortion, q.look, q.group
	return q
}}

// newQuery returns a query for a call that has entered the table; release ends
// its use.
func (t *Table) newQuery(ctx context.Context, ids []int64, unsigned bool) *query {
	q := queries.Get().(*query)
	q.t, q.ctx, q.ids, q.unsigned, q.step, q.large = t, ctx, ids, unsigned, t.chunk, false
	return q
}

func (q *query) release() {
	q.t, q.ctx, q.crew.ctx, q.ids, q.chunk, q.out, q.places = nil, nil, nil, nil, nil, nil, nil
	q.lane.trim()
	if cap(q.missed) > keptBytes/8 {
		q.missed, q.spare = nil, nil
	}
	if cap(q.groups) > keptBytes/8 {
		q.groups = nil
	}
	if cap(q.room) > keptRoom {
		q.room, q.allPlace = nil, nil
	}
	queries.Put(q)
}

// keptRoom is how much memory for located rows a query keeps at its end: fresh
// memory costs more than the copies.
const keptRoom = 64 << 20

// helpers returns how many other goroutines pay for work on so many bytes.
func (q *query) helpers(bytes, share int64) int {
	return int(min(bytes/share, int64(q.t.threads-1)))
}

// portion returns how many rows a goroutine claims at once.
func (q *query) portion() int {
	return int(min(max(portionBytes/q.t.h.rowBytes, 1), maxPortion))
}

// explain says which file shrank under a read.
func (t *Table) explain(err error) error {
	if errors.Is(err, errs.ErrFault) {
		return fmt.Errorf("table %s was shortened or can't be read: %w", t.path, err)
	}
	return err
}

// copyRaw copies the rows of a raw table straight from its mapping.
func (q *query) copyRaw(out []byte, from int, budget time.Duration) (next int, err error) {
	q.out = out
	n, per := len(q.ids), q.portion()
	if n-from <= per { // what follows costs more than a few rows
		err := mem.Guard(func() error { return q.copyPortion(&q.lane, from, n) })
		return n, q.t.explain(err)
	}
	rest := int64(n-from) * q.t.h.rowBytes
	q.crew.limit(q.ctx, budget)
	next, err = q.crew.run(&q.lane, q.rawStep, from, n, per, q.helpers(rest, shareCopied))
	return next, q.t.explain(err)
}

func (q *query) copyPortion(l *lane, from, to int) error {
	t := q.t
	places := l.places[:to-from]
	if err := t.rawPlaces(places, q.ids[from:to], from, q.unsigned); err != nil {
		return err
	}
	if first, last := places[0], places[to-from-1]; last-first == int64(to-from-1)*t.h.rowBytes && last-first >= aheadFrom {
		t.readAhead(first, last-first)
	}
	width := t.h.rowBytes
	if q.streamed() {
		ends := l.to[:to-from]
		for i := range ends {
			ends[i] = int64(from+i) * width
		}
		if stream(l, q.out, t.data, ends, places, width) {
			return nil
		}
	}
	l.touch(t.data, places, width)
	copyRows(q.out, t.data, places, from, width)
	return nil
}

// streamBytes is from which size on a result is written past the caches: there,
// a processor's own cache does not hold it, and to read memory only in order to
// overwrite it takes longer than it takes who reads the result to fetch it.
const streamBytes = 1 << 20

// streamed reports whether the query's rows are written so. Those that it
// locates for itself are read at once.
func (q *query) streamed() bool {
	return q.large && q.places == nil && streamable(q.out, q.t.h.rowBytes)
}

// readAhead has the system read a part of the file and what follows it, for
// reads in order.
func (t *Table) readAhead(at, n int64) {
	_ = t.mapping.WillNeed(at, n+aheadBytes) // a hint
}

const (
	aheadFrom  = 32 << 10 // for fewer bytes in order the call takes longer than it saves
	aheadBytes = 1 << 20
)

// copyRows copies the rows of width bytes at places in base to out, where the
// first one is row first.
func copyRows(out, base []byte, places []int64, first int, width int64) {
	out = out[int64(first)*width : int64(first+len(places))*width]
	switch width { // without a call for each, where that would be most of it
	case 4:
		for i, p := range places {
			*(*[4]byte)(out[4*i:]) = *(*[4]byte)(base[p:])
		}
	case 8:
		for i, p := range places {
			*(*[8]byte)(out[8*i:]) = *(*[8]byte)(base[p:])
		}
	case 16:
		for i, p := range places {
			*(*[16]byte)(out[16*i:]) = *(*[16]byte)(base[p:])
		}
	case 32:
		for i, p := range places {
			*(*[32]byte)(out[32*i:]) = *(*[32]byte)(base[p:])
		}
	case 64:
		for i, p := range places {
			*(*[64]byte)(out[64*i:]) = *(*[64]byte)(base[p:])
		}
	default:
		mem.CopyRows(out, base, places, int(width))
	}
}

// locatedBytes bounds the memory for the rows of one locate.
const locatedBytes = 32 << 20

// locatable returns how many ids locate takes at once.
func (q *query) locatable() int {
	return int(min(int64(q.t.chunk), max(1, locatedBytes/q.t.h.rowBytes)))
}

// locate finds the rows of a chunk of the query's ids, for work on them in
// place: row i of the chunk is base[places[i]:][:RowBytes]. Nothing of a raw
// table is copied; base is its mapping then, to be read under mem.Guard only.
// Otherwise base is the query's own memory, where each decoded row lies once.
// Both are valid until the next call of locate, or release.
//
// Many ids of a raw table are better resolved by rawPlaces, portion by portion
// on the goroutine that works on them.
func (q *query) locate(from, to int) (base []byte, places []int64, err error) {
	q.allPlace = q.allPlace[:0]
	if cap(q.allPlace) < to-from {
		q.allPlace = make([]int64, to-from)
	}
	places = q.allPlace[:to-from]
	if q.t.h.raw() {
		err = mem.Guard(func() error { return q.t.rawPlaces(places, q.ids[from:to], from, q.unsigned) })
		return q.t.data, places, q.t.explain(err)
	}
	if q.room, err = grow(q.room, int64(to-from)*q.t.h.rowBytes); err != nil {
		return nil, nil, err
	}
	return q.room, places, q.fetch(q.room, places, from, to)
}
