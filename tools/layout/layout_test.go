// Package layout tests that packages import each other only as docs/internals/architecture.md allows.
package layout

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

const module = "github.com/mcp-events/mcpevents/"

// layers are the folders of shared/. A package imports its own layer and the layers after it.
var layers = []string{"app", "operate", "mcp", "conversation", "gateway", "events", "storage", "auth", "protocol", "platform"}

type listed struct {
	ImportPath string
	Imports    []string
}

// list runs go list with the arguments and returns its output as values of type T.
func list[T any](t *testing.T, args ...string) (all []T) {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir, cmd.Stderr = "../..", os.Stderr
	for d := json.NewDecoder(bytes.NewReader(expect.Value(cmd.Output())(t))); d.More(); {
		var one T
		expect.OK(t, d.Decode(&one))
		all = append(all, one)
	}
	return all
}

// packages returns all packages of the module and their imports. It ignores the imports of tests.
func packages(t *testing.T) []listed {
	t.Helper()
	all := list[listed](t, "-json=ImportPath,Imports", "./...")
	for n, p := range all {
		all[n].ImportPath = strings.TrimPrefix(p.ImportPath, module)
		for i := range p.Imports {
			p.Imports[i] = strings.TrimPrefix(p.Imports[i], module)
		}
	}
	return all
}

// layer returns the position of a package's layer in layers, or -1 for a package outside of shared/.
func layer(path string) int {
	path, shared := strings.CutPrefix(path, "shared/")
	if !shared {
		return -1
	}
	name, _, _ := strings.Cut(path, "/")
	return slices.Index(layers, name)
}

// TestImportsPointDown checks that a package of shared/ imports only its own layer and lower ones.
func TestImportsPointDown(t *testing.T) {
	found := map[string]bool{}
	for _, p := range packages(t) {
		if !strings.HasPrefix(p.ImportPath, "shared/") {
			continue
		}
		own := layer(p.ImportPath)
		if own < 0 {
			t.Errorf("%s is in no layer, want one of %s", p.ImportPath, strings.Join(layers, ", "))
			continue
		}
		found[layers[own]] = true
		for _, imported := range p.Imports {
			if to := layer(imported); to >= 0 && to < own {
				t.Errorf("%s imports %s, which is above it (%s)", p.ImportPath, imported, strings.Join(layers, " > "))
			}
		}
	}
	expect.Equal(t, "layers with packages", len(found), len(layers))
}

// TestPackagesImportOnlyWhatTheyMay checks rules for single packages.
func TestPackagesImportOnlyWhatTheyMay(t *testing.T) {
	under := func(folders ...string) func(string) bool {
		return func(path string) bool {
			return slices.ContainsFunc(folders, func(f string) bool { return path == f || strings.HasPrefix(path, f+"/") })
		}
	}
	domain := under("net/http", "database/sql", "github.com/aws", "modernc.org")
	rules := []struct {
		name    string
		of, not func(path string) bool
	}{
		{"libraries do not import the programs", under("shared", "client", "server"), under("functions", "cmd")},
		{"shared packages do not use the server", under("shared"), under("server")},
		{"the endpoint uses the gateway through its data", under("shared/mcp"), func(path string) bool {
			return under("shared/gateway")(path) && path != "shared/gateway/api"
		}},
		{"events and subscriptions import no transport and no cloud package directly", under("shared/events/event", "shared/events/match", "shared/events/subscription"), domain},
	}
	all := packages(t)
	for _, rule := range rules {
		t.Run(rule.name, func(t *testing.T) {
			covered := 0
			for _, p := range all {
				if !rule.of(p.ImportPath) {
					continue
				}
				covered++
				for _, imported := range p.Imports {
					expect.True(t, p.ImportPath+" does not import "+imported, !rule.not(imported))
				}
			}
			if covered == 0 {
				t.Error("no package is covered by the rule")
			}
		})
	}
}

// TestPackagesLogWithTheirOwnLogger checks that no package of shared/ logs with the functions of package slog. A program that embeds the
// server gives it a logger, and expects all lines there. The only exception is package records, whose lists are functions without a logger.
func TestPackagesLogWithTheirOwnLogger(t *testing.T) {
	call := regexp.MustCompile(`\bslog\.(Debug|Info|Warn|Error|Log)(Context)?\(`)
	files := 0
	expect.OK(t, filepath.WalkDir("../../shared", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "/records/records.go") {
			return err
		}
		files++
		for n, line := range bytes.Split(expect.Value(os.ReadFile(path))(t), []byte("\n")) {
			expect.True(t, fmt.Sprintf("%s:%d does not log with the default logger: %s", path, n+1, line), !call.Match(line))
		}
		return nil
	}))
	if files == 0 {
		t.Error("no file was checked")
	}
}

var update = flag.Bool("update", false, "write testdata/api.txt")

// apiFile lists the public API, so that a change of it is seen in review.
const apiFile = "testdata/api.txt"

// TestPublicAPI lists the exported names of the packages client and server. They must not mention a type of shared/, because the packages
// there change with every version.
func TestPublicAPI(t *testing.T) {
	var lines []string
	for _, p := range load(t, "client", "server") {
		short := types.RelativeTo(p)
		qualify := func(other *types.Package) string {
			if name := short(other); name != other.Path() {
				return name
			}
			return other.Path()
		}
		for _, name := range p.Scope().Names() {
			o := p.Scope().Lookup(name)
			if !o.Exported() {
				continue
			}
			for _, line := range describe(o, qualify) {
				lines = append(lines, p.Name()+": "+line)
			}
		}
	}
	for _, line := range lines {
		if strings.Contains(line, module) {
			t.Errorf("the public API has %q, want no type of this module outside of client and server", line)
		}
	}
	got := strings.Join(lines, "\n") + "\n"
	if *update {
		expect.OK(t, os.WriteFile(apiFile, []byte(got), 0o600))
	}
	was := strings.Split(string(expect.Value(os.ReadFile(apiFile))(t)), "\n")
	for _, line := range lines {
		expect.Has(t, apiFile, was, line)
	}
	for _, line := range was {
		if line != "" && !slices.Contains(lines, line) {
			t.Errorf("the public API lacks %q of %s: say so in the changelog, and run go test ./tools/layout -update", line, apiFile)
		}
	}
}

// describe returns a line for an exported object, and one for each of its exported fields and methods.
func describe(o types.Object, qualify types.Qualifier) (lines []string) {
	name, isType := o.(*types.TypeName)
	if !isType {
		return []string{types.ObjectString(o, qualify)}
	}
	if name.IsAlias() {
		return []string{"type " + name.Name() + " = " + types.TypeString(types.Unalias(name.Type()), qualify)}
	}
	underlying := name.Type().Underlying()
	switch u := underlying.(type) {
	case *types.Struct:
		lines = append(lines, "type "+name.Name()+" struct")
		for f := range u.Fields() {
			if f.Exported() {
				lines = append(lines, fmt.Sprintf("field %s.%s %s", name.Name(), f.Name(), types.TypeString(f.Type(), qualify)))
			}
		}
	case *types.Interface:
		lines = append(lines, "type "+name.Name()+" interface")
	default:
		lines = append(lines, "type "+name.Name()+" "+types.TypeString(u, qualify))
	}
	all := types.NewMethodSet(types.NewPointer(name.Type()))
	if types.IsInterface(underlying) {
		all = types.NewMethodSet(name.Type())
	}
	for m := range all.Methods() {
		if m.Obj().Exported() {
			lines = append(lines, fmt.Sprintf("method %s.%s%s", name.Name(), m.Obj().Name(),
				strings.TrimPrefix(types.TypeString(m.Type(), qualify), "func")))
		}
	}
	return lines
}

// load type-checks packages of this module from the export data that the go command keeps in its cache.
func load(t *testing.T, names ...string) (loaded []*types.Package) {
	t.Helper()
	args := []string{"-export", "-deps", "-json=ImportPath,Export"}
	for _, name := range names {
		args = append(args, module+name)
	}
	files := map[string]string{}
	for _, p := range list[struct{ ImportPath, Export string }](t, args...) {
		files[p.ImportPath] = p.Export
	}
	from := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(files[path]) })
	for _, name := range names {
		loaded = append(loaded, expect.Value(from.Import(module+name))(t))
	}
	return loaded
}
