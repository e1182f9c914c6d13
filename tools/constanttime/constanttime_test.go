// Package constanttime checks that code compares secrets in constant time, i.e. with crypto/subtle or crypto/hmac. Operators and
// functions that stop at the first difference tell an attacker, by the time they take, how much of a guess is right. A test with a clock
// would not find that reliably, so the check reads the code.
package constanttime

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

// secretName matches names of values that an attacker may try to guess.
var secretName = regexp.MustCompile(`(?i)secret|password|token|signature|hmac|digest|nonce|challenge|hash|^(sum|mac|sig)$`)

// leaking are functions that stop at the first difference.
var leaking = []string{
	"bytes.Compare", "bytes.Equal", "bytes.EqualFold", "bytes.HasPrefix", "cmp.Compare", "reflect.DeepEqual", "slices.Compare",
	"slices.Contains", "slices.Equal", "slices.Index", "strings.Compare", "strings.EqualFold", "strings.HasPrefix",
}

// comparisons returns the places in a package's source at which a value with the name of a secret is compared with something that is
// not a constant.
func comparisons(files map[string]any) (found []string, err error) {
	set, constants := token.NewFileSet(), map[string]bool{"nil": true, "true": true, "false": true}
	var parsed []*ast.File
	for name, text := range files {
		f, err := parser.ParseFile(set, name, text, 0)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, f)
		ast.Inspect(f, func(n ast.Node) bool {
			if d, ok := n.(*ast.GenDecl); ok && d.Tok == token.CONST {
				for _, spec := range d.Specs {
					for _, name := range spec.(*ast.ValueSpec).Names {
						constants[name.Name] = true
					}
				}
			}
			return true
		})
	}
	constant := func(e ast.Expr) bool {
		switch e := e.(type) {
		case *ast.BasicLit, *ast.CompositeLit:
			return true
		case *ast.Ident:
			return constants[e.Name]
		case *ast.SelectorExpr: // the name of an HTTP header, such as standardwebhooks.HeaderWebhookSignature
			return strings.HasPrefix(e.Sel.Name, "Header")
		case *ast.CallExpr:
			return types.ExprString(e.Fun) == "len"
		}
		return false
	}
	check := func(at ast.Node, operands ...ast.Expr) {
		if !slices.ContainsFunc(operands, constant) && slices.ContainsFunc(operands, isSecret) {
			found = append(found, set.Position(at.Pos()).String())
		}
	}
	for _, f := range parsed {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BinaryExpr:
				if n.Op == token.EQL || n.Op == token.NEQ {
					check(n, n.X, n.Y)
				}
			case *ast.SwitchStmt:
				for _, clause := range n.Body.List {
					for _, e := range clause.(*ast.CaseClause).List {
						if n.Tag != nil {
							check(e, n.Tag, e)
						}
					}
				}
			case *ast.CallExpr:
				if slices.Contains(leaking, types.ExprString(n.Fun)) {
					check(n, n.Args...)
				}
			}
			return true
		})
	}
	return found, nil
}

// isSecret reports whether the name of a variable or member sounds like a secret, also within an index, a slice or a conversion.
func isSecret(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return secretName.MatchString(e.Name)
	case *ast.SelectorExpr:
		return secretName.MatchString(e.Sel.Name)
	case *ast.IndexExpr:
		return isSecret(e.X)
	case *ast.SliceExpr:
		return isSecret(e.X)
	case *ast.CallExpr: // such as string(secret)
		return len(e.Args) == 1 && isSecret(e.Args[0])
	}
	return false
}

func TestSecretsAreComparedInConstantTime(t *testing.T) {
	for name, folder := range map[string]string{
		"AUT-02 keys of callers":                        "shared/auth",
		"EVX-12 the echo of a challenge":                "shared/events/webhook",
		"SRC-02 signatures and tokens of sources":       "shared/events/source/verify",
		"EVX-10 a secret and the one it replaces":       "shared/events/subscription",
		"AUT-02 keys of callers in the stand-alone app": "shared/app/standalone",
	} {
		t.Run(name, func(t *testing.T) {
			all := expect.Value(filepath.Glob(filepath.Join("../..", folder, "*.go")))(t)
			files := map[string]any{}
			for _, file := range all {
				if !strings.HasSuffix(file, "_test.go") {
					files[file] = nil
				}
			}
			if len(files) == 0 {
				t.Fatalf("%s has no Go files", folder)
			}
			found := expect.Value(comparisons(files))(t)
			for _, place := range found {
				t.Errorf("%s: got a comparison of a secret that stops at the first difference, want crypto/subtle or crypto/hmac", place)
			}
		})
	}
}

func TestComparisons(t *testing.T) {
	for _, tt := range []struct {
		name, code string
		want       int
	}{
		{"an operator", "func f(token, b string) bool { return token == b }", 1},
		{"a part", "func f(token, b string) bool { return b != token[1:] }", 1},
		{"a member", "func f(k key, b [32]byte) bool { return b == k.hash }", 1},
		{"a switch", "func f(token, b string) { switch token { case b: } }", 1},
		{"a conversion", `import "bytes"; func f(secret string, b []byte) bool { return bytes.Equal([]byte(secret), b) }`, 1},
		{"a constant", `const none = "x"; func f(token string) bool { return token == none || token != "" || len(token) == 3 }`, 0},
		{"another name", "func f(a, b string) bool { return a == b }", 0},
		{"constant time", `import "crypto/hmac"; func f(secret, b []byte) bool { return hmac.Equal(secret, b) }`, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := comparisons(map[string]any{"x.go": "package x; " + tt.code})
			expect.OK(t, err)
			expect.Len(t, "the places", got, tt.want)
		})
	}
}
