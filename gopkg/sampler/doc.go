// Package sampler draws the record indices of a training run: for every step
// one batch, as a pure function of (mode, length, batch, seed, step).
//
// Nothing is kept between calls, so seeking costs nothing in any mode, any
// number of goroutines may call Fill at once, and lengths up to 2^63-1 need no
// memory of that size. The text below is the whole algorithm: an index sequence
// is part of what makes a run repeatable, so it never changes for given
// arguments. All arithmetic is on unsigned 64-bit words modulo 2^64 unless said
// otherwise; N is the length, B the batch, s the step, j = 0..B-1 the position
// in the batch, and s*B+j is exact (128 bits).
//
// # The mixing function
//
//	mix(s, v, k):
//	    z = s ^ v*0x9E3779B97F4A7C15 ^ k*0xD1B54A32D192ED03
//	    z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
//	    z = (z ^ z>>27) * 0x94D049BB133111EB
//	    return z ^ z>>31
//
// # Sequential
//
// A window slides over a circular index space: index j of step s is
// (s*B + j) mod N. Every step has B indices, also when N < B. The indices are
// those of loaderx 0.9.4 wherever s*B < 2^64; past that loaderx wraps the
// product and jumps, this package goes on.
//
// # Cyclic
//
// Cycle after cycle, each visits the indices in an order of its own, without
// replacement. A step has b = min(B, N) indices and a cycle N/b (rounded down)
// steps: batches are always full, and what is left of the cycle is dropped.
// With c, k = s / steps, s mod steps, index j of step s is
// permute(mix(seed, c, 0), k*b + j). All indices are those of loaderx 0.9.4.
//
//	permute(key, x):                     # a bijection of 0..N-1
//	    h    = half the smallest even number of bits that hold N-1
//	    mask = 2^h - 1
//	    repeat
//	        l, r = x >> h, x & mask
//	        for k = 0..3: l, r = r, l ^ (mix(key, r, k) & mask)
//	        x = l<<h | r
//	    until x < N                      # cycle walking; under 4 passes on average
//	    return x
//
// # IID
//
// Uniform with replacement, unbiased, from a counter-based generator: draw
// number d = s*B + j depends on seed and d alone, so the order of all draws
// does not depend on the batch size. Every step has B indices.
//
//	word(seed, d, a):                    # a: attempts so far
//	    k = mix(seed, 2a, 1 + d>>64); q = mix(seed, 2a+1, 1 + d>>64)
//	    z = k + (d mod 2^64)*0x9E3779B97F4A7C15
//	    hi, lo = the 128-bit product z * (z ^ q)
//	    return hi ^ lo
//
//	draw(seed, d):
//	    a = 0
//	    if N <= 2^28:                    # two draws share a word
//	        w = word(seed, d', 0), where d' is d with its low 64 bits halved
//	        w = w mod 2^32 if d is even, else w>>32
//	        if w*N mod 2^32 >= 2^32 mod N: return w*N >> 32
//	        a = 1
//	    repeat
//	        hi, lo = the 128-bit product word(seed, d, a) * N
//	        a = a + 1
//	    until lo >= 2^64 mod N
//	    return hi
//
// The bounded integers are Lemire's; an attempt fails with probability below
// N/2^64 (N/2^32), and every attempt draws from keys of its own. The key q
// is there because with k alone all seeds would share one sequence and differ
// in where they start.
package sampler
