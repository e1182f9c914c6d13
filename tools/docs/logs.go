package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// message is a line that the programs can log.
type message struct {
	level, text, where string
	attributes         []string
}

// levels are the methods of slog that log, and where the text stands among their arguments.
var levels = map[string]struct {
	level string
	text  int
}{
	"Debug": {"debug", 0}, "Info": {"info", 0}, "Warn": {"warn", 0}, "Error": {"error", 0},
	"DebugContext": {"debug", 1}, "InfoContext": {"info", 1}, "WarnContext": {"warn", 1}, "ErrorContext": {"error", 1},
	"Log": {"info or warn", 2}, "LogAttrs": {"info or warn", 2},
}

// logTable makes the page of all log messages. Only constant texts are found, which is what a log line should begin with.
func logTable(root string) ([]byte, error) {
	var all []message
	for _, dir := range []string{"server", "client", "shared", "functions", "cmd"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(filepath.Dir(path), "test") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			where, err := filepath.Rel(root, filepath.Dir(path))
			all = append(all, messages(file, filepath.ToSlash(where))...)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(all, func(a, b message) int {
		return cmp.Or(strings.Compare(strings.ToLower(a.text), strings.ToLower(b.text)), strings.Compare(a.where, b.where), strings.Compare(a.level, b.level))
	})
	all = slices.CompactFunc(all, func(a, b message) bool { return a.text == b.text && a.where == b.where && a.level == b.level })
	var b bytes.Buffer
	b.WriteString(`# Log messages

Written by ` + "`make log-table`" + ` from the code; do not edit.

A line has a constant message, by which it can be searched for, and attributes. Embedded, the log goes to standard error: text on a terminal, else JSON. On AWS all functions share the log
group of the stack's output ` + "`LogGroup`" + `. No line has a secret, a payload, or anything of a conversation. *error* and *warn* deserve a look; what to do is in [Troubleshooting](../how-to/troubleshoot.md).
Lines that are [metrics](metrics.md) come at most every ten seconds.

| message | level | attributes | from |
|---|---|---|---|
`)
	for _, m := range all {
		var attributes []string
		for _, a := range m.attributes {
			attributes = append(attributes, "`"+a+"`")
		}
		fmt.Fprintf(&b, "| %s | %s | %s | `%s` |\n", strings.ReplaceAll(m.text, "|", `\|`), m.level, strings.Join(attributes, ", "), m.where)
	}
	return b.Bytes(), nil
}

// messages finds what a file logs: calls like log.Warn("text", "key", value).
func messages(file *ast.File, where string) []message {
	var all []message
	ast.Inspect(file, func(n ast.Node) bool {
		if made, ok := n.(*ast.CompositeLit); ok {
			all = append(all, tally(made, where)...)
		}
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		fun, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		at, ok := levels[fun.Sel.Name]
		if !ok || len(call.Args) <= at.text || !isLogger(fun.X) {
			return true
		}
		text, ok := literal(call.Args[at.text])
		if !ok {
			return true
		}
		m := message{level: at.level, text: text, where: where}
		for i := at.text + 1; i < len(call.Args); i++ {
			if key, ok := literal(call.Args[i]); ok {
				m.attributes = append(m.attributes, key)
				i++ // its value
			} else if attr, ok := call.Args[i].(*ast.CallExpr); ok && len(attr.Args) > 1 {
				if key, ok := literal(attr.Args[0]); ok {
					m.attributes = append(m.attributes, key)
				}
			}
		}
		all = append(all, m)
		return true
	})
	return all
}

// tally finds the line of a counter: metric.Tally{Text: "text"}.
func tally(made *ast.CompositeLit, where string) []message {
	name := ""
	switch t := made.Type.(type) {
	case *ast.Ident:
		name = t.Name
	case *ast.SelectorExpr:
		name = t.Sel.Name
	}
	if name != "Tally" {
		return nil
	}
	for _, e := range made.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if key, ok := kv.Key.(*ast.Ident); ok && key.Name == "Text" {
				if text, ok := literal(kv.Value); ok {
					return []message{{level: "warn", text: text, where: where}}
				}
			}
		}
	}
	return nil
}

// isLogger tells loggers from other things with such methods, as a test or an error have.
func isLogger(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return strings.Contains(strings.ToLower(x.Name), "log")
	case *ast.SelectorExpr:
		return strings.Contains(strings.ToLower(x.Sel.Name), "log")
	case *ast.CallExpr:
		return isLogger(x.Fun)
	}
	return false
}

func literal(x ast.Expr) (string, bool) {
	lit, ok := x.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}
