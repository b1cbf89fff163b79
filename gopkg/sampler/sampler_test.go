package sampler

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"loaderx/gopkg/errs"
)

// fill is Fill for parameters that must be right.
func fill(t testing.TB, p Params, step uint64, steps int) []int64 {
	t.Helper()
	n, err := p.PerStep()
	if err != nil {
		t.Fatal(err)
	}
	out := make([]int64, n*steps)
	if got, err := Fill(p, step, steps, out); err != nil || got != n {
		t.Fatalf("Fill(%+v, %d, %d) = %d, %v, want %d", p, step, steps, got, err, n)
	}
	return out
}

// TestGolden protects runs that have begun: those of loaderx 0.9.4, which
// wrote the first table, and draws by the package comment, which another
// implementation followed to write the second.
func TestGolden(t *testing.T) {
	for name, least := range map[string]int{"loaderx-0.9.4.json": 70, "iid.json": 15} {
		text, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		var cases []struct {
			Mode                      Mode
			Length, Batch, Seed, Step uint64
			Indices                   []int64
		}
		if err := json.Unmarshal(text, &cases); err != nil {
			t.Fatal(err)
		}
		if len(cases) < least {
			t.Fatalf("%s has only %d cases", name, len(cases))
		}
		for _, c := range cases {
			p := Params{Length: c.Length, Batch: c.Batch, Mode: c.Mode, Seed: c.Seed}
			if got := fill(t, p, c.Step, 1); !slices.Equal(got, c.Indices) {
				t.Errorf("%s: %+v step %d: got %v, want %v", name, p, c.Step, got, c.Indices)
			}
		}
	}
}

func TestSequentialWindow(t *testing.T) {
	for _, c := range []struct {
		name          string
		length, batch uint64
		step          uint64
		steps         int
	}{
		{"inside", 100, 7, 3, 2},
		{"wraps", 100, 33, 2, 3},
		{"batch larger than store", 3, 8, 5, 3},
		{"one record", 1, 5, 9, 2},
		{"equal", 16, 16, 1, 2},
		{"product past 2^64", 1000003, 48, math.MaxUint64 - 4, 5},
		{"huge length", MaxLength, 48, math.MaxUint64 - 4, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := fill(t, Params{Length: c.length, Batch: c.batch, Mode: Sequential}, c.step, c.steps)
			length := new(big.Int).SetUint64(c.length)
			for i, v := range got {
				want := new(big.Int).SetUint64(c.step)
				want.Mul(want, new(big.Int).SetUint64(c.batch))
				want.Add(want, big.NewInt(int64(i)))
				want.Mod(want, length)
				if v != want.Int64() {
					t.Fatalf("index %d: got %d, want %d", i, v, want)
				}
			}
		})
	}
}

// TestCycles protects that a cycle visits every record once, or all but the
// remainder, by tables as by arithmetic, in pieces as at once.
func TestCycles(t *testing.T) {
	for _, length := range []uint64{1, 2, 3, 4, 5, 16, 17, 34, 63, 64, 65, 255, 256, 257, 1000, 4096, 4097, 70000} {
		for _, batch := range []uint64{1, 2, 3, 16, 33, 256, 100000} {
			for _, seed := range []uint64{0, 42, math.MaxUint64, math.MaxInt64} {
				p := Params{Length: length, Batch: batch, Mode: Cyclic, Seed: seed}
				n, _ := p.PerStep()
				steps := int(length) / n
				for _, cycle := range []uint64{0, 1, 77} {
					seen := make([]bool, length)
					for _, v := range fill(t, p, cycle*uint64(steps), steps) {
						if v < 0 || uint64(v) >= length || seen[v] {
							t.Fatalf("%+v cycle %d: index %d is outside or repeated", p, cycle, v)
						}
						seen[v] = true
					}
				}
			}
		}
	}
}

func TestCyclesDiffer(t *testing.T) {
	p := Params{Length: 50000, Batch: 50000, Mode: Cyclic, Seed: 42}
	a, b := fill(t, p, 0, 1), fill(t, p, 1, 1)
	q := p
	q.Seed = 43
	c := fill(t, q, 0, 1)
	for name, other := range map[string][]int64{"next cycle": b, "next seed": c} {
		same := 0
		for i := range a {
			if a[i] == other[i] {
				same++
			}
		}
		if same > 12 { // one is expected
			t.Errorf("%s: %d of %d places agree", name, same, len(a))
		}
	}
}

// TestTablesAgree protects that what the pool holds does not show in the results.
func TestTablesAgree(t *testing.T) {
	for _, length := range []uint64{2, 5, 300, 60000, 1281167, 1<<28 - 5, 1 << 28, 1<<28 + 1} {
		q := newPermutation(Params{Length: length, Seed: 9}, 4)
		pos := length / 3
		n := min(length-pos, 1000)
		plain, tabled := make([]int64, n), make([]int64, n)
		q.fill(pos, plain, nil)
		if q.half <= maxTableHalf {
			other := newPermutation(Params{Length: length, Seed: 9}, 5)
			spare := new(tables)
			spare.build(&other)
			spare.build(&q)
			q.fill(pos, tabled, spare)
			if !slices.Equal(plain, tabled) {
				t.Errorf("length %d: tables and arithmetic differ", length)
			}
		}
		for i, v := range plain {
			x := pos + uint64(i)
			for x = q.one(x); x >= length; x = q.one(x) {
			}
			if uint64(v) != x {
				t.Fatalf("length %d, position %d: got %d, want %d", length, pos+uint64(i), v, x)
			}
		}
	}
}

func TestBadArguments(t *testing.T) {
	good := Params{Length: 10, Batch: 4, Mode: Cyclic, Seed: 1}
	room := make([]int64, 64)
	for _, c := range []struct {
		name  string
		p     Params
		step  uint64
		steps int
		out   []int64
		want  error
		text  string
	}{
		{"no records", Params{0, 4, IID, 1}, 0, 1, room, errs.ErrArgument, "length 0, allowed 1.."},
		{"length 2^63", Params{1 << 63, 4, IID, 1}, 0, 1, room, errs.ErrArgument, "length 9223372036854775808"},
		{"no batch", Params{10, 0, Sequential, 1}, 0, 1, room, errs.ErrArgument, "batch 0, allowed 1.."},
		{"batch 2^63", Params{10, 1 << 63, Cyclic, 1}, 0, 1, room, errs.ErrArgument, "batch 9223372036854775808"},
		{"unknown mode", Params{10, 4, 3, 1}, 0, 1, room, errs.ErrArgument, "mode 3, allowed 0 (sequential)"},
		{"negative steps", good, 0, -1, room, errs.ErrArgument, "-1 steps"},
		{"past the last step", good, math.MaxUint64, 2, room, errs.ErrArgument, "last allowed step"},
		{"no room", good, 0, 3, room[:11], errs.ErrBuffer, "room for 11 indices, want 3 steps of 4"},
		{"room overflows", Params{10, MaxLength, IID, 1}, 0, math.MaxInt, room, errs.ErrBuffer, "room for 64"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := slices.Clone(c.out)
			_, err := Fill(c.p, c.step, c.steps, c.out)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Fatalf("got %v, want %v with %q", err, c.want, c.text)
			}
			if !slices.Equal(before, c.out) {
				t.Error("a refused call wrote to out")
			}
		})
	}
	if n, err := Fill(good, 0, 0, nil); n != 4 || err != nil {
		t.Errorf("zero steps: got %d, %v", n, err)
	}
	if n, err := Fill(good, math.MaxUint64, 1, room); n != 4 || err != nil {
		t.Errorf("last step: got %d, %v", n, err)
	}
}

// FuzzFill protects that many steps at once are the single steps, that
// indices stay inside, that a longer buffer keeps its rest, and that no
// arguments make it panic.
func FuzzFill(f *testing.F) {
	f.Add(uint64(10), uint64(3), uint8(2), uint64(42), uint64(0), uint8(5))
	f.Add(uint64(3), uint64(8), uint8(0), uint64(0), uint64(math.MaxUint64-4), uint8(4))
	f.Add(uint64(3<<61), uint64(5), uint8(1), uint64(math.MaxUint64), uint64(math.MaxUint64/5-1), uint8(6))
	f.Add(uint64(1<<28), uint64(7), uint8(1), uint64(1), uint64(1<<61), uint8(3))
	f.Add(uint64(MaxLength), uint64(700), uint8(2), uint64(1), uint64(1<<62), uint8(3))
	f.Add(uint64(0), uint64(0), uint8(9), uint64(0), uint64(0), uint8(0))
	f.Fuzz(func(t *testing.T, length, batch uint64, mode uint8, seed, step uint64, steps uint8) {
		p := Params{Length: length, Batch: batch, Mode: Mode(mode), Seed: seed}
		out := make([]int64, 1<<14)
		for i := range out {
			out[i] = -7
		}
		n, err := Fill(p, step, int(steps), out)
		if err != nil {
			if !errors.Is(err, errs.ErrArgument) && !errors.Is(err, errs.ErrBuffer) {
				t.Fatal(err)
			}
			return
		}
		total := n * int(steps)
		for i, v := range out {
			if inside := v >= 0 && uint64(v) < length; inside != (i < total) || !inside && v != -7 {
				t.Fatalf("out[%d] = %d with %d indices of length %d", i, v, total, length)
			}
		}
		one := make([]int64, n)
		for k := range int(steps) {
			if _, err := Fill(p, step+uint64(k), 1, one); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(one, out[k*n:(k+1)*n]) {
				t.Fatalf("step %d alone: %v, in the run: %v", step+uint64(k), one, out[k*n:(k+1)*n])
			}
		}
	})
}

// TestIIDOrderIsGlobal protects that the draws do not depend on the batch size
// (a run may be cut into batches differently when it resumes), also where the
// draw number passes 2^64.
func TestIIDOrderIsGlobal(t *testing.T) {
	for _, length := range []uint64{1000, maxShort, maxShort + 1, 3 << 61} {
		for _, step := range []uint64{0, 1 << 40, 1<<61 - 3} {
			whole := fill(t, Params{length, 24, IID, 5}, step, 6)
			for _, batch := range []uint64{1, 3, 4, 8, 12} {
				parts := 24 / batch
				if over, _ := bits.Mul64(step+6, parts); over != 0 {
					continue
				}
				if got := fill(t, Params{length, batch, IID, 5}, step*parts, 6*int(parts)); !slices.Equal(got, whole) {
					t.Errorf("length %d, step %d: batches of %d give another order", length, step, batch)
				}
			}
		}
	}
}

// TestConcurrent protects calls from many goroutines, which share the tables.
func TestConcurrent(t *testing.T) {
	var group sync.WaitGroup
	for seed := range uint64(4) {
		p := Params{Length: 5000, Batch: 100, Mode: Cyclic, Seed: seed}
		want := fill(t, p, 0, 200)
		group.Go(func() {
			got := make([]int64, 100)
			for step := range uint64(200) {
				if _, err := Fill(p, step, 1, got); err != nil || !slices.Equal(got, want[step*100:(step+1)*100]) {
					t.Errorf("seed %d step %d: another batch than alone, or %v", seed, step, err)
					return
				}
			}
		})
	}
	group.Wait()
}

func ExampleFill() {
	p := Params{Length: 10, Batch: 4, Mode: Cyclic, Seed: 42}
	out := make([]int64, 12)
	n, err := Fill(p, 0, 3, out)
	fmt.Println(n, err, out[:4], out[4:8], out[8:])
	// Output: 4 <nil> [4 9 2 3] [0 7 8 5] [6 7 3 4]
}

func ExampleMode() {
	fmt.Println(Sequential, IID, Cyclic, Mode(9))
	// Output: sequential iid cyclic mode 9
}
