//go:build unix

package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
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

// built has a function for each binary that this test process has asked for. It builds the binary when it is first called.
var built sync.Map

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
	args, cgo := []string{"-tags=lambda.norpc", "-ldflags=-s -w"}, "CGO_ENABLED=0"
	if race {
		args, cgo = []string{"-tags=lambda.norpc", "-race"}, "CGO_ENABLED=1"
	}
	root := Root(tb)
	once, _ := built.LoadOrStore(out, sync.OnceValues(func() (string, error) { return goBuild(root, root, out, cgo, append(args, pkg)...) }))
	path, err := once.(func() (string, error))()
	expect.OK(tb, err)
	return path
}

// goBuild builds an executable, or several in a directory, below build/test. A lock keeps other test processes from linking the
// same one.
func goBuild(root, dir, out, cgo string, args ...string) (string, error) {
	to := filepath.Join(root, "build", "test")
	if err := os.MkdirAll(to, 0o755); err != nil {
		return "", err
	}
	unlock, err := awslocal.Lock(context.Background(), filepath.Join(to, "lock-"+filepath.Base(out)))
	if err != nil {
		return "", err
	}
	defer unlock()
	path := to + string(filepath.Separator) + out
	cmd := exec.Command("go", append([]string{"build", "-o", path}, args...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", args[len(args)-1], err, out)
	}
	return path, nil
}

// Root returns the directory of the module.
func Root(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	expect.OK(tb, err)
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
