package bag

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/mem"
	"loaderx/gopkg/quant"
)

// mapped returns a mapping of a file of n pages, and its path.
func mapped(t testing.TB, n int) (*mem.Mapping, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rows")
	size := int64(n * os.Getpagesize())
	must(t, os.WriteFile(path, make([]byte, size), 0o600))
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	m, err := mem.Map(f, size)
	must(t, err)
	t.Cleanup(func() { m.Close() })
	return m, path
}

// TestTruncatedFilesAreErrors protects the process: a kernel that reads beyond
// the end of a file that shrank must not take it down.
func TestTruncatedFilesAreErrors(t *testing.T) {
	m, path := mapped(t, 64)
	must(t, os.Truncate(path, int64(os.Getpagesize())))
	eachWay(t, func(t *testing.T) {
		for _, dim := range []int{1, 8, 33, 129} {
			eachSpec(dim, func(name string, spec Spec) {
				r := reducer(t, spec)
				in := Lookups{Base: m.Bytes()}
				var offsets []int64
				for i := range 600 {
					if i%5 == 0 {
						offsets = append(offsets, int64(i))
					}
					// The first rows are there yet.
					in.Places = append(in.Places, int64(i)*(int64(len(in.Base))-r.RowBytes())/600)
					switch {
					case spec.Weighted && spec.Kind == quant.Float64:
						in.Weights64 = append(in.Weights64, 1)
					case spec.Weighted:
						in.Weights = append(in.Weights, 1)
					}
				}
				offsets = append(offsets, 600)
				dst := make([]byte, 120*r.OutBytes())
				for _, threads := range []int{1, 2} {
					if err := r.ReduceAll(threads, dst, in, offsets); !errors.Is(err, errs.ErrFault) {
						t.Fatalf("%s with %d threads: %v, want ErrFault", name, threads, err)
					}
				}
				s, err := r.NewStream(1, dst[:r.OutBytes()], []int64{0, 600})
				must(t, err)
				if err := s.Add(in.slice(0, 599)); !errors.Is(err, errs.ErrFault) {
					t.Fatalf("%s: a bag in the making: %v, want ErrFault", name, err)
				}
				// And on it goes.
				must(t, r.ReduceAll(1, dst[:r.OutBytes()], in.slice(0, 1), []int64{0, 1}))
			})
		}
	})
}

// lastBytes returns memory behind whose end there is none, and the place of a
// row of the given width at that end.
func lastBytes(t testing.TB, width int) (base []byte, at int64) {
	t.Helper()
	page := os.Getpagesize()
	pages := width/page + 2
	m, path := mapped(t, pages)
	must(t, os.Truncate(path, int64((pages-1)*page)))
	return m.Bytes(), int64((pages-1)*page - width)
}
