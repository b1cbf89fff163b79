package rowtable

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
	"loaderx/gopkg/osfile"
)

// payloadAlign is what a writer aligns the blocks to: rows of a raw table then
// lie as they would in memory, and what is in front of them can be inserted.
const payloadAlign = 4096

func blocksOf(rows, blockRows int64) int64 {
	return rows/blockRows + min(1, rows%blockRows)
}

// payloadAt returns where the blocks begin behind the map, if there is one,
// and the descriptors.
func payloadAt(rows, blocks int64, mapped bool) int64 {
	end := headerBytes + blocks*descriptorBytes
	if mapped {
		end += rows * mapEntryBytes
	}
	return (end + payloadAlign - 1) / payloadAlign * payloadAlign
}

// Finish writes what is left, makes the table durable and puts it in its
// place. It ends the writer.
func (w *Writer) Finish(ctx context.Context) (report *Report, err error) {
	err = w.do(func() error {
		if w.opt.Rows > 0 && w.rows != w.opt.Rows {
			return fmt.Errorf("%d rows were written, and %d were announced: %w", w.rows, w.opt.Rows, errs.ErrArgument)
		}
		if b := w.current; b != nil {
			w.current = nil
			w.send(b)
		}
		if err := w.drain(ctx); err != nil {
			return err
		}
		w.stop()
		h, err := w.index()
		if err != nil {
			return err
		}
		report = w.report(h)
		if err := w.settle(ctx, report); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%w: %w", errs.ErrCancelled, err)
		}
		w.ended = true
		err = w.draft.Publish()
		if w.share != nil {
			err = w.share.close(err)
		}
		return err
	})
	if err != nil {
		w.Abort()
		return nil, err
	}
	return report, nil
}

// index writes everything in front of the blocks.
func (w *Writer) index() (*header, error) {
	if w.stored == w.rows && w.share != nil && increasing(w.places) {
		w.places = nil
	}
	h := &header{
		version: w.version, rows: w.rows, stored: w.stored, rowBytes: w.opt.RowBytes,
		blocks: blocksOf(w.stored, w.opt.BlockRows), blockRows: w.opt.BlockRows, payloadBytes: w.at, kind: w.opt.Kind,
	}
	h.descriptors = headerBytes
	if w.opt.Version >= 3 {
		h.version = 3 // for the checksums of its blocks
	}
	if w.places == nil && h.version >= 3 {
		h.flags |= flagIdentity
	} else {
		h.mapAt = headerBytes
		h.descriptors += h.rows * mapEntryBytes
	}
	if w.rawOnly {
		h.flags |= flagRaw
	}
	if w.shuffled {
		h.elementBytes = w.opt.ElementBytes
	}
	h.payloadAt = payloadAt(h.rows, h.blocks, !h.identity())
	if err := w.makeRoom(h.payloadAt); err != nil {
		return nil, err
	}
	// The part in front of the blocks may be a hole, and so may all of them be.
	if err := w.file.Truncate(h.fileBytes()); err != nil {
		return nil, err
	}
	out := bufio.NewWriterSize(&section{w.file, headerBytes}, 1<<20)
	sum := crc32.New(castagnoli)
	if err := w.writeIndex(io.MultiWriter(out, sum), h); err != nil {
		return nil, err
	}
	// Where blocks were moved, old bytes are left in the gap before them.
	_, _ = out.Write(make([]byte, h.payloadAt-h.descriptors-int64(len(w.descriptors))))
	if err := out.Flush(); err != nil {
		return nil, err
	}
	h.indexSum = sum.Sum32()
	begin := h.append(nil)
	if _, err := parseHeader(begin, h.fileBytes()); err != nil {
		return nil, fmt.Errorf("%w: the header is wrong: %w", errs.ErrInternal, err)
	}
	_, err := w.file.WriteAt(begin, 0)
	return h, err
}

func increasing(places []int64) bool {
	for row, place := range places {
		if place != int64(row) {
			return false
		}
	}
	return true
}

// writeIndex writes the map and the descriptors.
func (w *Writer) writeIndex(out io.Writer, h *header) error {
	buf := make([]byte, 0, 64<<10)
	flush := func() (err error) {
		_, err = out.Write(buf)
		buf = buf[:0]
		return err
	}
	for row := int64(0); row < h.rows && !h.identity(); row++ {
		place := row
		if w.places != nil {
			place = w.places[row]
		}
		if buf = binary.LittleEndian.AppendUint64(buf, uint64(place)); len(buf) == cap(buf) {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if err := flush(); err != nil {
		return err
	}
	// Their offsets count from the first block so far.
	for at := 0; at < len(w.descriptors); at += descriptorBytes {
		field := w.descriptors[at:]
		binary.LittleEndian.PutUint64(field, binary.LittleEndian.Uint64(field)+uint64(h.payloadAt))
	}
	_, err := out.Write(w.descriptors)
	return err
}

// makeRoom moves the blocks up so that they begin at the offset to. Only a
// source whose rows could not be counted beforehand needs that.
func (w *Writer) makeRoom(to int64) error {
	if to == w.base {
		return nil
	}
	if w.at >= moveBytes {
		err := osfile.Insert(w.draft.File(), w.base, to-w.base)
		if err == nil || !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
	}
	buf := make([]byte, min(w.at, moveBytes))
	for left := w.at; left > 0; {
		n := min(left, int64(len(buf)))
		left -= n // from the end on, since old and new place overlap
		if _, err := io.ReadFull(io.NewSectionReader(w.file, w.base+left, n), buf[:n]); err != nil {
			return err
		}
		if _, err := w.file.WriteAt(buf[:n], to+left); err != nil {
			return err
		}
	}
	return nil
}

// moveBytes is how much is moved at a time; less is not worth asking the file
// system for.
const moveBytes = 4 << 20

// section is a file from an offset on.
type section struct {
	file io.WriterAt
	at   int64
}

func (s *section) Write(b []byte) (int, error) {
	n, err := s.file.WriteAt(b, s.at)
	s.at += int64(n)
	return n, err
}

// settle waits until the table is on the disk; the hash is made meanwhile.
func (w *Writer) settle(ctx context.Context, report *Report) error {
	if !w.opt.SHA256 {
		return w.draft.File().Sync()
	}
	synced := make(chan error, 1)
	go func() { synced <- mem.Guard(w.draft.File().Sync) }()
	sum, err := w.hash(ctx, report.FileBytes)
	if err = errors.Join(err, <-synced); err != nil {
		return err
	}
	report.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return nil
}

func (w *Writer) hash(ctx context.Context, size int64) (hash.Hash, error) {
	sum, buf := sha256.New(), make([]byte, 1<<20)
	for at := int64(0); at < size; {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("%w: %w", errs.ErrCancelled, err)
		}
		n := min(int64(len(buf)), size-at)
		if _, err := io.ReadFull(io.NewSectionReader(w.file, at, n), buf[:n]); err != nil {
			return nil, err
		}
		_, _ = sum.Write(buf[:n])
		at += n
	}
	return sum, nil
}

func (w *Writer) report(h *header) *Report {
	r := &Report{
		Rows: h.rows, StoredRows: h.stored, SharedRows: h.rows - h.stored, RowBytes: h.rowBytes,
		Blocks: h.blocks, BlockRows: h.blockRows, RawBytes: h.rows * h.rowBytes,
		FileBytes: h.fileBytes(), BlockBytes: h.payloadBytes, Version: int(h.version),
		Identity: h.identity(), Kind: h.kind, ElementBytes: h.elementBytes, Encodings: []Encoding{},
	}
	for codec := range w.counts {
		for predictor, e := range w.counts[codec] {
			if e.Blocks > 0 {
				e.Codec, e.Predictor = codecNames[codec], predictorNames[predictor]
				r.Encodings = append(r.Encodings, e)
			}
		}
	}
	return r
}
