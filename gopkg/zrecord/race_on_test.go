//go:build race

package zrecord

const raceEnabled = true
