package rowtable

import (
	"sync"

	"loaderx/gopkg/mem"
)

// shard is a part of a cache: entries in the order of their last use, and an
// index that finds them by key.
type shard struct {
	mu sync.Mutex
	// index is an open-addressing table of hash<<32 | slot+1; 0 is free.
	index []uint64
	// slots has three words for each entry: its key, the time of its last use,
	// and the slots used just before and just after it, older<<32 | newer.
	slots []uint64
	rows  []byte
	each  int64

	used, room     uint32
	newest, oldest uint32
	_              [24]byte // locks of neighbours have cache lines of their own
}

// none is no slot.
const none = 1<<32 - 1

// Words of a slot.
const (
	keyAt = iota
	usedAt
	linksAt
	slotWords
)

// entryBytes is what an entry takes beside its rows: a slot, and four thirds of
// an index word.
const entryBytes = 8*slotWords + 11

func indexLen(entries int64) int64 { return entries + entries/3 + 1 }

// structBytes is the size of a shard itself.
const structBytes = 128

// shardBytes returns the memory of a shard, with its struct.
func shardBytes(entries, each int64) int64 {
	return 8*indexLen(entries) + 8*slotWords*entries + (entries*each+7)&^7 + structBytes
}

func (s *shard) init(b []byte, entries, each int64) error {
	indexBytes, slotBytes := 8*indexLen(entries), 8*slotWords*entries
	var err error
	if s.index, err = mem.Words(b[:indexBytes]); err != nil {
		return err
	}
	if s.slots, err = mem.Words(b[indexBytes : indexBytes+slotBytes]); err != nil {
		return err
	}
	s.rows, s.each = b[indexBytes+slotBytes:], each
	s.room, s.newest, s.oldest = uint32(entries), none, none
	return nil
}

// home returns where in the index a hash belongs.
func (s *shard) home(hash uint32) int {
	return int(uint64(hash) * uint64(len(s.index)) >> 32)
}

// find returns the slot of a key, or none, and its place in the index or the
// place where it would have to go.
func (s *shard) find(key int64, hash uint32) (slot uint32, at int) {
	for at = s.home(hash); ; {
		e := s.index[at]
		if e == 0 {
			return none, at
		}
		if uint32(e>>32) == hash {
			if slot := uint32(e) - 1; s.slots[slotWords*int(slot)+keyAt] == uint64(key) {
				return slot, at
			}
		}
		if at++; at == len(s.index) {
			at = 0
		}
	}
}

func (s *shard) content(slot uint32) []byte {
	at := int64(slot) * s.each
	return s.rows[at : at+s.each]
}

// use returns the bytes of a key and notes its use; nil if it is not there.
func (s *shard) use(key int64, hash uint32, now uint64) []byte {
	slot, _ := s.find(key, hash)
	if slot == none {
		return nil
	}
	s.renew(slot, now)
	return s.content(slot)
}

// read is cache.read for the rows in order, which are all of this shard. The
// loads of one loop do not depend on each other, so that many cache misses are
// under way at once; that is why finding and copies have a loop each.
func (s *shard) read(q *query, l *lane, order []uint16, keys []int64, out []byte) (hits int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	width := q.t.h.rowBytes
	for _, i := range order {
		slot, _ := s.find(keys[i], uint32(l.hashes[i]))
		if l.missing[i] = slot == none; slot == none {
			continue
		}
		l.from[hits], l.to[hits] = l.offsets[i]+int64(slot)*s.each, int64(i)*width
		hits++
		s.renew(slot, q.now)
	}
	if hits == 0 {
		return 0
	}
	from, to := l.from[:hits], l.to[:hits]
	if q.streamed() && stream(l, out, s.rows, to, from, width) {
		return hits
	}
	l.touch(s.rows, from, width)
	for i, at := range from {
		copy(out[to[i]:to[i]+width], s.rows[at:at+width])
	}
	return hits
}

// renew makes a slot the newest, unless the chunk of the time now has used it
// before, or a later one has: what one call uses is of one age.
func (s *shard) renew(slot uint32, now uint64) {
	used := &s.slots[slotWords*int(slot)+usedAt]
	if *used >= now {
		return
	}
	*used = now
	if s.newest == slot {
		return
	}
	s.unlink(slot)
	s.link(slot)
}

// unlink takes a slot out of the order of use.
func (s *shard) unlink(slot uint32) {
	pair := s.slots[slotWords*int(slot)+linksAt]
	older, newer := uint32(pair>>32), uint32(pair)
	if older == none {
		s.oldest = newer
	} else {
		s.slots[slotWords*int(older)+linksAt] = s.slots[slotWords*int(older)+linksAt]>>32<<32 | uint64(newer)
	}
	if newer == none {
		s.newest = older
	} else {
		s.slots[slotWords*int(newer)+linksAt] = uint64(older)<<32 | s.slots[slotWords*int(newer)+linksAt]&none
	}
}

// link puts a slot that is not in the order of use at its new end.
func (s *shard) link(slot uint32) {
	s.slots[slotWords*int(slot)+linksAt] = uint64(s.newest)<<32 | none
	if s.newest == none {
		s.oldest = slot
	} else {
		s.slots[slotWords*int(s.newest)+linksAt] = s.slots[slotWords*int(s.newest)+linksAt]>>32<<32 | uint64(slot)
	}
	s.newest = slot
}

// add is cache.add; the entry used longest ago makes room.
func (s *shard) add(key int64, hash uint32, content []byte, now uint64) {
	slot, at := s.find(key, hash)
	if slot != none {
		return
	}
	if s.used < s.room {
		slot = s.used
		s.used++
	} else {
		slot = s.oldest
		s.unlink(slot)
		s.forget(slot)
		_, at = s.find(key, hash) // entries may have moved
	}
	copy(s.content(slot), content)
	s.slots[slotWords*int(slot)+keyAt], s.slots[slotWords*int(slot)+usedAt] = uint64(key), now
	s.link(slot)
	s.index[at] = uint64(hash)<<32 | uint64(slot+1)
}

// forget takes a slot's key out of the index. Entries behind it move up, so
// that each is still found from its home without a gap.
func (s *shard) forget(slot uint32) {
	key := int64(s.slots[slotWords*int(slot)+keyAt])
	_, at := s.find(key, uint32(hashOf(key)))
	n := len(s.index)
	for next := at; ; {
		if next++; next == n {
			next = 0
		}
		e := s.index[next]
		if e == 0 {
			break
		}
		// How far the entry is from its home, and how far from the hole.
		if (next-s.home(uint32(e>>32))+n)%n >= (next-at+n)%n {
			s.index[at] = e
			at = next
		}
	}
	s.index[at] = 0
}
