// Package gopkg holds no code: its test checks rules of the whole tree that no
// compiler knows.
package gopkg

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const (
	module   = "loaderx"
	maxLines = 500
)

// source is one hand-written Go file.
type source struct {
	path string // from the module's root, with slashes
	test bool
	file *ast.File
}

// root returns the module's directory.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// walk calls visit for every file below the given folders; names starting with
// a dot or an underscore, testdata and build output are left out.
func walk(t *testing.T, folders []string, visit func(rel, full string)) {
	t.Helper()
	dir := root(t)
	for _, folder := range folders {
		err := filepath.WalkDir(filepath.Join(dir, folder), func(full string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name := d.Name()
			if d.IsDir() {
				if name == "testdata" || name == "data" || strings.HasPrefix(name, "_") || strings.HasPrefix(name, ".") {
					return fs.SkipDir
				}
				return nil
			}
			rel, err := filepath.Rel(dir, full)
			if err != nil {
				return err
			}
			visit(filepath.ToSlash(rel), full)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// sources parses every Go file of the engine and the boundary.
func sources(t *testing.T) []source {
	t.Helper()
	var found []source
	walk(t, []string{"gopkg", "pybind"}, func(rel, full string) {
		if !strings.HasSuffix(rel, ".go") {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), full, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, source{rel, strings.HasSuffix(rel, "_test.go"), file})
	})
	if len(found) < 5 {
		t.Fatalf("found %d Go files: the test looks in the wrong place", len(found))
	}
	return found
}

// imports returns the import paths of a file.
func (s source) imports(t *testing.T) []string {
	t.Helper()
	var paths []string
	for _, spec := range s.file.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, p)
	}
	return paths
}

// TestUnsafeStaysInMem protects the rule that one room can be read to know
// every place where memory safety rests on care. Linknames and C code are ways
// around unsafe, so they fall under it.
func TestUnsafeStaysInMem(t *testing.T) {
	for _, s := range sources(t) {
		if path.Dir(s.path) == "gopkg/mem" {
			continue
		}
		for _, p := range s.imports(t) {
			// The C ABI is C code by nature; it still takes its views from mem.
			if p == "unsafe" || p == "C" && path.Dir(s.path) != "gopkg/capi" {
				t.Errorf("%s imports %q: only gopkg/mem may", s.path, p)
			}
		}
		for _, group := range s.file.Comments {
			for _, comment := range group.List {
				if strings.HasPrefix(comment.Text, "//go:linkname ") {
					t.Errorf("%s uses go:linkname", s.path)
				}
			}
		}
	}
}

// TestImportsGoOneWay protects Python -> pybind -> gopkg: the engine knows
// nothing of Python, and the boundary translates for the engine alone.
func TestImportsGoOneWay(t *testing.T) {
	for _, s := range sources(t) {
		engine := strings.HasPrefix(s.path, "gopkg/")
		for _, p := range s.imports(t) {
			first, _, _ := strings.Cut(p, "/")
			switch {
			case engine && strings.HasPrefix(p, module+"/") && !strings.HasPrefix(p, module+"/gopkg/"):
				t.Errorf("%s imports %s: gopkg may import gopkg only", s.path, p)
			case engine && strings.Contains(p, "gopy"):
				t.Errorf("%s imports %s: the engine knows nothing of Python", s.path, p)
			case !engine && !s.test && strings.Contains(first, "."):
				t.Errorf("%s imports %s: pybind translates for gopkg and has no libraries of its own", s.path, p)
			}
		}
	}
}

// formatConstants are the literals that make up the file formats: whoever
// changes one must find it in a single place.
var formatConstants = []string{
	"ZREC", "meta.zr", "dict.zr", "journal.zr", ".zr", ".tmp", "schema.msgpack", "loaderx-zrecord",
	"MEFTNAT1",
}

// TestFormatConstantsLiveOnce protects magics, versions and file names from
// being spelled out a second time.
func TestFormatConstantsLiveOnce(t *testing.T) {
	places := map[string][]string{}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		ast.Inspect(s.file, func(node ast.Node) bool {
			literal, ok := node.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			if value, err := strconv.Unquote(literal.Value); err == nil {
				places[value] = append(places[value], s.path)
			}
			return true
		})
	}
	for _, constant := range formatConstants {
		if found := places[constant]; len(found) != 1 {
			t.Errorf("%q is spelled out in %v: want exactly the file that defines the layout", constant, found)
		}
	}
}

// TestFilesStayShort protects readers: a file that needs a map is two files.
func TestFilesStayShort(t *testing.T) {
	folders := []string{"gopkg", "pybind", "loaderx", "ngram_store", "tests", "tools", "examples"}
	walk(t, folders, func(rel, full string) {
		if !strings.HasSuffix(rel, ".go") && !strings.HasSuffix(rel, ".py") {
			return
		}
		text, err := os.ReadFile(full)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.HasPrefix(text, []byte("// Code generated")) {
			return // its generator is what people read
		}
		if lines := bytes.Count(text, []byte("\n")); lines > maxLines {
			t.Errorf("%s has %d lines, more than %d", rel, lines, maxLines)
		}
	})
}
