// Package work is what the engine's stores and tables need to run calls: a count
// of the calls that are running, which a close waits for, and goroutines that
// help large ones.
package work
