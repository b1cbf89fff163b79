package mem

import "unsafe"

// group is how many rows CopyRows copies at the same time.
const group = 8

// RowsTogether returns how many rows of row bytes CopyRows takes at a time.
func RowsTogether(row int64) int64 {
	if row > maxTogether {
		return 1
	}
	return group
}

// lineBytes is the step in which it goes through them; shorter rows are copied
// one by one.
const lineBytes = 64

// maxTogether is the longest row that is copied beside others: of longer ones
// eight parts are.
const maxTogether = 32 << 10

// CopyRows copies rows of row bytes, which begin at the offsets in src, to dst,
// one behind the other. Rows may overlap each other and not dst.
//
// A processor has few cache misses under way while it copies one row of some
// kilobytes that lies anywhere in memory, and many while it copies eight at the
// same time: that takes half as long.
func CopyRows[O uint32 | int64](dst, src []byte, offsets []O, row int) {
	dst = dst[:len(offsets)*row]
	if !together || row < lineBytes {
		for i, at := range offsets {
			copy(dst[i*row:(i+1)*row], src[int(at):int(at)+row])
		}
		return
	}
	var from [group]*byte
	if row > maxTogether {
		part := row / group
		for i, at := range offsets {
			in, out := src[int(at):int(at)+row], dst[i*row:(i+1)*row]
			for k := range from {
				from[k] = &in[k*part]
			}
			copyEight(&out[0], &from, part, part)
			copy(out[group*part:], in[group*part:])
		}
		return
	}
	last := len(src) - row
	if last < 0 && len(offsets) > 0 {
		panic("mem.CopyRows: row outside src")
	}
	for len(offsets) >= group {
		for k, at := range offsets[:group] {
			if uint64(at) > uint64(last) {
				panic("mem.CopyRows: row outside src")
			}
			from[k] = &src[at]
		}
		copyEight(&dst[0], &from, row, row)
		dst, offsets = dst[group*row:], offsets[group:]
	}
	for i, at := range offsets {
		copy(dst[i*row:(i+1)*row], src[int(at):int(at)+row])
	}
}

// Processors take a load for one that must wait for an earlier store when the
// lowest bits of their addresses are the same. Rows whose destination is a
// little ahead of the source in these bits are copied from the end.
const (
	aliasBytes = 4 << 10
	aliasAhead = 1 << 10
)

// copyEight copies n bytes from each of eight places to dst, dst+stride, ...
func copyEight(dst *byte, from *[group]*byte, n, stride int) {
	ahead := 0
	to := uintptr(unsafe.Pointer(dst))
	for k, p := range from {
		if d := (to + uintptr(k*stride) - uintptr(unsafe.Pointer(p))) % aliasBytes; d-1 < aliasAhead {
			ahead++
		}
	}
	if ahead > group/2 {
		copyGroupDown(dst, from, n, stride)
	} else {
		copyGroup(dst, from, n, stride)
	}
}
