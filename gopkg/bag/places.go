package bag

// checkedAtOnce is how many ids the assembly checks at most before the garbage
// collector can interrupt again.
const checkedAtOnce = 1 << 14

// Outside reports whether any of ids is not in [0, last].
func Outside(ids []int64, last int64) bool {
	for len(ids) > checkedAtOnce {
		if outside(ids[:checkedAtOnce], last) {
			return true
		}
		ids = ids[checkedAtOnce:]
	}
	return outside(ids, last)
}

func outside(ids []int64, last int64) bool {
	done, found := outsideFast(ids, last)
	var signs uint64
	for _, id := range ids[done:] {
		// Negative, or not up to last: either sets the sign bit.
		signs |= uint64(id) | uint64(last-id)
	}
	return found || signs>>63 != 0
}

// Places writes at+id*width to dst for each of ids, and reports whether all are in
// [0, last]. dst is at least as long as ids.
func Places(dst, ids []int64, at, width, last int64) bool {
	dst = dst[:len(ids)]
	inside := true
	for len(ids) > checkedAtOnce {
		inside = place(dst[:checkedAtOnce], ids[:checkedAtOnce], at, width, last) && inside
		dst, ids = dst[checkedAtOnce:], ids[checkedAtOnce:]
	}
	return place(dst, ids, at, width, last) && inside
}

func place(dst, ids []int64, at, width, last int64) bool {
	done, inside := placesFast(dst, ids, at, width, last)
	var signs uint64
	for i, id := range ids[done:] {
		dst[done+i] = at + id*width
		signs |= uint64(id) | uint64(last-id)
	}
	return inside && signs>>63 == 0
}
