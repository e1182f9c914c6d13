// Package reference checks that pages of docs/reference are complete.
package reference

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/test/expect"
)

const (
	root       = "../.."
	logPage    = root + "/docs/reference/logs.md"
	metricPage = root + "/docs/reference/metrics.md"
)

// levels are the methods of a logger, and the levels of their lines.
var levels = map[string]string{
	"Debug": "debug", "DebugContext": "debug", "Info": "info", "InfoContext": "info",
	"Warn": "warn", "WarnContext": "warn", "Error": "error", "ErrorContext": "error",
	"Log": "", "LogAttrs": "", "NewRecord": "", // their level is a variable
}

// TestTheLogReferenceIsComplete checks that the reference has every log message, and that the program can log every message of the
// reference.
func TestTheLogReferenceIsComplete(t *testing.T) {
	found := messages(t)
	listed := rows(t, logPage, "## Log messages")
	for message, level := range found {
		row, ok := listed[message]
		if !ok {
			t.Errorf("%s: no row for the log message %q", logPage, message)
			continue
		}
		expect.Contains(t, "the level of "+message, row[0], level)
	}
	for _, message := range slices.Sorted(maps.Keys(listed)) {
		if _, ok := found[message]; !ok {
			t.Errorf("%s: the code has no log message %q", logPage, message)
		}
	}
	expect.AtLeast(t, "the number of log messages", len(found), 50)
}

// TestTheMetricsReferenceIsComplete compares the page with [metric.Table].
func TestTheMetricsReferenceIsComplete(t *testing.T) {
	found := map[string]bool{}
	for _, d := range metric.Table {
		found[d.Name] = true
	}
	listed := rows(t, metricPage, "# Metrics")
	if got, want := slices.Sorted(maps.Keys(listed)), slices.Sorted(maps.Keys(found)); !slices.Equal(got, want) {
		t.Errorf("%s lists the metrics %q, the code has %q", metricPage, got, want)
	}
}

// rows returns the rows of the tables below a heading of a page, by the text in their first cell.
func rows(t *testing.T, page, heading string) map[string][]string {
	t.Helper()
	_, section, ok := strings.Cut(string(expect.Value(os.ReadFile(page))(t)), heading+"\n")
	if !ok {
		t.Fatalf("%s has no section %q", page, heading)
	}
	if i := strings.Index(section, "\n## "); i >= 0 {
		section = section[:i]
	}
	all := map[string][]string{}
	first := regexp.MustCompile("^\\| `([^`]+)` \\|")
	for line := range strings.Lines(section) {
		m := first.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if _, twice := all[m[1]]; twice {
			t.Errorf("%s lists %q twice", page, m[1])
		}
		cells := strings.Split(strings.TrimSpace(line), " | ")
		for _, cell := range cells[1:] {
			expect.Differ(t, "a cell in the row of "+m[1], strings.Trim(cell, "| "), "")
		}
		all[m[1]] = cells[1:]
	}
	return all
}

// messages returns the log messages of the product's code with their levels.
func messages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	add := func(message, level string) {
		if had, ok := found[message]; ok && had != level {
			level = "" // both are listed
		}
		found[message] = level
	}
	for _, f := range sources(t) {
		for _, decl := range f.file.Decls {
			fn, _ := decl.(*ast.FuncDecl)
			passesOn := fn != nil && takesMessage(fn)
			ast.Inspect(decl, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CompositeLit: // a metric.Tally logs its Text
					if sel, ok := n.Type.(*ast.SelectorExpr); ok && sel.Sel.Name == "Tally" || isIdent(n.Type, "Tally") {
						for _, e := range n.Elts {
							if kv, ok := e.(*ast.KeyValueExpr); ok && isIdent(kv.Key, "Text") {
								text, _ := literal(kv.Value)
								add(text, "warn")
							}
						}
					}
				case *ast.CallExpr:
					sel, ok := n.Fun.(*ast.SelectorExpr)
					if !ok {
						return true
					}
					level, isLogger := levels[sel.Sel.Name]
					switch {
					case isLogger && logger(sel.X):
					case (sel.Sel.Name == "log" || sel.Sel.Name == "LogError") && len(n.Args) > 1: // a method that takes the message
						level = "error"
					default:
						return true
					}
					at := 0 // of the message among the arguments
					switch {
					case sel.Sel.Name == "Log" || sel.Sel.Name == "LogAttrs" || sel.Sel.Name == "NewRecord":
						at = 2
					case strings.HasSuffix(sel.Sel.Name, "Context") || sel.Sel.Name == "log" || sel.Sel.Name == "LogError":
						at = 1
					}
					if at >= len(n.Args) {
						return true
					}
					if text, ok := literal(n.Args[at]); ok {
						add(text, level)
					} else if !passesOn {
						t.Errorf("%s: the log message is not constant", f.fset.Position(n.Pos()))
					}
				}
				return true
			})
		}
	}
	return found
}

// takesMessage reports whether a function logs a message of its caller's: the method log of a
// type, and the lines of a metric.Tally.
func takesMessage(fn *ast.FuncDecl) bool {
	return fn.Recv != nil && (fn.Name.Name == "log" || fn.Name.Name == "LogError" || fn.Name.Name == "write")
}

// logger reports whether an expression is a logger, by its name.
func logger(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name == "slog" || strings.HasSuffix(strings.ToLower(x.Name), "log")
	case *ast.SelectorExpr:
		return slices.Contains([]string{"log", "Log", "Logger", "logger"}, x.Sel.Name)
	case *ast.CallExpr:
		return logger(x.Fun)
	}
	return false
}

func isIdent(x ast.Expr, name string) bool {
	id, ok := x.(*ast.Ident)
	return ok && id.Name == name
}

func literal(x ast.Expr) (string, bool) {
	lit, ok := x.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}

type source struct {
	fset *token.FileSet
	file *ast.File
}

// sources parses the code of the product: what runs on AWS and embedded, and the command line.
func sources(t *testing.T) (all []source) {
	t.Helper()
	for _, dir := range []string{"shared", "functions", "cmd", "server", "client"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && strings.HasSuffix(d.Name(), "test"): // suites, such as queuetest
				return filepath.SkipDir
			case filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
			all = append(all, source{fset, file})
			return err
		})
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	return all
}
