package mem

import "golang.org/x/sys/cpu"

// together says whether the processor has what copyGroup needs.
var together = cpu.X86.HasAVX

// copyGroup copies n bytes, at least lineBytes, from each of eight places to
// dst, dst+stride and so on.
//
//go:noescape
func copyGroup(dst *byte, from *[group]*byte, n, stride int)

// copyGroupDown does the same from the ends of the rows to their beginnings.
//
//go:noescape
func copyGroupDown(dst *byte, from *[group]*byte, n, stride int)
