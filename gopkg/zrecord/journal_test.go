package zrecord

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"loaderx/gopkg/codec"
	"loaderx/gopkg/errs"
)

// pendingStore makes a store whose delete or compact was cut short right
// after the journal was written; it returns what the store then holds.
func pendingStore(t testing.TB, moving bool) (path string, want []int) {
	t.Helper()
	path = closedStore(t, 30, codec.Zstd)
	s, err := Open(path, Options{Mode: Append})
	must(t, err)
	idxs := []int64{0, 7, 8}
	want = deleteNumbers(count(30), idxs)
	if moving {
		must(t, s.Delete(t.Context(), idxs, false))
		must(t, s.Close())
	}
	d := &logDisk{}
	d.fail = func(op string) error {
		if op == "write 0.zr" || op == "write "+metaName {
			return errors.New("power is gone")
		}
		return nil
	}
	if !moving {
		must(t, s.Close())
	}
	s, err = openOn(d, path, Options{Mode: Append})
	must(t, err)
	if moving {
		small(s, 3000, 1<<40)
		err = s.Compact(t.Context(), nil)
	} else {
		err = s.Delete(t.Context(), idxs, false)
	}
	if half := (halfway{}); !errors.As(err, &half) {
		t.Fatalf("not cut short: %v", err)
	}
	s.Close()
	return path, want
}

func TestAPendingJournalIsFinished(t *testing.T) {
	for _, moving := range []bool{false, true} {
		path, want := pendingStore(t, moving)
		j, _, err := readJournal3(path)
		must(t, err)
		if j == nil || (len(j.data) > 0) != moving {
			t.Fatalf("journal %+v", j)
		}
		// Half of it was done before the crash.
		patch(t, path, metaName, header3+j.index(0)*entry3, j.raw(0))
		if moving {
			patch(t, path, chunkName(j.chunk), j.offset, j.data[:len(j.data)/2])
		}
		r := openStore(t, path, ReadOnly)
		wantNumbers(t, r, want)
		st, err := r.Stats()
		must(t, err)
		if st.Records != 27 || st.LiveBytes >= st.ChunkBytes {
			t.Errorf("%+v", st)
		}
		w := openStore(t, path, Append)
		wantNumbers(t, w, want)
		wantNumbers(t, r, want)
		src, offsets := samples(40, 41)
		_, err = w.Append(t.Context(), src, offsets, codec.Raw)
		must(t, err)
		must(t, w.Close())
		wantNumbers(t, r, append(want, 40))
	}
}

// The short way for raw records of one length looks at the table, too.
func TestAPendingJournalAndRecordsOfOneLength(t *testing.T) {
	path := closedStore(t, 0, codec.Raw)
	s := openStore(t, path, Append)
	const n, row = 40, 64
	src, offsets := make([]byte, n*row), make([]uint64, n)
	for i := range offsets {
		offsets[i] = uint64(i * row)
		src[i*row] = byte(i)
	}
	_, err := s.Append(t.Context(), src, offsets, codec.Raw)
	must(t, err)
	must(t, s.Close())
	d := &logDisk{fail: func(op string) error {
		if op == "write "+metaName {
			return errors.New("power is gone")
		}
		return nil
	}}
	s, err = openOn(d, path, Options{Mode: Append})
	must(t, err)
	if err := s.Delete(t.Context(), []int64{3, 4}, false); err == nil {
		t.Fatal("the delete was not cut short")
	}
	s.Close()
	r := openStore(t, path, ReadOnly)
	dst := make([]byte, 4*row)
	for range 2 {
		_, err := r.Gather(&Request{Idxs: []int64{2, 3, 4, 5}, Dst: dst, RowBytes: row}, 0, 0)
		must(t, err)
		if dst[0] != 2 || dst[row] != 38 || dst[2*row] != 39 || dst[3*row] != 5 {
			t.Fatalf("records %d %d %d %d", dst[0], dst[row], dst[2*row], dst[3*row])
		}
	}
}

// A flipped bit or a lost end of a pending journal is an error that names it,
// never half a change; what was never finished being written says nothing.
func TestDamagedJournals(t *testing.T) {
	path, want := pendingStore(t, true)
	name := filepath.Join(path, redoName)
	good, err := os.ReadFile(name)
	must(t, err)
	for at := 0; at < len(good); at += 1 + at/16 {
		bad := bytes.Clone(good)
		bad[at] ^= 1 << (at % 8)
		must(t, os.WriteFile(name, bad, 0o666))
		for _, mode := range []Mode{ReadOnly, Append} {
			s, err := openOn(hastyDisk{}, path, Options{Mode: mode})
			if err == nil {
				s.Close()
				t.Fatalf("byte %d, mode %d: opened", at, mode)
			}
			if !errors.Is(err, errs.ErrCorrupt) && !errors.Is(err, errs.ErrFormat) {
				t.Fatalf("byte %d: %v", at, err)
			}
			if mode == ReadOnly && at > 100 {
				break
			}
		}
	}
	for _, size := range []int{redoHeader, redoHeader + 5, len(good) - 1} {
		must(t, os.WriteFile(name, good[:size], 0o666))
		if _, err := Open(path, Options{Mode: Append}); !errors.Is(err, errs.ErrCorrupt) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	for _, unfinished := range [][]byte{nil, good[:10], append(make([]byte, redoHeader), good[redoHeader:]...)} {
		must(t, os.WriteFile(name, unfinished, 0o666))
		wantNumbers(t, openStore(t, path, ReadOnly), want)
		must(t, openStore(t, path, Append).Close())
		if exists(name) {
			t.Error("an unfinished journal was not removed")
		}
	}
}

func FuzzJournal(f *testing.F) {
	for _, moving := range []bool{false, true} {
		path, _ := pendingStore(f, moving)
		b, err := os.ReadFile(filepath.Join(path, redoName))
		must(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		// Checksums made right, so that what they guard is reached.
		for _, fix := range []bool{false, true} {
			if fix && len(b) >= redoHeader {
				b = bytes.Clone(b)
				sealJournal(b)
			}
			j, err := parseJournal3(bytes.NewReader(b), int64(len(b)))
			if err != nil {
				if !errors.Is(err, errs.ErrCorrupt) && !errors.Is(err, errs.ErrFormat) {
					t.Fatal(err)
				}
				continue
			}
			if j == nil {
				continue
			}
			for i := range j.count() {
				if c := j.change(i); c.index >= MaxRecords || len(j.data) > 0 && c.entry.end() > j.offset+int64(len(j.data)) {
					t.Fatalf("accepted %+v", c)
				}
			}
			if got := append(append(j.header(), j.changes...), j.data...); fix && !bytes.Equal(got[:12], b[:12]) {
				t.Fatal("written otherwise than read")
			}
		}
	})
}

// sealJournal gives a journal, and the store headers in it, the checksums and
// magic that its content asks for.
func sealJournal(b []byte) {
	le := binary.LittleEndian
	copy(b, redoMagic)
	le.PutUint16(b[4:], redoVersion)
	for _, at := range []int{16, 32} {
		copy(b[at:], magic3)
		le.PutUint16(b[at+4:], version3)
	}
	n, data := int64(le.Uint32(b[48:])), int64(le.Uint32(b[12:]))
	if end := redoHeader + n*redoChange + data; end <= int64(len(b)) {
		le.PutUint32(b[56:], crc32.Checksum(b[redoHeader:end], castagnoli))
	}
	le.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
}

// A reader that saw the journal may come to the header when a writer has
// finished the change, appended, and removed the journal.
func TestReaderWhileAWriterFinishesAJournal(t *testing.T) {
	const n, size = 8, MaxRecordLen
	for range 4 {
		path := filepath.Join(t.TempDir(), "s")
		s := openStore(t, path, CreateNew)
		src, offsets := make([]byte, n*size), make([]uint64, n)
		j := &journal3{before: tail3{offset: n * size, length: n}, data: src}
		j.after = j.before
		for i := range n {
			offsets[i] = uint64(i * size)
			j.changes = appendEntry3(appendIndex3(j.changes, int64(i)),
				entry3Fields{offset: uint32(i * size), phys: size, size: size, tag: codec.Raw})
		}
		_, err := s.Append(t.Context(), src, offsets, codec.Raw)
		must(t, err)
		must(t, s.Close())
		f, err := j.write(osDisk{}, path)
		must(t, err)
		must(t, f.Close())
		done := make(chan error)
		go func() {
			w, err := Open(path, Options{Mode: Append})
			if err == nil {
				_, err = w.Append(t.Context(), []byte("new"), []uint64{0}, codec.Raw)
				err = errors.Join(err, w.Close())
			}
			done <- err
		}()
		for finished := false; !finished; {
			select {
			case err := <-done:
				must(t, err)
				finished = true
			default:
			}
			r, err := Open(path, Options{})
			if err != nil {
				t.Fatal(err)
			}
			must(t, r.Close())
		}
	}
}
