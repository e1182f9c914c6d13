// Package layout tests that packages import each other only as docs/internals/architecture.md allows.
package layout

import (
	"bytes"
	"encoding/json"
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
					if rule.not(imported) {
						t.Errorf("%s imports %s", p.ImportPath, imported)
					}
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
			if call.Match(line) {
				t.Errorf("%s:%d logs with the default logger: %s", path, n+1, line)
			}
		}
		return nil
	}))
	if files == 0 {
		t.Error("no file was checked")
	}
}
