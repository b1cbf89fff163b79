//go:build !amd64

package mem

const together = false

func copyGroup(*byte, *[group]*byte, int, int) {}

func copyGroupDown(*byte, *[group]*byte, int, int) {}
