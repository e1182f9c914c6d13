//go:build unix

package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Main runs the tests of m, ends what they shared, removes what they built, and
// returns the exit code:
//
//	func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }
func Main(m *testing.M) int {
	code := m.Run()
	for _, denied := range closeShared() {
		fmt.Fprintf(os.Stderr, "the template's policies do not let the functions do what they need: %s\n", denied)
		code = 1
	}
	if emulators.running != nil {
		emulators.running.Close()
	}
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	return code
}

// built are the binaries of this test process, each linked once.
var built struct {
	mu  sync.Mutex
	dir string
	bin map[string]string
}

// Binary builds a main package of the module and returns the path of the
// executable, the same one for the same arguments within a test process.
func Binary(tb testing.TB, pkg string, race bool) string {
	tb.Helper()
	built.mu.Lock()
	defer built.mu.Unlock()
	key := fmt.Sprintf("%s-race=%t", filepath.Base(pkg), race)
	if path, ok := built.bin[key]; ok {
		return path
	}
	if built.dir == "" {
		dir, err := os.MkdirTemp("", "mcpevents-test-")
		if err != nil {
			tb.Fatal(err)
		}
		built.dir, built.bin = dir, map[string]string{}
	}
	path := filepath.Join(built.dir, key)
	args := []string{"build", "-o", path}
	if race {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(tb.Context(), "go", append(args, pkg)...)
	cmd.Dir = Root(tb)
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	built.bin[key] = path
	return path
}

// Root is the directory of the module.
func Root(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		} else if !errors.Is(err, os.ErrNotExist) {
			tb.Fatal(err)
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			tb.Fatal("no go.mod above the test's directory")
		}
		dir = parent
	}
}
