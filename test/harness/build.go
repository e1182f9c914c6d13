//go:build unix

package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// Main runs the tests of m, ends what they shared, and returns the
// exit code:
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
	return code
}

// built are the binaries that this test process has asked for.
var built struct {
	mu  sync.Mutex
	bin map[string]string
}

// Binary builds a main package of the module and returns the path of the
// executable. They lie in build/test, so that the next test process links only what changed.
func Binary(tb testing.TB, pkg string, race bool) string {
	tb.Helper()
	built.mu.Lock()
	defer built.mu.Unlock()
	key := fmt.Sprintf("%s-race=%t", filepath.Base(pkg), race)
	if path, ok := built.bin[key]; ok {
		return path
	}
	if built.bin == nil {
		built.bin = map[string]string{}
	}
	dir := filepath.Join(Root(tb), "build", "test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	unlock := lock(tb, filepath.Join(dir, "lock"))
	defer unlock()
	path := filepath.Join(dir, key)
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

// lock keeps other test processes from linking the same binary.
func lock(tb testing.TB, name string) (unlock func()) {
	tb.Helper()
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		tb.Fatal(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		tb.Fatal(err)
	}
	return func() { _ = f.Close() } // which gives the lock back
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
