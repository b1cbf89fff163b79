package zrecord

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"loaderx/gopkg/errs"
)

// writer3 appends to a format 3 store. It writes with pwrite, never through a
// mapping, so that a full disk is an error and not a fault.
type writer3 struct {
	path  string
	disk  disk
	meta  file // locked
	files *files3

	// How many bytes Compact moves at a time, and how much free space makes it
	// move them without a journal.
	batchBytes, plainBytes int64

	placed    tail3 // with what the running append placed
	committed tail3 // what this process sees
	published tail3 // what the header on disk says; the sync lock guards it

	chunk   file // the open chunk file, nil before the first append
	chunkID int
	rolled  []file // full chunk files that are not synced yet

	entries []byte // reused by place
}

// openWriter3 starts at the end that the locked meta.zr says. It changes no
// file.
func openWriter3(path string, d disk, meta file, files *files3) (*writer3, error) {
	var head [header3]byte
	if _, err := meta.OS().ReadAt(head[:], 0); err != nil {
		return nil, err
	}
	tail, err := parseHeader3(head[:])
	if err != nil {
		return nil, fmt.Errorf("%s %w", filepath.Join(path, metaName), err)
	}
	w := &writer3{
		path: path, disk: d, meta: meta, files: files,
		batchBytes: batchBytes3, plainBytes: plainBytes3,
		placed: tail, committed: tail, published: tail,
	}
	// Appending behind the end of a shortened chunk would fill the hole with
	// zeros in the place of records.
	f, err := w.openChunk(tail.chunk)
	if err != nil {
		return nil, err
	}
	info, err := f.OS().Stat()
	if err == nil && info.Size() < tail.offset {
		err = fmt.Errorf("chunk file %s has %d bytes, its records end at %d: %w",
			chunkPath(path, tail.chunk), info.Size(), tail.offset, errs.ErrCorrupt)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	w.chunk, w.chunkID = f, tail.chunk
	return w, nil
}

func (w *writer3) length() int64 { return w.committed.length }

func (w *writer3) held() int64 { return w.committed.held() }

func (w *writer3) begin(n int64) error {
	if n > MaxRecords-w.committed.length {
		return fmt.Errorf("append %d records to %s, which has %d of at most %d: %w",
			n, w.path, w.committed.length, MaxRecords, errs.ErrFull)
	}
	return nil
}

func (w *writer3) place(b block) error {
	entries := w.entries[:0]
	first := w.placed.length
	run, size := 0, 0 // the bytes of b.data since the last roll-over
	for _, r := range b.records {
		// loaderx rolls over when a record would end at 4 GiB, too.
		if w.placed.offset+int64(r.phys) >= chunkSize {
			if err := w.write(b.data[run : run+size]); err != nil {
				return err
			}
			run, size = run+size, 0
			if err := w.roll(); err != nil {
				return err
			}
		}
		entries = appendEntry3(entries, entry3Fields{
			offset: uint32(w.placed.offset), phys: r.phys, size: r.size,
			chunk: uint16(w.placed.chunk), tag: r.tag,
		})
		w.placed.offset += int64(r.phys)
		w.placed.length++
		size += int(r.phys)
	}
	w.entries = entries
	if err := w.write(b.data[run : run+size]); err != nil {
		return err
	}
	_, err := w.meta.WriteAt(entries, header3+first*entry3)
	return err
}

// write puts bytes that end at the placed offset into the placed chunk.
func (w *writer3) write(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	// A rolled back append may have left another chunk open.
	if w.chunk == nil || w.chunkID != w.placed.chunk {
		f, err := w.openChunk(w.placed.chunk)
		if err != nil {
			return err
		}
		w.use(f, w.placed.chunk)
	}
	_, err := w.chunk.WriteAt(data, w.placed.offset-int64(len(data)))
	return err
}

func (w *writer3) openChunk(id int) (file, error) {
	f, err := w.disk.OpenWrite(chunkPath(w.path, id))
	if err != nil {
		return nil, missingChunk(w.path, id, err)
	}
	return f, nil
}

// use makes f the open chunk and keeps the one before it for the next sync.
func (w *writer3) use(f file, id int) {
	if w.chunk != nil {
		w.rolled = append(w.rolled, w.chunk)
	}
	w.chunk, w.chunkID = f, id
}

// roll goes on in the next chunk file.
func (w *writer3) roll() error {
	next := w.placed.chunk + 1
	if next >= MaxChunks {
		return errs.ErrFull.Errorf("append to %s: all %d chunk files are full", w.path, MaxChunks)
	}
	f, err := createChunk(w.disk, w.path, next)
	if err != nil {
		return err
	}
	w.use(f, next)
	w.placed.chunk, w.placed.offset = next, 0
	return nil
}

// createChunk makes a chunk file of full, sparse length; its directory entry
// is durable before any table entry can name it. A file that a crash left is
// taken over: no record lies behind the end of the store.
func createChunk(d disk, store string, id int) (file, error) {
	f, err := d.Create(chunkPath(store, id))
	if err != nil {
		return nil, err
	}
	if err = f.Truncate(chunkSize); err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = d.SyncDir(store)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (w *writer3) commit() int64 {
	w.committed = w.placed
	return w.committed.length
}

func (w *writer3) rollback() { w.placed = w.committed }

// mark3 is what one flush makes durable.
type mark3 struct {
	tail   tail3
	chunk  file
	rolled []file
}

func (w *writer3) mark() any {
	m := mark3{tail: w.committed, chunk: w.chunk, rolled: w.rolled}
	w.rolled = nil
	return m
}

// flush publishes in the order that FORMAT.md explains: record bytes, table
// entries, and only then the header that counts them.
func (w *writer3) flush(mark any) error {
	m := mark.(mark3)
	var all error
	for _, f := range m.rolled {
		all = errors.Join(all, f.Datasync(), f.Close())
	}
	if all != nil || m.tail == w.published {
		return all
	}
	if err := m.chunk.Datasync(); err != nil {
		return err
	}
	if err := w.meta.Datasync(); err != nil {
		return err
	}
	if _, err := w.meta.WriteAt(m.tail.header(), 0); err != nil {
		return err
	}
	if err := w.meta.Datasync(); err != nil {
		return err
	}
	w.published = m.tail
	return nil
}

func (w *writer3) lockFile() *os.File { return w.meta.OS() }

func (w *writer3) close() error {
	var all error
	for _, f := range append(w.rolled, w.chunk) {
		if f != nil {
			all = errors.Join(all, f.Close())
		}
	}
	w.rolled, w.chunk = nil, nil
	return errors.Join(all, w.meta.Unlock(), w.meta.Close())
}
