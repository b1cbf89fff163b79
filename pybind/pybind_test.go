package pybind

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"loaderx/gopkg/errs"
	"loaderx/gopkg/handle"
	"loaderx/gopkg/mem"
)

func takeError(t *testing.T, status int64) (code errs.Code, text string) {
	t.Helper()
	if status >= 0 {
		t.Fatalf("status %d is no error", status)
	}
	buf := make([]byte, 1<<20)
	n := TakeError(-status, mem.Address(buf), int64(len(buf)))
	var got struct {
		Code errs.Code
		Text string
	}
	if err := json.Unmarshal(buf[:n], &got); err != nil {
		t.Fatal(err)
	}
	return got.Code, got.Text
}

func TestAPanicBecomesAnInternalError(t *testing.T) {
	call := func() (status int64) {
		enter()
		defer guard(&status)
		panic("boom")
	}
	code, text := takeError(t, call())
	if code != errs.ErrInternal.Code() || !strings.Contains(text, "boom") {
		t.Fatalf("%d %s", code, text)
	}
	if running.Load() != 0 {
		t.Fatalf("%d calls counted as running", running.Load())
	}
}

func TestErrorsStayUntilTheyFitTheBuffer(t *testing.T) {
	ticket := -fail(errs.ErrIndex)
	small := make([]byte, 4)
	need := TakeError(ticket, mem.Address(small), 4)
	if need <= 4 {
		t.Fatalf("need = %d", need)
	}
	buf := make([]byte, need)
	if got := TakeError(ticket, mem.Address(buf), need); got != need || !json.Valid(buf) {
		t.Fatalf("%d bytes: %s", got, buf)
	}
	if got := TakeError(ticket, mem.Address(buf), need); got != 0 {
		t.Fatal("an error can be taken twice")
	}
}

func TestJobsAreForgottenAtTheirEnd(t *testing.T) {
	id := HandleReserve()
	if err := table.Fill(id, handle.StartJob(nil)); err != nil {
		t.Fatal(err)
	}
	status := int64(0)
	for status == 0 {
		status = JobWait(id, 100)
	}
	if code, _ := takeError(t, status); code != errs.ErrInternal.Code() {
		t.Fatalf("code %d", code)
	}
	if NumHandles() != 0 {
		t.Fatalf("%d handles", NumHandles())
	}
	if code, _ := takeError(t, JobWait(id, 0)); code != errs.ErrClosed.Code() {
		t.Fatalf("second wait: code %d", code)
	}
}

func TestCodesAreUniqueAndTheListIsComplete(t *testing.T) {
	seen := map[errs.Code]string{}
	for _, e := range errs.All() {
		if other, ok := seen[e.Code()]; ok || e.Code() >= 0 || e.Name() == "" {
			t.Errorf("%q: code %d is taken by %q, not negative, or has no name", e.Name(), e.Code(), other)
		}
		seen[e.Code()] = e.Name()
		if !errors.Is(e, e) || errs.CodeOf(e) != e.Code() {
			t.Errorf("%q is not found by CodeOf", e.Name())
		}
	}
}

// TestEveryFunctionHasTheFormOfTheBoundary protects the rules of README.md: a
// function that gopy exports takes and returns integers only, counts itself
// and recovers panics.
func TestEveryFunctionHasTheFormOfTheBoundary(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	functions := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || !fn.Name.IsExported() {
				continue
			}
			functions++
			for _, field := range fn.Type.Params.List {
				if id, ok := field.Type.(*ast.Ident); !ok || id.Name != "int64" && id.Name != "uint64" {
					t.Errorf("%s: a parameter is not int64 or uint64", fn.Name.Name)
				}
				for _, name := range field.Names {
					if slices.Contains(reserved, name.Name) {
						t.Errorf("%s: parameter %s is a word of C, which gopy generates", fn.Name.Name, name.Name)
					}
				}
			}
			results := fn.Type.Results
			if results == nil || len(results.List) != 1 || len(results.List[0].Names) != 1 || results.List[0].Names[0].Name != "status" {
				t.Errorf("%s: the result is not (status int64)", fn.Name.Name)
			}
			if len(fn.Body.List) < 3 || !calls(fn.Body.List[0], "enter") || !calls(fn.Body.List[1], "guard") {
				t.Errorf("%s: does not begin with enter() and defer guard(&status)", fn.Name.Name)
			}
		}
	}
	if functions < 10 {
		t.Fatalf("looked at %d functions only", functions)
	}
}

// reserved are C's words that Go allows as names.
var reserved = []string{
	"auto", "char", "do", "double", "enum", "extern", "float", "inline", "int", "long", "register",
	"restrict", "short", "signed", "sizeof", "static", "typedef", "union", "unsigned", "void", "volatile", "while",
}

func calls(stmt ast.Stmt, name string) bool {
	var call *ast.CallExpr
	switch s := stmt.(type) {
	case *ast.ExprStmt:
		call, _ = s.X.(*ast.CallExpr)
	case *ast.DeferStmt:
		call = s.Call
	}
	if call == nil {
		return false
	}
	id, ok := call.Fun.(*ast.Ident)
	return ok && id.Name == name
}
