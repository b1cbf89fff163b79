package rowtable

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	// With this set to a path, TestPackVictim packs over it until it is killed.
	packVictimEnv = "ROWTABLE_PACK_VICTIM"
	// With this set to a number, TestPackKill kills so many times.
	packKillsEnv = "ROWTABLE_CRASH"
)

// victimRows are the rows of one generation of the table: all equal ones but
// for the row's number, so that a mixture of two would be seen.
func victimRows(generation int) []byte {
	src := make([]byte, 0, 3000*64)
	rng := rand.New(rand.NewPCG(uint64(generation), 1))
	for row := range 1000 + generation%7*300 {
		line := bytes.Repeat([]byte{byte(generation), byte(row), byte(rng.IntN(4)), 0x3f}, 16)
		src = append(src, line...)
	}
	return src
}

// victimOptions differ from one generation to the next.
func victimOptions(generation int) PackOptions {
	return PackOptions{
		RowBytes: 64, BlockRows: 50, Codec: Codec(generation % 3), Predictor: []Predictor{None, Auto}[generation%2],
		Deduplicate: generation%4 == 3, SHA256: generation%5 == 4,
	}
}

func TestPackVictim(t *testing.T) {
	path := os.Getenv(packVictimEnv)
	if path == "" {
		return
	}
	generation, err := strconv.Atoi(os.Getenv(packVictimEnv + "_FROM"))
	nofail(t, err)
	for ; ; generation++ {
		fmt.Println("begin", generation)
		src, opt := victimRows(generation), victimOptions(generation)
		if generation%3 == 0 {
			_, err = Pack(t.Context(), src, path, opt, nil, nil)
		} else {
			var w *Writer
			w, err = NewWriter(path, opt)
			for at := 0; at < len(src) && err == nil; at += 64 * 100 {
				err = w.Write(t.Context(), src[at:at+64*100])
			}
			if err == nil {
				_, err = w.Finish(t.Context())
			}
		}
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println("done", generation)
	}
}

// TestPackKill kills a process at random instants while it packs over a table
// again and again. The table is always a whole one, the last that was finished
// or the one under way; and the next pack leaves no other file.
func TestPackKill(t *testing.T) {
	kills := 12
	if text := os.Getenv(packKillsEnv); text != "" {
		var err error
		kills, err = strconv.Atoi(text)
		nofail(t, err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "table")
	_, err := Pack(t.Context(), victimRows(0), path, victimOptions(0), nil, nil)
	nofail(t, err)
	finished, litter, newer := 0, 0, 0
	for range kills {
		begun, done := killPack(t, path, finished+1)
		finished = max(finished, done)
		rows := reading(t, path).all()
		switch {
		case bytes.Equal(rows, victimRows(finished)):
		case begun > finished && bytes.Equal(rows, victimRows(begun)):
			finished, newer = begun, newer+1
		default:
			t.Fatalf("the table is neither that of generation %d nor of %d", finished, begun)
		}
		entries, err := os.ReadDir(dir)
		nofail(t, err)
		litter += len(entries) - 1
		_, err = Pack(t.Context(), victimRows(finished), path, victimOptions(finished), nil, nil)
		nofail(t, err)
		if entries, err = os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Fatalf("the next pack left %v, %v", entries, err)
		}
	}
	t.Logf("%d kills, %d generations, %d of them unannounced, %d files left for the next pack", kills, finished, newer, litter)
}

// killPack starts a victim, kills it at a random instant, and returns the last
// generation that it began and the last that it finished.
func killPack(t *testing.T, path string, from int) (begun, done int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestPackVictim$")
	cmd.Env = append(os.Environ(), packVictimEnv+"="+path, packVictimEnv+"_FROM="+strconv.Itoa(from))
	out, err := cmd.StdoutPipe()
	nofail(t, err)
	nofail(t, cmd.Start())
	defer func() { _ = cmd.Wait() }()
	lines := bufio.NewReader(out)
	for first := true; ; first = false {
		line, err := lines.ReadString('\n')
		if err != nil {
			return begun, done
		}
		if first {
			wait := time.Duration(rand.Int64N(int64(60 * time.Millisecond)))
			time.AfterFunc(wait, func() { _ = cmd.Process.Kill() })
		}
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "begin":
			begun, err = strconv.Atoi(rest)
		case "done":
			done, err = strconv.Atoi(rest)
		default:
			err = fmt.Errorf("victim: %s", line)
		}
		nofail(t, err)
	}
}
