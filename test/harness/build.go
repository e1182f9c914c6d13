//go:build unix

package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
)

// Main runs the tests of m, ends the emulators that they shared, and returns the exit code:
//
//	func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }
func Main(m *testing.M) int {
	code := m.Run()
	if emulators.running != nil {
		emulators.running.Close()
	}
	return code
}

// RaceVariable has servers built with the race detector: make test-full. The processes of the black-box
// tests themselves are clients, which have nothing to show by it.
const RaceVariable = "MCPEVENTS_TEST_RACE"

func race() bool { return os.Getenv(RaceVariable) != "" }

// built are the binaries that this test process has asked for.
var built struct {
	mu  sync.Mutex
	bin map[string]string
}

// Binary builds a main package of the module and returns the path of the
// executable. The executable stays in build/test, so that the next test process links it again only after a change.
func Binary(tb testing.TB, pkg string, race bool) string {
	tb.Helper()
	key := fmt.Sprintf("%s-race=%t", filepath.Base(pkg), race)
	return build(tb, key, race, pkg)
}

// Functions builds all functions and returns the executables by CodeUri. It builds them without the race detector because
// a process serves one invocation at a time, and the tests of the stand-alone server cover the shared code.
func Functions(tb testing.TB) map[string]string {
	tb.Helper()
	mains, err := filepath.Glob(filepath.Join(Root(tb), "functions", "*", "main.go"))
	if err != nil || len(mains) == 0 {
		tb.Fatalf("no functions: %v", err)
	}
	dir := build(tb, "functions"+string(filepath.Separator), false, "./functions/...")
	binaries := map[string]string{}
	for _, main := range mains {
		name := filepath.Base(filepath.Dir(main))
		binaries["functions/"+name] = filepath.Join(dir, name)
	}
	return binaries
}

// build builds as is shipped: without cgo, and functions without RPC. All tests ask for the
// same, so that a package is compiled once for all of them. With a separator at its end, out is a directory.
func build(tb testing.TB, out string, race bool, pkg string) string {
	tb.Helper()
	built.mu.Lock()
	defer built.mu.Unlock()
	if path, ok := built.bin[out]; ok {
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
	path := dir + string(filepath.Separator) + out
	args, cgo := []string{"-ldflags=-s -w"}, "CGO_ENABLED=0"
	if race {
		args, cgo = []string{"-race"}, "CGO_ENABLED=1"
	}
	args = slices.Concat([]string{"build", "-tags=lambda.norpc", "-o", path}, args, []string{pkg})
	cmd := exec.CommandContext(tb.Context(), "go", args...)
	cmd.Dir, cmd.Env = Root(tb), append(os.Environ(), cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	built.bin[out] = path
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

// Root returns the directory of the module.
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
