package sampler

import "sync"

// scramble is mix without the part that depends on the key alone.
func scramble(key, v uint64) uint64 {
	z := key ^ v*golden
	z = (z ^ z>>30) * mulA
	z = (z ^ z>>27) * mulB
	return z ^ z>>31
}

// four takes four values through the network once. The rounds of one value
// wait for each other, so one at a time leaves the processor mostly idle.
func (q *permutation) four(a, b, c, d uint64) (uint64, uint64, uint64, uint64) {
	half, mask := q.half&63, q.mask
	la, ra := a>>half, a&mask
	lb, rb := b>>half, b&mask
	lc, rc := c>>half, c&mask
	ld, rd := d>>half, d&mask
	for _, key := range q.keys {
		la, ra = ra, la^scramble(key, ra)&mask
		lb, rb = rb, lb^scramble(key, rb)&mask
		lc, rc = rc, lc^scramble(key, rc)&mask
		ld, rd = rd, ld^scramble(key, rd)&mask
	}
	return la<<half | ra, lb<<half | rb, lc<<half | rc, ld<<half | rd
}

// one takes one value through the network once.
func (q *permutation) one(x uint64) uint64 {
	half, mask := q.half&63, q.mask
	l, r := x>>half, x&mask
	for _, key := range q.keys {
		l, r = r, l^scramble(key, r)&mask
	}
	return l<<half | r
}

// pass takes every value of block through the network once.
func (q *permutation) pass(block []int64) {
	for len(block) >= 4 {
		v := block[:4:4]
		a, b, c, d := q.four(uint64(v[0]), uint64(v[1]), uint64(v[2]), uint64(v[3]))
		v[0], v[1], v[2], v[3] = int64(a), int64(b), int64(c), int64(d)
		block = block[4:]
	}
	for i, v := range block {
		block[i] = int64(q.one(uint64(v)))
	}
}

// passList does the same for the values at the listed places.
func (q *permutation) passList(block []int64, list []uint16) {
	for len(list) >= 4 {
		v := list[:4:4]
		a, b, c, d := q.four(uint64(block[v[0]]), uint64(block[v[1]]), uint64(block[v[2]]), uint64(block[v[3]]))
		block[v[0]], block[v[1]], block[v[2]], block[v[3]] = int64(a), int64(b), int64(c), int64(d)
		list = list[4:]
	}
	for _, i := range list {
		block[i] = int64(q.one(uint64(block[i])))
	}
}

// maxTableHalf bounds the tables to 128 KiB, to stay in the second-level cache;
// they serve lengths up to 2^28.
const maxTableHalf = 14

// tables holds the round functions of one permutation. For the lengths it
// serves a value passes the network several times faster than by arithmetic.
type tables struct {
	built bool
	key   uint64
	half  uint
	round [1 << maxTableHalf][rounds]uint16
}

// tablePool lends tables, the content of the last user included: what is in
// them is a function of key and half, so results do not depend on the pool.
var tablePool = sync.Pool{New: func() any { return new(tables) }}

func (t *tables) has(q *permutation) bool {
	return t.built && t.key == q.key && t.half == q.half
}

func (t *tables) build(q *permutation) {
	for r := range t.round[:q.mask+1] {
		for k, key := range q.keys {
			t.round[r][k] = uint16(scramble(key, uint64(r)) & q.mask)
		}
	}
	t.built, t.key, t.half = true, q.key, q.half
}

// one is permutation.one by table; half and mask are those of the permutation.
func (t *tables) one(x uint64, half uint, mask uint64) uint64 {
	const index = 1<<maxTableHalf - 1 // proves the bounds; changes nothing
	l, r := x>>half, x&mask
	l ^= uint64(t.round[r&index][0])
	r ^= uint64(t.round[l&index][1])
	l ^= uint64(t.round[r&index][2])
	r ^= uint64(t.round[l&index][3])
	return l<<half | r
}

// pass is permutation.pass by table.
func (t *tables) pass(q *permutation, block []int64) {
	half, mask := q.half&63, q.mask
	for i, v := range block {
		block[i] = int64(t.one(uint64(v), half, mask))
	}
}

// passList is permutation.passList by table.
func (t *tables) passList(q *permutation, block []int64, list []uint16) {
	half, mask := q.half&63, q.mask
	for _, i := range list {
		block[i] = int64(t.one(uint64(block[i]), half, mask))
	}
}
