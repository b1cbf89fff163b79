package zrecord

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
	"loaderx/gopkg/osfile"
)

// files3 is the mapped table of a format 3 store and its chunks, which are
// mapped when a record of theirs is first read. No file stays open.
type files3 struct {
	path   string
	meta   *mem.Mapping
	header []byte
	table  []byte
	over   *overlay3 // what a crash left undone, nil nearly always
	runs   runs3

	mu     sync.Mutex // held while a chunk is mapped or measured
	chunks [MaxChunks]atomic.Pointer[chunk3]
}

// chunk3 is a mapped chunk. The mapping is always chunkSize long, so that it
// shows what is written behind the file's present end too; size says how far
// the file reached when it was last measured.
type chunk3 struct {
	mapping *mem.Mapping
	size    atomic.Int64
}

// openFiles3 maps the table of an open meta.zr.
func openFiles3(path string, meta *os.File) (*files3, error) {
	name := filepath.Join(path, metaName)
	info, err := meta.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errs.ErrFormat.Errorf("%s is no regular file", name)
	}
	if info.Size() != metaSize3 {
		return nil, errs.ErrFormat.Errorf("%s has %d bytes, format 3 has %d (truncated or another format?)",
			name, info.Size(), int64(metaSize3))
	}
	var head [header3]byte
	if _, err := meta.ReadAt(head[:], 0); err != nil {
		return nil, err
	}
	if _, err := parseHeader3(head[:]); err != nil {
		return nil, fmt.Errorf("%s %w", name, err)
	}
	mapping, err := mem.Map(meta, metaSize3)
	if err != nil {
		return nil, err
	}
	data := mapping.Bytes()
	return &files3{path: path, meta: mapping, header: data[:header3], table: data[header3:]}, nil
}

func (f *files3) limits() limits {
	return limits{
		minRecord: 1, maxRecord: MaxRecordLen, maxRecords: MaxRecords,
		why: "format 3 can't hold empty records",
	}
}

func (f *files3) tail() (tail3, error) {
	t, err := parseHeader3(f.header)
	if err != nil {
		return tail3{}, fmt.Errorf("%s %w", filepath.Join(f.path, metaName), err)
	}
	if f.over != nil && t == f.over.before {
		return f.over.after, nil
	}
	return t, nil
}

func (f *files3) records() (int64, error) {
	t, err := f.tail()
	return t.length, err
}

func (f *files3) entry(idx int64) entry3Fields {
	if f.over != nil {
		if i, ok := f.over.find(idx); ok {
			return f.over.change(i).entry
		}
	}
	return parseEntry3(f.table[idx*entry3 : idx*entry3+entry3])
}

func (f *files3) locate(idxs []int64, out []location) error {
	out = out[:len(idxs)]
	if f.over != nil {
		return f.locateOver(idxs, out)
	}
	return f.locateAll(idxs, out)
}

func (f *files3) locateAll(idxs []int64, out []location) error {
	table := f.table
	pages := f.runs.pages.Load()
	if pages == nil {
		pages = &nothingKnown
	}
	f.touch(idxs, pages)
	held := -1 // the chunk that data and size belong to
	var data []byte
	var size int64
	for i, idx := range idxs {
		var e entry3Fields
		if run := pages.at(idx); run&runFlag != 0 {
			e = runEntry(run, idx, pages.row)
		} else {
			e = parseEntry3(table[idx*entry3 : idx*entry3+entry3])
		}
		// One compare for the common case; check finds out what is wrong.
		if e.size-1 >= MaxRecordLen || e.phys-1 >= MaxRecordLen || e.tag > codec.ZstdDict ||
			(e.tag == codec.Raw && e.phys != e.size) || e.chunk >= MaxChunks {
			return fmt.Errorf("%s: record %d: %w", f.path, idx, e.check())
		}
		end := e.end()
		if int(e.chunk) != held {
			c, err := f.chunk(int(e.chunk))
			if err != nil {
				return fmt.Errorf("record %d: %w", idx, err)
			}
			held, data, size = int(e.chunk), c.mapping.Bytes(), c.size.Load()
		}
		if end > size {
			var err error
			if size, err = f.grown(idx, e); err != nil {
				return err
			}
		}
		out[i] = location{data: data[e.offset:end:end], size: e.size, tag: e.tag}
	}
	return nil
}

// grown measures a chunk that seems too short for an entry.
func (f *files3) grown(idx int64, e entry3Fields) (size int64, err error) {
	size, err = f.measure(int(e.chunk))
	if err != nil {
		return 0, fmt.Errorf("record %d: %w", idx, err)
	}
	if end := e.end(); end > size {
		return 0, fmt.Errorf("record %d needs bytes %d to %d of %s, which has %d: %w",
			idx, e.offset, end, chunkPath(f.path, int(e.chunk)), size, errs.ErrCorrupt)
	}
	return size, nil
}

// touch loads the entries of idxs that are in no run. Those of a random batch
// are cache misses, and a loop that does nothing else has more of them under
// way at once than one that decodes entries.
func (f *files3) touch(idxs []int64, pages *pages3) {
	var tags byte
	for _, idx := range idxs {
		run := pages.at(idx)
		if run == 0 && pages.row > 0 {
			run = f.learn(idx, pages.row)
		}
		if run&runFlag == 0 {
			tags |= f.table[idx*entry3+tagAt3]
		}
	}
	runtime.KeepAlive(tags)
}

func (f *files3) sizes(idxs []int64, out []uint32) error {
	f.touch(idxs, &nothingKnown)
	for i, idx := range idxs {
		e := f.entry(idx)
		if err := e.check(); err != nil {
			return fmt.Errorf("%s: record %d: %w", f.path, idx, err)
		}
		out[i] = e.size
	}
	return nil
}

func (f *files3) uses(tag codec.Tag, n int64) bool {
	for idx := range n {
		if f.entry(idx).tag == tag {
			return true
		}
	}
	return false
}

func (f *files3) stats(n int64) (u usage, err error) {
	for idx := range n {
		e := f.entry(idx)
		u.live += int64(e.phys)
		u.byByte[e.tag]++
	}
	t, err := f.tail()
	u.held = t.held()
	return u, err
}

func (f *files3) lost(n int64) int64 {
	var sizes [MaxChunks]int64 // plus 1, of those that were asked for
	lost := int64(0)
	for idx := range n {
		e := f.entry(idx)
		if int(e.chunk) >= MaxChunks {
			lost++
			continue
		}
		size := &sizes[e.chunk]
		if *size == 0 {
			*size = 1
			if info, err := os.Stat(chunkPath(f.path, int(e.chunk))); err == nil && info.Mode().IsRegular() {
				*size += info.Size()
			}
		}
		if e.end() >= *size {
			lost++
		}
	}
	return lost
}

// forget drops the mappings of chunks from id on, whose files are removed.
// Nobody reads meanwhile.
func (f *files3) forget(id int) error {
	var all error
	for i := id; i < MaxChunks; i++ {
		if c := f.chunks[i].Swap(nil); c != nil {
			all = errors.Join(all, c.mapping.Close())
		}
	}
	return all
}

// chunk returns a chunk, mapping it if need be. A missing file is never made:
// its records are lost, and zeros in their place would hide that.
func (f *files3) chunk(id int) (*chunk3, error) {
	if c := f.chunks[id].Load(); c != nil {
		return c, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.chunks[id].Load(); c != nil {
		return c, nil
	}
	file, err := osfile.Open(chunkPath(f.path, id), os.O_RDONLY, 0)
	if err != nil {
		return nil, missingChunk(f.path, id, err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file: %w", chunkPath(f.path, id), errs.ErrCorrupt)
	}
	mapping, err := mem.Map(file, chunkSize)
	if err != nil {
		return nil, err
	}
	c := &chunk3{mapping: mapping}
	c.size.Store(min(info.Size(), chunkSize))
	f.chunks[id].Store(c)
	return c, nil
}

func missingChunk(store string, id int, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("chunk file %s is missing: %w", chunkPath(store, id), errs.ErrCorrupt)
	}
	return err
}

// measure asks the file system for a chunk's size again: loaderx does not
// lengthen a shortened chunk file, so one may grow under a reader.
func (f *files3) measure(id int) (int64, error) {
	info, err := os.Stat(chunkPath(f.path, id))
	if err != nil {
		return 0, missingChunk(f.path, id, err)
	}
	size := min(info.Size(), chunkSize)
	if c := f.chunks[id].Load(); c != nil {
		c.size.Store(size)
	}
	return size, nil
}

func (f *files3) remeasure() {
	for id := range f.chunks {
		if c := f.chunks[id].Load(); c != nil {
			if _, err := f.measure(id); err != nil {
				c.size.Store(0)
			}
		}
	}
}

func (f *files3) blame(idxs []int64) string {
	name := filepath.Join(f.path, metaName)
	if info, err := os.Stat(name); err != nil || info.Size() < metaSize3 {
		return name
	}
	for _, idx := range idxs {
		e := f.entry(idx)
		size, err := f.measure(int(e.chunk) % MaxChunks)
		if err != nil || size < int64(e.offset)+int64(e.phys) {
			return chunkPath(f.path, int(e.chunk))
		}
	}
	return ""
}

func (f *files3) close() error {
	return errors.Join(f.meta.Close(), f.forget(0))
}
