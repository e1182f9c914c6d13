package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
)

var testName = regexp.MustCompile("^(Test|Fuzz)")

// document gives the tests what their functions' comments say, which may name
// requirements too. root is the module's directory.
func document(root string, tests []test) error {
	type key struct{ pkg, name string }
	said := map[key]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && testName.MatchString(f.Name.Name) {
				said[key{filepath.ToSlash(dir), f.Name.Name}] = f.Doc.Text()
			}
		}
		return nil
	})
	for i, t := range tests {
		tests[i].doc = said[key{t.pkg, t.name}] // of the function itself, not of its subtests
	}
	return err
}
