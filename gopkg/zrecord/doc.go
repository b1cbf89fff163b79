// Package zrecord is a record store: a directory of append-only chunk files
// and a table that finds any record in constant time.
//
// A Store reads any number of records at once into memory that the caller
// provides (Gather), and appends batches of records, each stored as it is or
// as a zstd frame of its own. Stores are those of loaderx 0.9.4, byte for byte;
// FORMAT.md beside this file specifies them.
//
// All methods of a Store are safe for concurrent use. One process at a time
// may have a store open for writing, any number for reading; readers see what
// the writer has synced. Records appended but not synced are visible in the
// writing Store only. Delete and Compact need a store that nobody else has
// open.
//
// Memory: opening maps files and reads 16 bytes. A Gather of compressed
// records holds one compressed record per goroutine that works on it. An
// Append holds at most (workers + 2) blocks of up to 1 MiB of records, twice,
// whatever the size of the call.
package zrecord
