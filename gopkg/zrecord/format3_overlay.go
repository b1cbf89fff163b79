package zrecord

import (
	"errors"
	"fmt"
	"path/filepath"
	"sort"
	"time"

	"loaderx/gopkg/errs"
)

// overlay3 is a pending journal laid over the files, for a handle that must
// not change them: it shows the store as it will be when a writer has
// finished the change. It stays right when that happens meanwhile, and when
// that writer appends. It does not change after it was made.
type overlay3 struct {
	*journal3
	order []uint32 // of the changes, by rising index
}

// overlayTries is how often a reader looks at a journal that seems wrong.
const overlayTries = 3

// find returns the number of the change of a record.
func (o *overlay3) find(idx int64) (int, bool) {
	at, ok := sort.Find(len(o.order), func(i int) int {
		return int(idx - o.index(int(o.order[i])))
	})
	if !ok {
		return 0, false
	}
	return int(o.order[at]), true
}

// overlay reads the journal of a crash, if there is one.
func (f *files3) overlay() error {
	for try := 1; ; try++ {
		j, _, err := readJournal3(f.path)
		if err == nil && j != nil {
			var tail tail3
			if tail, err = f.tail(); err == nil && tail != j.before && tail != j.after {
				err = j.foreign(f.path)
			}
		}
		// A writer may be finishing the change just now: then the journal is
		// gone in a moment, or is gone already.
		if errors.Is(err, errs.ErrCorrupt) && try < overlayTries {
			if exists(filepath.Join(f.path, redoName)) {
				time.Sleep(joinPause)
			}
			continue
		}
		if err == nil && j != nil {
			f.over = &overlay3{journal3: j, order: j.order()}
		}
		return err
	}
}

// locateOver is locate with an overlay: moved bytes come from the journal,
// since those in the chunk may be half written.
func (f *files3) locateOver(idxs []int64, out []location) error {
	for i, idx := range idxs {
		n, ok := f.over.find(idx)
		if !ok {
			if err := f.locateAll(idxs[i:i+1], out[i:i+1]); err != nil {
				return err
			}
			continue
		}
		e := f.over.change(n).entry
		if err := e.check(); err != nil {
			return fmt.Errorf("%s: record %d: %w", f.path, idx, err)
		}
		var data []byte
		if len(f.over.data) > 0 {
			at := int64(e.offset) - f.over.offset
			data = f.over.data[at : at+int64(e.phys)]
		} else {
			c, err := f.chunk(int(e.chunk))
			if err != nil {
				return fmt.Errorf("record %d: %w", idx, err)
			}
			if e.end() > c.size.Load() {
				if _, err := f.grown(idx, e); err != nil {
					return err
				}
			}
			data = c.mapping.Bytes()[e.offset:e.end()]
		}
		out[i] = location{data: data, size: e.size, tag: e.tag}
	}
	return nil
}
