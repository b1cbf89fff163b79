package zrecord

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// tapeDisk is the real file system; it records everything that is done to one
// directory, so that the state after a power cut at any instant can be built.
type tapeDisk struct {
	osDisk
	mu    sync.Mutex
	ops   []tapeOp
	nodes int
	names map[string]int // of the files as they are now
}

type opKind int

const (
	opWrite opKind = iota
	opTruncate
	opSync // of a file
	opLink // a new file got its name
	opRename
	opRemove
	opSyncDir
)

type tapeOp struct {
	kind opKind
	node int
	off  int64 // or the size of a truncate
	data []byte
	name string
	from string
}

func newTape() *tapeDisk { return &tapeDisk{names: map[string]int{}} }

func (d *tapeDisk) add(op tapeOp) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ops = append(d.ops, op)
}

func (d *tapeDisk) wrap(f file, err error, node int) (file, error) {
	if err != nil {
		return nil, err
	}
	return &tapeFile{file: f, disk: d, node: node}, nil
}

func (d *tapeDisk) Create(path string) (file, error) {
	name := filepath.Base(path)
	node, ok := d.names[name]
	if !ok {
		d.nodes++
		node = d.nodes
		d.names[name] = node
		d.add(tapeOp{kind: opLink, node: node, name: name})
	}
	f, err := d.osDisk.Create(path)
	return d.wrap(f, err, node)
}

func (d *tapeDisk) OpenWrite(path string) (file, error) {
	f, err := d.osDisk.OpenWrite(path)
	return d.wrap(f, err, d.names[filepath.Base(path)])
}

func (d *tapeDisk) Rename(from, to string) error {
	a, b := filepath.Base(from), filepath.Base(to)
	d.add(tapeOp{kind: opRename, node: d.names[a], from: a, name: b})
	d.names[b] = d.names[a]
	delete(d.names, a)
	return d.osDisk.Rename(from, to)
}

func (d *tapeDisk) Remove(path string) error {
	name := filepath.Base(path)
	d.add(tapeOp{kind: opRemove, node: d.names[name], name: name})
	delete(d.names, name)
	return d.osDisk.Remove(path)
}

func (d *tapeDisk) SyncDir(string) error {
	d.add(tapeOp{kind: opSyncDir})
	return nil
}

type tapeFile struct {
	file
	disk *tapeDisk
	node int
}

func (f *tapeFile) WriteAt(p []byte, off int64) (int, error) {
	f.disk.add(tapeOp{kind: opWrite, node: f.node, off: off, data: append([]byte(nil), p...)})
	return f.file.WriteAt(p, off)
}

func (f *tapeFile) Truncate(size int64) error {
	f.disk.add(tapeOp{kind: opTruncate, node: f.node, off: size})
	return f.file.Truncate(size)
}

func (f *tapeFile) Datasync() error {
	f.disk.add(tapeOp{kind: opSync, node: f.node})
	return nil
}

func (f *tapeFile) Sync() error { return f.Datasync() }

// sectors is a sparse file: its length, and the parts that were written.
type sectors struct {
	size int64
	unit int64
	data map[int64][]byte
}

func (s *sectors) write(off int64, p []byte, keep func(sector int64) bool) {
	for len(p) > 0 {
		at := off / s.unit
		n := min(s.unit-off%s.unit, int64(len(p)))
		if keep(at) {
			if s.data[at] == nil {
				s.data[at] = make([]byte, s.unit)
			}
			copy(s.data[at][off%s.unit:], p[:n])
			s.size = max(s.size, off+n)
		}
		off, p = off+n, p[n:]
	}
}

func (s *sectors) truncate(size int64) {
	for at, b := range s.data {
		switch {
		case at*s.unit >= size:
			delete(s.data, at)
		case (at+1)*s.unit > size:
			clear(b[size-at*s.unit:])
		}
	}
	s.size = size
}

// loss says what a power cut leaves of the changes that no sync covered.
type loss struct {
	unit int64 // what the drive writes whole
	rng  *rand.Rand
	keep float64 // 0: nothing, 1: everything
}

// yes decides about one change.
func (l loss) yes() bool { return l.rng.Float64() < l.keep }

// after builds the directory as it may be found after a power cut behind the
// first n operations. Of several unsynced writes to a sector, it holds some
// first ones; files and sectors differ freely, names too.
func (d *tapeDisk) after(t testing.TB, n int, l loss, path string) {
	t.Helper()
	synced := map[int]int{} // by node: operations before this one are durable
	dirSynced := 0
	for i, op := range d.ops[:n] {
		switch op.kind {
		case opSync:
			synced[op.node] = i
		case opSyncDir:
			dirSynced = i
		}
	}
	files, names := map[int]*sectors{}, map[string]int{}
	// Where a sector has lost a write, it has lost the later ones, too.
	type place struct {
		node   int
		sector int64
	}
	lost := map[place]bool{}
	for i, op := range d.ops[:n] {
		f := files[op.node]
		if f == nil {
			f = &sectors{unit: l.unit, data: map[int64][]byte{}}
			files[op.node] = f
		}
		durable := i < synced[op.node]
		switch op.kind {
		case opWrite:
			f.write(op.off, op.data, func(sector int64) bool {
				at := place{op.node, sector}
				if !durable && !lost[at] && !l.yes() {
					lost[at] = true
				}
				return durable || !lost[at]
			})
		case opTruncate:
			if durable || l.yes() {
				f.truncate(op.off)
			}
		case opLink:
			if i < dirSynced || l.yes() {
				names[op.name] = op.node
			}
		case opRename:
			if i < dirSynced || l.yes() {
				delete(names, op.from)
				names[op.name] = op.node
			}
		case opRemove:
			if i < dirSynced || l.yes() {
				delete(names, op.name)
			}
		}
	}
	must(t, os.MkdirAll(path, 0o777))
	for name, node := range names {
		f, err := os.Create(filepath.Join(path, name))
		must(t, err)
		if s := files[node]; s != nil {
			for at, b := range s.data {
				_, err := f.WriteAt(b[:min(s.unit, s.size-at*s.unit)], at*s.unit)
				must(t, err)
			}
			must(t, f.Truncate(s.size))
		}
		must(t, f.Close())
	}
}
