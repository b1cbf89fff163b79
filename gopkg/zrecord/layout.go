package zrecord

import (
	"context"
	"fmt"
	"os"

	"loaderx/gopkg/codec"
)

// location is where one record's stored bytes are.
type location struct {
	data []byte    // the stored bytes, in a mapped file
	size uint32    // length of the record itself
	tag  codec.Tag // how data encodes the record
}

// usage is what records take.
type usage struct {
	live   int64      // stored bytes
	held   int64      // bytes of the chunk files, as readers see them
	byByte [256]int64 // records by the byte that names their codec
}

// limits are what a format can hold.
type limits struct {
	minRecord, maxRecord int64 // bytes of one record
	maxRecords           int64
	why                  string // appended to the error about a record outside them
}

// layout reads one file format. Its methods are called for blocks of records,
// never for single ones, under mem.Guard, and from many goroutines at once.
type layout interface {
	// records returns how many records the files publish to every process.
	records() (int64, error)
	// locate finds idxs, each below the store's length, and checks everything
	// that the table says about them. len(out) == len(idxs).
	locate(idxs []int64, out []location) error
	// copyRaw copies the leading records of idxs that are stored raw and are
	// row bytes long to dst, densely, and returns how many those are; it may
	// stop early for any reason.
	copyRaw(idxs []int64, dst []byte, row int64, l *lane) int
	// sizes is locate for the records' lengths alone.
	sizes(idxs []int64, out []uint32) error
	// uses reports whether any of the first n records has the codec.
	uses(tag codec.Tag, n int64) bool
	// stats reads what the table says of the first n records.
	stats(n int64) (usage, error)
	// lost counts those of the first n records whose chunk files end before they do, or are missing.
	lost(n int64) int64
	// remeasure looks at the lengths of the files again: one that was
	// shortened reads as zeros up to the end of its last page.
	remeasure()
	// blame names the file that is too short for one of idxs, "" if none is.
	blame(idxs []int64) string
	limits() limits
	close() error
}

// stored is one encoded record of a block.
type stored struct {
	phys, size uint32
	tag        codec.Tag
}

// block is a run of encoded records: data holds their stored bytes in order.
type block struct {
	data    []byte
	records []stored
}

// writer places records behind the end of a store. The Store calls begin,
// place, commit, rollback and mark under its append lock, and flush under its
// sync lock. It calls remove and compact when everything is flushed and no
// other call runs; a halfway error of theirs ends the use of the store.
type writer interface {
	// begin refuses n records that the format has no room for.
	begin(n int64) error
	// place writes a block's bytes and table entries behind what was placed
	// before. Nobody sees them until commit.
	place(b block) error
	// commit makes what was placed part of the store in this process and
	// returns the store's new length.
	commit() int64
	// rollback forgets what was placed since the last commit.
	rollback()
	// length returns the number of committed records.
	length() int64
	// mark notes what is committed, for flush.
	mark() any
	// flush makes a mark durable and publishes it to other processes.
	flush(mark any) error
	// held returns how many bytes the chunk files hold up to the end.
	held() int64
	// remove deletes records, given once each and falling, so that each hole
	// takes the record that is last by then; durably, and all or nothing.
	remove(ctx context.Context, falling []int64) error
	// compact moves records to the lowest addresses that they fit and frees
	// what lies behind them.
	compact(ctx context.Context, progress func(done, total int64)) error
	// lockFile is the file that holds the writer's lock.
	lockFile() *os.File
	close() error
}

// halfway is an error after which files and memory may disagree.
type halfway struct{ err error }

func (h halfway) Error() string {
	return fmt.Sprintf("%v; the next opening for writing finishes or undoes it", h.err)
}

func (h halfway) Unwrap() error { return h.err }
