// Package constanttime shows that secrets are compared in constant time: by the text of
// the code, since a clock on a shared machine tells too little to fail a test by.
//
// [Check] lets no operator and no function compare texts that are not constants. [Measure] is a
// statistic for benchmarks, after dudect (Reparaz, Balasch, Verbauwhede, 2017). Only tests
// import this package.
package constanttime

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"slices"
	"testing"
)

// leaking are functions that end at the first difference.
var leaking = []string{
	"bytes.Compare", "bytes.Contains", "bytes.Equal", "bytes.EqualFold", "bytes.HasPrefix", "bytes.HasSuffix", "bytes.Index",
	"cmp.Compare", "maps.Equal", "reflect.DeepEqual", "slices.Compare", "slices.Contains", "slices.Equal", "slices.Index",
	"strings.Compare", "strings.EqualFold", "strings.HasSuffix", "strings.Index",
}

// Rules are what the text of some files must keep to.
type Rules struct {
	Files []string
	// Allowed are comparisons of values that are no secrets, as they are written, with the reason.
	Allowed map[string]string
	// Comparers are the functions that compare secrets, with the call that does it. There may be no other call of
	// a function of crypto/hmac or crypto/subtle that compares.
	Comparers map[string]string
	// Whole are functions whose loops go on to their end, whatever they find.
	Whole []string
}

// Check fails t for each line that breaks a rule, and for a rule that no line is about.
func Check(t testing.TB, rules Rules) {
	t.Helper()
	for _, fault := range faults(t, rules) {
		t.Error(fault)
	}
}

func faults(t testing.TB, rules Rules) []string {
	t.Helper()
	c := &checker{rules: rules, fset: token.NewFileSet(), seen: map[string]bool{}, constants: map[string]bool{"nil": true, "true": true, "false": true}}
	var files []*ast.File
	for _, name := range rules.Files {
		f, err := parser.ParseFile(c.fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
		c.collect(f)
	}
	for _, f := range files {
		for _, decl := range f.Decls {
			name := ""
			if fn, ok := decl.(*ast.FuncDecl); ok {
				name = fn.Name.Name
			}
			ast.Inspect(decl, func(n ast.Node) bool { c.node(name, n); return true })
		}
	}
	for rule := range rules.Allowed {
		c.expect(rule)
	}
	for name, call := range rules.Comparers {
		c.expect(name + ": " + call)
	}
	for _, name := range rules.Whole {
		c.expect("loop in " + name)
	}
	return c.faults
}

type checker struct {
	rules     Rules
	fset      *token.FileSet
	constants map[string]bool
	seen      map[string]bool
	faults    []string
}

func (c *checker) expect(what string) {
	if !c.seen[what] {
		c.faults = append(c.faults, "there is no "+what)
	}
}

func (c *checker) fail(at ast.Node, what string) {
	c.faults = append(c.faults, c.fset.Position(at.Pos()).String()+": "+what)
}

// collect learns the names of constants.
func (c *checker) collect(f *ast.File) {
	ast.Inspect(f, func(n ast.Node) bool {
		if d, ok := n.(*ast.GenDecl); ok && d.Tok == token.CONST {
			for _, spec := range d.Specs {
				for _, name := range spec.(*ast.ValueSpec).Names {
					c.constants[name.Name] = true
				}
			}
		}
		return true
	})
}

func (c *checker) node(function string, n ast.Node) {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		text := types.ExprString(n)
		if (n.Op == token.EQL || n.Op == token.NEQ) && !c.harmless(n.X) && !c.harmless(n.Y) {
			c.seen[text] = true
			if c.rules.Allowed[text] == "" {
				c.fail(n, "compares "+text)
			}
		}
	case *ast.SwitchStmt:
		for _, clause := range n.Body.List {
			for _, e := range clause.(*ast.CaseClause).List {
				if n.Tag != nil && !c.harmless(e) {
					c.fail(e, "compares in a switch with "+types.ExprString(e))
				}
			}
		}
	case *ast.CallExpr:
		c.call(function, n)
	case *ast.ForStmt:
		c.loop(function, n.Body)
	case *ast.RangeStmt:
		c.loop(function, n.Body)
	}
}

// harmless reports whether an expression is a constant or a length.
func (c *checker) harmless(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BasicLit:
		return true
	case *ast.Ident:
		return c.constants[e.Name]
	case *ast.CallExpr:
		f, ok := e.Fun.(*ast.Ident)
		return ok && f.Name == "len"
	case *ast.SelectorExpr: // of another package
		p, ok := e.X.(*ast.Ident)
		return ok && p.Obj == nil && ast.IsExported(e.Sel.Name) && !c.constants[p.Name]
	}
	return false
}

func (c *checker) call(function string, n *ast.CallExpr) {
	text, name := types.ExprString(n), types.ExprString(n.Fun)
	switch {
	case slices.Contains(leaking, name):
		c.seen[text] = true
		if c.rules.Allowed[text] == "" {
			c.fail(n, "compares by "+text)
		}
	case name == "hmac.Equal" || name == "subtle.ConstantTimeCompare":
		c.seen[function+": "+text] = true
		if c.rules.Comparers[function] != text {
			c.fail(n, function+" compares secrets by "+text)
		}
	}
}

// loop reports a statement that leaves a loop early.
func (c *checker) loop(function string, body *ast.BlockStmt) {
	if !slices.Contains(c.rules.Whole, function) {
		return
	}
	c.seen["loop in "+function] = true
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ReturnStmt:
			c.fail(n, function+" leaves a loop")
		case *ast.BranchStmt:
			if n.Tok != token.CONTINUE {
				c.fail(n, function+" leaves a loop by "+n.Tok.String())
			}
		}
		return true
	})
}
