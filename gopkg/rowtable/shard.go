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
	// slots has two words for each entry: its key, and the slots used just
	// before and just after it, older<<32 | newer.
	slots []uint64
	rows  []byte
	each  int64

	used, room     uint32
	newest, oldest uint32
	_              [24]byte // locks of neighbours have cache lines of their own
}

// none is no slot.
const none = 1<<32 - 1

// entryBytes is what an entry takes beside its rows: a key, two neighbours, and
// four thirds of an index word.
const entryBytes = 8 + 8 + 11

func indexLen(entries int64) int64 { return entries + entries/3 + 1 }

// structBytes is the size of a shard itself.
const structBytes = 128

// shardBytes returns the memory of a shard, with its struct.
func shardBytes(entries, each int64) int64 {
	return 8*indexLen(entries) + 16*entries + (entries*each+7)&^7 + structBytes
}

func (s *shard) init(b []byte, entries, each int64) error {
	indexBytes, slotBytes := 8*indexLen(entries), 16*entries
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
			if slot := uint32(e) - 1; s.slots[2*slot] == uint64(key) {
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
func (s *shard) use(key int64, hash uint32) []byte {
	slot, _ := s.find(key, hash)
	if slot == none {
		return nil
	}
	s.renew(slot)
	return s.content(slot)
}

// read is cache.read for the rows in order, which are all of this shard. The
// loads of one loop do not depend on each other, so that many cache misses are
// under way at once; that is why finding, first bytes and copies have a loop
// each.
func (s *shard) read(l *lane, order []uint16, keys []int64, out []byte, rb int64) (hits int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := 0
	for _, i := range order {
		slot, _ := s.find(keys[i], uint32(l.hashes[i]))
		if l.missing[i] = slot == none; slot == none {
			continue
		}
		l.offsets[i] += int64(slot) * s.each
		order[found] = i
		found++
		s.renew(slot)
	}
	order = order[:found]
	var sum byte
	for _, i := range order {
		sum += s.rows[l.offsets[i]]
	}
	l.sum = sum
	for _, i := range order {
		at, to := l.offsets[i], int64(i)*rb
		copy(out[to:to+rb], s.rows[at:at+rb])
	}
	return found
}

// renew makes a slot the newest.
func (s *shard) renew(slot uint32) {
	if s.newest == slot {
		return
	}
	s.unlink(slot)
	s.link(slot)
}

// unlink takes a slot out of the order of use.
func (s *shard) unlink(slot uint32) {
	pair := s.slots[2*slot+1]
	older, newer := uint32(pair>>32), uint32(pair)
	if older == none {
		s.oldest = newer
	} else {
		s.slots[2*older+1] = s.slots[2*older+1]>>32<<32 | uint64(newer)
	}
	if newer == none {
		s.newest = older
	} else {
		s.slots[2*newer+1] = uint64(older)<<32 | s.slots[2*newer+1]&none
	}
}

// link puts a slot that is not in the order of use at its new end.
func (s *shard) link(slot uint32) {
	s.slots[2*slot+1] = uint64(s.newest)<<32 | none
	if s.newest == none {
		s.oldest = slot
	} else {
		s.slots[2*s.newest+1] = s.slots[2*s.newest+1]>>32<<32 | uint64(slot)
	}
	s.newest = slot
}

// add is cache.add; the entry used longest ago makes room.
func (s *shard) add(key int64, hash uint32, content []byte) {
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
	s.slots[2*slot] = uint64(key)
	s.link(slot)
	s.index[at] = uint64(hash)<<32 | uint64(slot+1)
}

// forget takes a slot's key out of the index. Entries behind it move up, so
// that each is still found from its home without a gap.
func (s *shard) forget(slot uint32) {
	key := int64(s.slots[2*slot])
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
