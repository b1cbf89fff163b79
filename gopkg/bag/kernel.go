package bag

import "loaderx/gopkg/quant"

// kernelKey names a family of kernels that differ in width.
type kernelKey struct {
	op     operation
	kind   quant.Kind
	double bool
}

// kernel is an assembly function that reduces some columns of rows: one bag
// after the other, each with its sums in registers, which end up at dst and
// stride bytes further for each bag. Row i's first of the columns is places[i] bytes behind
// base; bag b goes up to ends[b], from where the one before it ended. While i
// is below ahead, row fetch[i] is fetched into the caches. weights[i] belongs to row i; the scale of
// a row is scaleAt bytes behind the first of the columns, and shift is where in
// its byte a single four-bit column is. With resume not zero the sums
// begin with what is at dst.
type kernel struct {
	columns int
	zmm     bool // needs AVX-512
	single  func(dst *byte, stride int, base *byte, places, fetch, ends *int64, bags, ahead int, weights *float32, scaleAt, shift, resume int)
	double  func(dst *byte, stride int, base *byte, places, fetch, ends *int64, bags, ahead int, weights *float64, scaleAt, shift, resume int)
}

// tile is a kernel and the columns it is used for.
type tile struct {
	kernel
	column int // the first
	accAt  int // of its accumulators, where those of tiles must not overlap
	byteAt int // of its first column in a row
	shift  int
}

// plan covers the columns with tiles. The last of a kind may overlap the one before
// it, as both compute the same.
func (r *Reducer) plan() {
	family := familyOf(kernelKey{r.op, r.spec.Kind, r.double})
	bits, dim := r.spec.Kind.Bits(), r.spec.Dim
	put := func(k kernel, column int) {
		r.tiles = append(r.tiles, tile{
			kernel: k, column: column, accAt: r.accBytes, byteAt: column * bits / 8, shift: column * bits % 8,
		})
		r.accBytes += k.columns * r.accSize()
	}
	if len(family) == 0 {
		return
	}
	r.accBytes = 0
	column := 0
	for _, k := range family {
		for column+k.columns <= dim {
			put(k, column)
			column += k.columns
		}
		// Four-bit columns begin in pairs.
		start := (dim - k.columns) &^ (8/min(bits, 8) - 1)
		if narrowest := family[len(family)-1].columns; k.columns > narrowest && k.columns <= 8 && column < dim && start >= 0 && start+k.columns > column {
			put(k, start)
			column = start + k.columns
		}
	}
}
