//go:build !race

package zrecord

const raceEnabled = false
