package bag

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"loaderx/gopkg/quant"
)

// torchTable is a table and what torch made of it; testdata/write_torch.py
// says how.
type torchTable struct {
	Kind         string
	Dim          int
	Rows         []byte
	IDs          []int64
	Offsets      []int64
	PaddingIndex int64
	Cases        []struct {
		Mode    string
		Padding bool
		Weights []byte
		Result  []byte
	}
}

func torchTables(t *testing.T) []torchTable {
	t.Helper()
	var all []torchTable
	for _, path := range []string{"testdata/torch.json", os.Getenv("BAG_VECTORS")} {
		if path == "" {
			continue
		}
		text, err := os.ReadFile(path)
		must(t, err)
		var some []torchTable
		must(t, json.Unmarshal(text, &some))
		all = append(all, some...)
	}
	return all
}

func TestResultsHaveTheBitsOfTorch(t *testing.T) {
	eachWay(t, func(t *testing.T) {
		for _, table := range torchTables(t) {
			kind, err := quant.ParseKind(table.Kind)
			must(t, err)
			for _, c := range table.Cases {
				spec := Spec{
					Kind: kind, Dim: table.Dim, Weighted: len(c.Weights) > 0, PaddingIndex: c.Padding,
					Mode: map[string]Mode{"sum": Sum, "mean": Mean, "max": Max}[c.Mode],
				}
				r := reducer(t, spec)
				in, offsets := table.lookups(r, c.Weights, c.Padding)
				got := make([]byte, len(c.Result))
				must(t, r.ReduceAll(2, got, in, offsets))
				if at := differ(resultKind(kind), got, c.Result); at >= 0 {
					t.Fatalf("%+v: column %d of bag %d (%d lookups): got %x, torch has %x", spec, at%table.Dim, at/table.Dim,
						offsets[at/table.Dim+1]-offsets[at/table.Dim], element(resultKind(kind), got, at), element(resultKind(kind), c.Result, at))
				}
			}
		}
	})
}

// lookups leaves the padding index out.
func (table *torchTable) lookups(r *Reducer, weights []byte, padding bool) (Lookups, []int64) {
	in := Lookups{Base: table.Rows}
	offsets := make([]int64, 0, len(table.Offsets))
	for i := 0; ; i++ {
		for len(offsets) < len(table.Offsets) && table.Offsets[len(offsets)] == int64(i) {
			offsets = append(offsets, int64(len(in.Places)))
		}
		if i == len(table.IDs) {
			return in, offsets
		}
		if padding && table.IDs[i] == table.PaddingIndex {
			continue
		}
		in.Places = append(in.Places, table.IDs[i]*r.RowBytes())
		if len(weights) == 0 {
			continue
		}
		if kind := resultKind(r.spec.Kind); kind == quant.Float64 {
			in.Weights64 = append(in.Weights64, getDouble(weights[8*i:]))
		} else {
			in.Weights = append(in.Weights, float32(element(kind, weights, i)))
		}
	}
}

// resultKind is how results of a kind are stored.
func resultKind(k quant.Kind) quant.Kind {
	if k.Quantised() {
		return quant.Float32
	}
	return k
}

func element(k quant.Kind, b []byte, i int) float64 {
	switch k {
	case quant.Float64:
		return getDouble(b[8*i:])
	case quant.Float16:
		return float64(quant.HalfToFloat(le.Uint16(b[2*i:])))
	case quant.BFloat16:
		return float64(quant.BFloatToFloat(le.Uint16(b[2*i:])))
	}
	return float64(getSingle(b[4*i:]))
}

// differ returns the first element that differs in a bit, or -1; all NaNs are
// the same.
func differ(k quant.Kind, a, b []byte) int {
	n := len(a) * 8 / k.Bits()
	for i := range n {
		x, y := element(k, a, i), element(k, b, i)
		if math.Float64bits(x) != math.Float64bits(y) && (x == x || y == y) {
			return i
		}
	}
	return -1
}
