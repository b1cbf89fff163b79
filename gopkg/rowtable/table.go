package rowtable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"loaderx/gopkg/bag"
	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
	"loaderx/gopkg/osfile"
	"loaderx/gopkg/work"
)

// Options say how a table is read.
type Options struct {
	// CacheBytes bounds the memory of decoded rows that are kept, with all
	// bookkeeping; 0 keeps none. Raw blocks are never cached: they are read
	// from the file's mapping.
	CacheBytes int64
	// CachePolicy says what is kept.
	CachePolicy Policy
	// Threads bounds the goroutines of one query, the caller's included; 0
	// stands for GOMAXPROCS.
	Threads int
	// ChunkRows is how many ids of a query are handled at once, which bounds
	// its memory; 0 stands for DefaultChunkRows, less than 0 for all of them.
	ChunkRows int64
	// Verify reads the whole file and checks it before Open returns.
	Verify bool
	// PlainRowBytes, unless 0, says that the file has no header, and is nothing
	// but rows of this width.
	PlainRowBytes int64
}

// DefaultChunkRows is how many ids are handled at once unless told otherwise.
const DefaultChunkRows = 1 << 16

// maxChunkRows bounds a chunk also where all ids shall be handled at once.
const maxChunkRows = 1 << 30

// chunkOf returns how many ids an option asks to be handled at once.
func chunkOf(rows int64) int {
	switch {
	case rows == 0:
		return DefaultChunkRows
	case rows < 0:
		return maxChunkRows
	}
	return int(min(rows, maxChunkRows))
}

// Policy says what a cache keeps.
type Policy uint8

// The policies.
const (
	// Blocks keeps decoded blocks: for ids that come in neighbourhoods.
	Blocks Policy = 0
	// Rows keeps single rows: for a few rows that are asked for over and over.
	Rows Policy = 1
)

// Table is an open table. It is safe for concurrent use, Close included: that
// waits for the calls that are running, and later ones are refused.
//
// The file is mapped and its descriptor closed again: the table goes on
// reading the bytes it was opened with when another file takes its place. A
// file that is shortened in place leads to errs.ErrFault where whole pages are
// gone; the rest of its new last page reads as zeros, which only checksums see.
type Table struct {
	path    string
	file    [4]int64 // osfile.Identity
	h       header
	shift   int // log2 of the block's rows, -1 if they are no power of two
	mapping *mem.Mapping
	data    []byte
	threads int
	chunk   int
	life    work.Life
	closing sync.Once

	cacheSet sync.Mutex // held while the cache is replaced
	cache    atomic.Pointer[cache]
	counts   counters

	lastReducer atomic.Pointer[bag.Reducer]

	prefetches chan struct{} // holds a token for each that runs or waits
}

// Open opens the table in a file. Only the header is read: descriptors and map
// entries are checked when they are used.
//
// Errors are errs.ErrNotFound, errs.ErrFormat for a file of another kind and
// errs.ErrCorrupt for a damaged one.
func Open(path string, opt Options) (*Table, error) {
	t, err := open(path, opt)
	if err != nil {
		return nil, fmt.Errorf("open table %s: %w", path, err)
	}
	if opt.Verify {
		if err := t.sound(context.Background()); err != nil {
			_ = t.Close()
			return nil, err
		}
	}
	return t, nil
}

func open(path string, opt Options) (*Table, error) {
	switch {
	case opt.CacheBytes < 0:
		return nil, fmt.Errorf("a cache of %d bytes: %w", opt.CacheBytes, errs.ErrArgument)
	case opt.CachePolicy > Rows:
		return nil, fmt.Errorf("cache policy %d: %w", opt.CachePolicy, errs.ErrArgument)
	case opt.Threads < 0:
		return nil, fmt.Errorf("%d threads: %w", opt.Threads, errs.ErrArgument)
	}
	f, err := osfile.Open(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	h, err := headerOf(f, st.Size(), opt.PlainRowBytes)
	if err != nil {
		return nil, err
	}
	t := &Table{path: path, file: osfile.Identity(st), h: *h, shift: -1, threads: opt.Threads, life: work.NewLife(), prefetches: make(chan struct{}, maxPrefetches)}
	if h.blockRows&(h.blockRows-1) == 0 {
		t.shift = bits.TrailingZeros64(uint64(h.blockRows))
	}
	if t.threads == 0 {
		t.threads = runtime.GOMAXPROCS(0)
	}
	t.chunk = chunkOf(opt.ChunkRows)
	c, err := newCache(h, opt.CacheBytes, opt.CachePolicy)
	if err != nil {
		return nil, err
	}
	t.cache.Store(c)
	if t.mapping, err = mem.Map(f, st.Size()); err != nil {
		return nil, errors.Join(err, c.close())
	}
	t.data = t.mapping.Bytes()
	if h.raw() && h.rowBytes <= scatteredBytes {
		err = t.mapping.Scattered()
	}
	if err != nil {
		return nil, errors.Join(err, c.close(), t.mapping.Close())
	}
	return t, nil
}

// headerOf reads the header of a file of size bytes, or makes that of one with
// plain rows.
func headerOf(f io.ReaderAt, size, plain int64) (*header, error) {
	if plain != 0 {
		return plainHeader(plain, size)
	}
	var raw [headerBytes]byte
	n, err := f.ReadAt(raw[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return parseHeader(raw[:n], size)
}

// scatteredBytes is up to which width raw rows are read without what lies
// around them, as a rule. Blocks are larger, and read as a whole.
const scatteredBytes = 16 << 10

// Close waits for the running calls and closes the table; a second call does
// nothing.
func (t *Table) Close() (err error) {
	t.closing.Do(func() {
		t.life.End()
		err = errors.Join(t.cache.Swap(nil).close(), t.mapping.Close())
		t.data = nil
	})
	return err
}

func (t *Table) enter(what string) error {
	if !t.life.Enter() {
		return fmt.Errorf("%s: table %s: %w", what, t.path, errs.ErrClosed)
	}
	return nil
}

// Path returns the path that the table was opened with.
func (t *Table) Path() string { return t.path }

// Rows returns the number of rows.
func (t *Table) Rows() int64 { return t.h.rows }

// RowBytes returns the width of a row.
func (t *Table) RowBytes() int64 { return t.h.rowBytes }

// Raw reports whether all rows are stored as they are, so that no query
// decodes anything.
func (t *Table) Raw() bool { return t.h.raw() }

// SetCache replaces the cache by an empty one. Running queries go on with the
// old one, whose memory is given back when they have ended; that is waited for.
func (t *Table) SetCache(bytes int64, policy Policy) error {
	if err := t.enter("set cache"); err != nil {
		return err
	}
	defer t.life.Leave()
	if bytes < 0 || policy > Rows {
		return fmt.Errorf("set cache: table %s: %d bytes with policy %d: %w", t.path, bytes, policy, errs.ErrArgument)
	}
	t.cacheSet.Lock()
	defer t.cacheSet.Unlock()
	c, err := newCache(&t.h, bytes, policy)
	if err != nil {
		return fmt.Errorf("set cache: table %s: %w", t.path, err)
	}
	return t.cache.Swap(c).close()
}

// useCache returns the cache, nil if there is none; the user calls leave on it.
func (t *Table) useCache() *cache {
	for {
		c := t.cache.Load()
		if c == nil || c.life.Enter() {
			return c
		}
	}
}

// Info says what a table consists of.
type Info struct {
	Version      int     `json:"version"`
	Rows         int64   `json:"rows"`
	StoredRows   int64   `json:"stored_rows"` // fewer than Rows when equal ones are shared
	RowBytes     int64   `json:"row_bytes"`
	Blocks       int64   `json:"blocks"`
	BlockRows    int64   `json:"block_rows"`
	ElementBytes int64   `json:"element_bytes"` // of shuffled blocks; 0 where none is
	Identity     bool    `json:"identity"`      // there is no map
	Raw          bool    `json:"raw"`           // all blocks are
	Kind         RowKind `json:"dtype"`         // of the rows
	FileBytes    int64   `json:"file_bytes"`
	PayloadBytes int64   `json:"payload_bytes"` // of all blocks as stored
	// File tells the file that was opened from others, and from what it is once it was written to.
	File [4]int64 `json:"file"`
	// IndexChecksum is the CRC-32C of map and descriptors, which tells tables
	// apart as a rule.
	IndexChecksum uint32 `json:"index_checksum"`
}

// Info returns what the header says.
func (t *Table) Info() Info {
	h := &t.h
	return Info{
		Version: int(h.version), Rows: h.rows, StoredRows: h.stored, RowBytes: h.rowBytes, Blocks: h.blocks,
		BlockRows: h.blockRows, ElementBytes: h.elementBytes, Identity: h.identity(), Raw: h.raw(), Kind: h.kind,
		FileBytes: h.fileBytes(), PayloadBytes: h.payloadBytes, IndexChecksum: h.indexSum, File: t.file,
	}
}
