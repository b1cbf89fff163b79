//go:build race

package rowtable

const raceEnabled = true
