// Package pipeline prepares the batches of a run ahead of its consumer: it
// draws a step's indices, gathers the records of several streams at them into
// buffers that the caller owns, and hands the buffers over in order of steps.
//
// # Work
//
// A step is cut into blocks of about 64 KiB. Worker goroutines claim blocks of
// the earliest steps first, and so does a consumer that would otherwise wait:
// instead of going to sleep it copies what is left of its own step, or begins
// on later ones. So nobody is woken while there is work for everybody, a
// pipeline without workers is the same code, and steps that cost less than a
// wake-up are made by the consumer alone.
//
// # Buffers
//
// A slot is a set of buffers, one for each stream. Give hands a slot to the
// pipeline, Next hands it back with a step in it. In between the memory must
// stay in place. Close returns when no goroutine will touch any slot again;
// until then the caller must not free them, whatever else went wrong.
package pipeline
