package zrecord

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"loaderx/gopkg/codec"
)

// With this set, the test binary is the writer that TestKill kills.
const victimEnv = "ZRECORD_VICTIM"

func TestMain(m *testing.M) {
	if os.Getenv(victimEnv) != "" {
		if err := victim(os.Args[len(os.Args)-4:]); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// victim does one thing after another to a store for ever, and says before
// each what it begins and afterwards that it returned.
func victim(args []string) error {
	path, what := args[0], args[1]
	next, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	seed, err := strconv.ParseUint(args[3], 10, 64)
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	s, err := Open(path, Options{Mode: Append})
	if err != nil {
		return err
	}
	small(s, 6000, 1+rng.Int64N(12000))
	ctx := context.Background()
	do := func(work func() error, format string, args ...any) {
		if err != nil {
			return
		}
		fmt.Printf(format+"\n", args...)
		if err = work(); err == nil {
			fmt.Println("ok")
		}
	}
	for err == nil {
		n := 1 + rng.IntN(30)
		tag := codec.Tag(rng.IntN(2))
		do(func() error {
			src, offsets := samples(next, next+n)
			if _, err := s.Append(ctx, src, offsets, tag); err != nil {
				return err
			}
			return s.Sync()
		}, "append %d %d", next, next+n)
		next += n
		switch what {
		case "train":
			do(func() error {
				var all []byte
				var sizes []uint64
				for i := range 60 {
					b := sample(next + i)
					all, sizes = append(all, b...), append(sizes, uint64(len(b)))
				}
				_, err := s.TrainDict(ctx, all, sizes, 4096)
				return err
			}, "train")
		case "delete", "compact":
			var idxs []int64
			var texts []string
			for range rng.IntN(int(s.Len())/2 + 1) {
				idx := rng.Int64N(s.Len())
				idxs, texts = append(idxs, idx), append(texts, strconv.FormatInt(idx, 10))
			}
			do(func() error { return s.Delete(ctx, idxs, false) }, "delete %s", strings.Join(texts, ","))
			if what == "compact" {
				do(func() error { return s.Compact(ctx, nil) }, "compact")
			}
		}
	}
	return err
}

// TestKill kills a writer at random instants and looks at what it left. What
// a call that returned has done is there; a call under way happened or not.
func TestKill(t *testing.T) {
	rounds := crashRounds(t, 5)
	for _, what := range []string{"append", "train", "delete", "compact"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "store")
			must(t, openStore(t, path, CreateNew).Close())
			numbers, dict, under := []int{}, false, map[string]int{}
			for round := range rounds {
				next := 0
				for _, number := range numbers {
					next = max(next, number+1)
				}
				log := kill(t, path, what, next, round)
				before := numbers
				last := ""
				for _, line := range log {
					if line == "ok" {
						dict = dict || last == "train"
						last = ""
						continue
					}
					before = numbers
					numbers = follow(t, numbers, line)
					last, _, _ = strings.Cut(line, " ")
				}
				under[last]++
				allowed := [][]int{numbers}
				if last != "" {
					allowed = append(allowed, before)
				}
				numbers = inspect(t, path, allowed, dict, what == "compact" && round%2 == 0)
			}
			t.Logf("%d kills, by what was under way: %v", rounds, under)
		})
	}
}

// kill starts a victim, kills it at a random instant and returns what it said.
func kill(t *testing.T, path, what string, next, round int) []string {
	t.Helper()
	cmd := exec.Command(os.Args[0], path, what, strconv.Itoa(next), strconv.Itoa(round))
	cmd.Env = append(os.Environ(), victimEnv+"=1")
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewReader(out)
	var log []string
	wait := time.Duration(rand.Int64N(int64(40 * time.Millisecond)))
	for {
		// A line cut short announces something that was not begun.
		line, err := lines.ReadString('\n')
		if err != nil {
			break
		}
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "error") {
			t.Errorf("victim: %s", line)
		}
		if len(log) == 0 {
			time.AfterFunc(wait, func() { cmd.Process.Kill() })
		}
		log = append(log, line)
	}
	_ = cmd.Wait()
	return log
}

// follow does to the list what a line of the victim's says.
func follow(t *testing.T, numbers []int, line string) []int {
	t.Helper()
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "append":
		var from, to int
		_, err := fmt.Sscan(rest, &from, &to)
		must(t, err)
		numbers = slices.Clone(numbers)
		for i := from; i < to; i++ {
			numbers = append(numbers, i)
		}
	case "delete":
		var idxs []int64
		for text := range strings.SplitSeq(rest, ",") {
			if text != "" {
				idx, err := strconv.ParseInt(text, 10, 64)
				must(t, err)
				idxs = append(idxs, idx)
			}
		}
		numbers = deleteNumbers(numbers, idxs)
	}
	return numbers
}

// inspect reopens a store and returns which of the allowed contents it has.
func inspect(t *testing.T, path string, allowed [][]int, dict, compact bool) []int {
	t.Helper()
	r, err := Open(path, Options{})
	must(t, err)
	held := content(t, r, allowed)
	bad, err := r.Verify(t.Context(), nil, nil)
	if err != nil || bad > 0 {
		t.Errorf("%d bad records, %v", bad, err)
	}
	if dict && !r.HasDict() {
		t.Error("the dictionary is lost")
	}
	must(t, r.Close())
	w, err := Open(path, Options{Mode: Append})
	must(t, err)
	defer w.Close()
	if held < 0 || content(t, w, allowed) != held {
		t.Fatal("reader and writer see different stores, or a wrong one")
	}
	if compact {
		must(t, w.Compact(t.Context(), nil))
		if content(t, w, allowed[held:held+1]) != 0 {
			t.Fatal("compact changed a record")
		}
	}
	return allowed[held]
}
