package pipeline

import (
	"strings"
	"testing"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/sampler"
)

// ragged records: number i has i%5 + 1 rows of 8 bytes.
func ragged() *fake { return &fake{size: func(i int64) int { return int(i%5) + 1 }} }

var minusOne = []byte{255, 255, 255, 255, 255, 255, 255, 255}

func openRagged(t *testing.T, s Stream, bytes int) (*owner, sampler.Plan) {
	s.Name, s.Records, s.RowBytes = "tokens", ragged(), 8
	cfg := Config{Plan: plan(40, 4, sampler.IID), Workers: 2, Ahead: 2, Slots: 4, Streams: []Stream{s}}
	return open(t, cfg, bytes), cfg.Plan
}

func TestPadToAFixedWidth(t *testing.T) {
	o, p := openRagged(t, Stream{Kind: Pad, Width: 6, Filler: minusOne}, 4*6*8)
	for step := range uint64(30) {
		d := o.batch(step)
		var all, rows []int64
		for _, i := range want(t, p, step) {
			rows = append(rows, i%5+1)
			for r := range int64(6) {
				if r <= i%5 {
					all = append(all, i)
				} else {
					all = append(all, -1)
				}
			}
		}
		equal(t, "values", o.words(d.Slot, 0, 24), all)
		equal(t, "rows", o.slots[d.Slot].Buffers[0].Aux[:4], rows)
		equal(t, "width", d.Rows, []int64{6})
		o.give(d.Slot)
	}
}

func TestPadCutsOrRefusesLongRecords(t *testing.T) {
	o, p := openRagged(t, Stream{Kind: Pad, Width: 2, Truncate: true, Filler: []byte{}}, 4*2*8)
	for step := range uint64(30) {
		d := o.batch(step)
		var all, rows []int64
		for _, i := range want(t, p, step) {
			rows = append(rows, min(i%5+1, 2))
			second := i
			if i%5 == 0 {
				second = 0
			}
			all = append(all, i, second)
		}
		equal(t, "values", o.words(d.Slot, 0, 8), all)
		equal(t, "rows", o.slots[d.Slot].Buffers[0].Aux[:4], rows)
		o.give(d.Slot)
	}
	o, _ = openRagged(t, Stream{Kind: Pad, Width: 2}, 4*2*8)
	for step := uint64(0); ; step++ {
		d, err := o.next(step)
		if err == nil {
			o.give(d.Slot)
			continue
		}
		wantErr(t, "long record", err, errs.ErrArgument)
		if !strings.Contains(err.Error(), "more than the 2") {
			t.Error(err)
		}
		break
	}
}

// grown gives a slot again with the room that its step needs.
func (o *owner) grown(d Delivery) {
	o.slots[d.Slot].Buffers[0].Data = make([]byte, d.Rows[0])
	o.give(d.Slot)
}

func TestSlotsGrowToWhatAStepNeeds(t *testing.T) {
	for _, kind := range []Kind{Pad, Flat} {
		o, p := openRagged(t, Stream{Kind: kind, Filler: minusOne}, 8)
		grown := 0
		for step := range uint64(40) {
			d, err := o.next(step)
			if err != nil {
				t.Fatal(err)
			}
			if d.Outcome == Grow {
				grown++
				o.grown(d)
				d = o.batch(step)
			}
			var flat, padded, splits, rows []int64
			indices := want(t, p, step)
			width := int64(0)
			for _, i := range indices {
				width = max(width, i%5+1)
			}
			for _, i := range indices {
				splits = append(splits, int64(len(flat)))
				rows = append(rows, i%5+1)
				for r := range width {
					if r <= i%5 {
						flat, padded = append(flat, i), append(padded, i)
					} else {
						padded = append(padded, -1)
					}
				}
			}
			aux := o.slots[d.Slot].Buffers[0].Aux
			if kind == Flat {
				equal(t, "rows", d.Rows, []int64{int64(len(flat))})
				equal(t, "splits", aux[:5], append(splits, int64(len(flat))))
				equal(t, "values", o.words(d.Slot, 0, len(flat)), flat)
			} else {
				equal(t, "width", d.Rows, []int64{width})
				equal(t, "rows", aux[:4], rows)
				equal(t, "values", o.words(d.Slot, 0, len(padded)), padded)
			}
			o.give(d.Slot)
		}
		if grown == 0 {
			t.Fatal("no slot had to grow")
		}
	}
}

func TestAStepThatCannotBePlannedFailsInASlotUsedBefore(t *testing.T) {
	for _, workers := range []int{0, 2} {
		cfg := Config{
			Plan: plan(40, 1, sampler.Sequential), Workers: workers, Ahead: 1, Slots: 2,
			Streams: []Stream{{Name: "x", Records: ragged(), Kind: Pad, Width: 4, RowBytes: 8}},
		}
		o := open(t, cfg, 4*8)
		for step := range uint64(4) {
			o.give(o.batch(step).Slot)
		}
		_, err := o.next(4)
		wantErr(t, "step 4", err, errs.ErrArgument)
	}
}

func TestARecordOfHalfARowIsAnError(t *testing.T) {
	cfg := Config{
		Plan: plan(40, 4, sampler.Sequential), Slots: 2,
		Streams: []Stream{{Name: "x", Records: ragged(), Kind: Flat, RowBytes: 16}},
	}
	o := open(t, cfg, 4*5*16)
	_, err := o.next(0)
	wantErr(t, "step 0", err, errs.ErrCorrupt)
}
