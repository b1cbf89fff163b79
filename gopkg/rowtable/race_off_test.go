//go:build !race

package rowtable

const raceEnabled = false
