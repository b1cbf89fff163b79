package zrecord

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/osfile"
)

// Layout of journal.zr; FORMAT.md explains it.
const (
	redoMagic   = "ZREJ"
	redoVersion = 1
	redoHeader  = 64
	redoChange  = 4 + entry3
	// maxRedoData bounds the moved bytes of one journal.
	maxRedoData = 64 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// journal3 is a change of the table, and of bytes of one chunk, that happens
// wholly or not at all.
type journal3 struct {
	before, after tail3 // the header of meta.zr
	chunk         int   // where data goes
	offset        int64
	changes       []byte // redoChange bytes each: index, new entry
	data          []byte
}

// change3 is one entry of the table that changes.
type change3 struct {
	index int64
	entry entry3Fields
}

// appendIndex3 begins a change; the entry's bytes follow it.
func appendIndex3(b []byte, index int64) []byte {
	return binary.LittleEndian.AppendUint32(b, uint32(index))
}

func (j *journal3) count() int { return len(j.changes) / redoChange }

func (j *journal3) index(i int) int64 {
	return int64(binary.LittleEndian.Uint32(j.changes[i*redoChange:]))
}

// raw is the i-th new entry as it goes to the table.
func (j *journal3) raw(i int) []byte { return j.changes[i*redoChange+4 : (i+1)*redoChange] }

func (j *journal3) change(i int) change3 { return change3{j.index(i), parseEntry3(j.raw(i))} }

// order returns the numbers of the changes by rising index.
func (j *journal3) order() []uint32 {
	order := make([]uint32, j.count())
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortFunc(order, func(a, b uint32) int { return int(j.index(int(a)) - j.index(int(b))) })
	return order
}

func (j *journal3) header() []byte {
	b := append(make([]byte, 0, redoHeader), redoMagic...)
	b = binary.LittleEndian.AppendUint16(b, redoVersion)
	b = binary.LittleEndian.AppendUint16(b, uint16(j.chunk))
	b = binary.LittleEndian.AppendUint32(b, uint32(j.offset))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(j.data)))
	b = append(b, j.before.header()...)
	b = append(b, j.after.header()...)
	b = binary.LittleEndian.AppendUint32(b, uint32(j.count()))
	b = binary.LittleEndian.AppendUint32(b, 0)
	sum := crc32.Checksum(j.changes, castagnoli)
	b = binary.LittleEndian.AppendUint32(b, crc32.Update(sum, castagnoli, j.data))
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// parseJournal3 reads a journal of size bytes; nil, nil when nothing is
// pending in it. Errors lack the path.
func parseJournal3(r io.ReaderAt, size int64) (*journal3, error) {
	var b [redoHeader]byte
	if size < redoHeader {
		return nil, nil
	}
	if _, err := r.ReadAt(b[:], 0); err != nil {
		return nil, err
	}
	if b == [redoHeader]byte{} {
		return nil, nil
	}
	le := binary.LittleEndian
	if crc32.Checksum(b[:redoHeader-4], castagnoli) != le.Uint32(b[redoHeader-4:]) || string(b[:4]) != redoMagic {
		return nil, fmt.Errorf("its header is damaged: %w", errs.ErrCorrupt)
	}
	if v := le.Uint16(b[4:]); v != redoVersion {
		return nil, errs.ErrFormat.Errorf("journal of version %d, this build reads %d", v, redoVersion)
	}
	j := &journal3{chunk: int(le.Uint16(b[6:])), offset: int64(le.Uint32(b[8:]))}
	dataLen, n := int64(le.Uint32(b[12:])), int64(le.Uint32(b[48:]))
	var err error
	if j.before, err = parseHeader3(b[16:32]); err == nil {
		j.after, err = parseHeader3(b[32:48])
	}
	if err != nil {
		return nil, err
	}
	if n == 0 || n > MaxRecords || dataLen > maxRedoData || size < redoHeader+n*redoChange+dataLen {
		return nil, fmt.Errorf("%d bytes for %d entries and %d bytes of records: %w", size, n, dataLen, errs.ErrCorrupt)
	}
	body := make([]byte, n*redoChange+dataLen)
	if _, err := r.ReadAt(body, redoHeader); err != nil {
		return nil, err
	}
	if crc32.Checksum(body, castagnoli) != le.Uint32(b[56:]) {
		return nil, fmt.Errorf("its content is damaged: %w", errs.ErrCorrupt)
	}
	j.changes, j.data = body[:n*redoChange], body[n*redoChange:]
	return j, j.check()
}

// check refuses changes outside the store and moves outside the data.
func (j *journal3) check() error {
	if j.after.length > j.before.length || j.chunk >= MaxChunks || j.offset+int64(len(j.data)) >= chunkSize {
		return fmt.Errorf("it leads outside the store: %w", errs.ErrCorrupt)
	}
	for i := range j.count() {
		c := j.change(i)
		if c.index >= j.after.length {
			return fmt.Errorf("it changes record %d of %d: %w", c.index, j.after.length, errs.ErrCorrupt)
		}
		if len(j.data) == 0 {
			continue
		}
		at := int64(c.entry.offset) - j.offset
		if int(c.entry.chunk) != j.chunk || at < 0 || at+int64(c.entry.phys) > int64(len(j.data)) {
			return fmt.Errorf("it moves record %d to bytes that it does not hold: %w", c.index, errs.ErrCorrupt)
		}
	}
	return nil
}

// readJournal3 returns the pending journal of a store, nil if there is none.
// found says that there is a file.
func readJournal3(store string) (j *journal3, found bool, err error) {
	name := filepath.Join(store, redoName)
	f, err := osfile.Open(name, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("it is no regular file: %w", errs.ErrCorrupt)
	}
	if err == nil {
		j, err = parseJournal3(f, info.Size())
	}
	if err != nil {
		return nil, true, fmt.Errorf("journal %s: %w", name, err)
	}
	return j, true, nil
}

// foreign is the error for a header that the journal does not know.
func (j *journal3) foreign(store string) error {
	return fmt.Errorf("%s holds an interrupted delete or compact, but another program has changed the store since; "+
		"without that file the store opens, with deleted records back or some lost: %w",
		filepath.Join(store, redoName), errs.ErrCorrupt)
}

// write makes the journal pending, durably: content first, then the header
// that vouches for it. It returns the open file for clear.
func (j *journal3) write(d disk, store string) (f file, err error) {
	name := filepath.Join(store, redoName)
	f, err = d.Create(name)
	if err != nil {
		return nil, err
	}
	if _, err = f.WriteAt(j.changes, redoHeader); err == nil && len(j.data) > 0 {
		_, err = f.WriteAt(j.data, redoHeader+int64(len(j.changes)))
	}
	if err == nil {
		err = f.Datasync()
	}
	if err == nil {
		err = d.SyncDir(store)
	}
	if err != nil {
		// The header is zero still: nothing is pending.
		return nil, errors.Join(err, f.Close(), d.Remove(name))
	}
	if _, err = f.WriteAt(j.header(), 0); err == nil {
		err = f.Datasync()
	}
	if err != nil {
		f.Close()
		return nil, halfway{err}
	}
	return f, nil
}

// redo does what the journal says; doing it twice is doing it once.
func (j *journal3) redo(d disk, store string, meta file) error {
	if len(j.data) > 0 {
		name := chunkPath(store, j.chunk)
		f, err := d.OpenWrite(name)
		if err != nil {
			return missingChunk(store, j.chunk, err)
		}
		defer f.Close()
		if _, err := f.WriteAt(j.data, j.offset); err != nil {
			return err
		}
		if err := f.Datasync(); err != nil {
			return err
		}
	}
	if err := writeEntries3(meta, j); err != nil {
		return err
	}
	if j.after != j.before {
		if _, err := meta.WriteAt(j.after.header(), 0); err != nil {
			return err
		}
	}
	return meta.Datasync()
}

// clearJournal3 ends a journal whose changes are durable.
func clearJournal3(f file) error {
	if _, err := f.WriteAt(make([]byte, redoHeader), 0); err != nil {
		return err
	}
	return f.Datasync()
}

// dropJournal3 removes a cleared journal. One that stays, or turns up again
// after a crash, says nothing and is in nobody's way.
func dropJournal3(d disk, store string) {
	if exists(filepath.Join(store, redoName)) {
		_ = d.Remove(filepath.Join(store, redoName))
	}
}

// recover3 finishes what a crash cut short, and removes what it left.
func recover3(d disk, store string, meta file) error {
	j, found, err := readJournal3(store)
	if err != nil || !found {
		return err
	}
	if j != nil {
		var b [header3]byte
		if _, err := meta.OS().ReadAt(b[:], 0); err != nil {
			return err
		}
		tail, err := parseHeader3(b[:])
		if err != nil {
			return fmt.Errorf("%s %w", filepath.Join(store, metaName), err)
		}
		if tail != j.before && tail != j.after {
			return j.foreign(store)
		}
		if err := j.redo(d, store, meta); err != nil {
			return fmt.Errorf("finish the interrupted change in %s: %w", filepath.Join(store, redoName), err)
		}
		f, err := d.OpenWrite(filepath.Join(store, redoName))
		if err != nil {
			return err
		}
		if err := errors.Join(clearJournal3(f), f.Close()); err != nil {
			return err
		}
	}
	dropJournal3(d, store)
	return nil
}
