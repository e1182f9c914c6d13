//go:build unix

package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

// nodeMajor is the oldest Node.js that the packages of the tests run on.
const nodeMajor = 22

// JS is a directory with scripts and their packages, and a Node.js that runs them.
type JS struct {
	node, dir string
}

// Node prepares to run the scripts of test/interop/js.
func Node(tb testing.TB) *JS { return NodeIn(tb, filepath.Join("test", "interop", "js")) }

// NodeIn prepares to run the scripts in a directory of the module, or the scripts of its packages below node_modules. The
// first use on a machine installs the packages pinned by the directory's package-lock.json into the user's cache
// directory, including a Node.js if the machine's own is older than 22. This needs npm.
func NodeIn(tb testing.TB, dir string) *JS {
	tb.Helper()
	src := filepath.Join(Root(tb), dir)
	installed, err := installOnce(tb.Context(), src)
	if err != nil {
		tb.Fatalf("install the JavaScript packages of %s: %v", dir, err)
	}
	js := &JS{dir: tb.TempDir()}
	if js.node, err = findNode(installed); err != nil {
		tb.Fatal(err)
	}
	expect.OK(tb, os.Symlink(filepath.Join(installed, "node_modules"), filepath.Join(js.dir, "node_modules")))
	scripts, err := filepath.Glob(filepath.Join(src, "*.js"))
	expect.OK(tb, err)
	for _, script := range append(scripts, filepath.Join(src, "package.json")) {
		b, err := os.ReadFile(script)
		expect.OK(tb, err)
		writeFile(tb, js.dir, filepath.Base(script), string(b))
	}
	return js
}

// Path returns the path of a file in the directory of the scripts, or below node_modules.
func (j *JS) Path(name string) string { return filepath.Join(j.dir, name) }

// Program returns the path of Node.js.
func (j *JS) Program() string { return j.node }

// Command prepares a script to run.
func (j *JS) Command(ctx context.Context, script string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, j.node, append([]string{j.Path(script)}, args...)...)
	cmd.Env = environment()
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// findNode returns a Node.js that is new enough: the machine's, or the installed one.
func findNode(installed string) (string, error) {
	if path, err := exec.LookPath("node"); err == nil && majorOf(path) >= nodeMajor {
		return path, nil
	}
	arch := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	if arch == "" {
		arch = runtime.GOARCH
	}
	path := filepath.Join(installed, "node_modules", "node-"+runtime.GOOS+"-"+arch, "bin", "node")
	if majorOf(path) < nodeMajor {
		return "", fmt.Errorf("no Node.js %d or later: install it, because npm has no package of it for %s/%s", nodeMajor, runtime.GOOS, runtime.GOARCH)
	}
	return path, nil
}

func majorOf(node string) int {
	out, err := exec.Command(node, "--version").Output()
	if err != nil {
		return 0
	}
	major, _, _ := strings.Cut(strings.TrimPrefix(string(out), "v"), ".")
	n, _ := strconv.Atoi(major)
	return n
}

// installs holds the test process's installations, by directory.
var installs struct {
	mu  sync.Mutex
	all map[string]install
}

// install is where packages are, or why they are not.
type install struct {
	dir string
	err error
}

// installOnce calls installJS once per test process, so that only the first test waits for a registry that does not answer.
func installOnce(ctx context.Context, src string) (string, error) {
	installs.mu.Lock()
	defer installs.mu.Unlock()
	if i, ok := installs.all[src]; ok {
		return i.dir, i.err
	}
	dir, err := installJS(ctx, src)
	if ctx.Err() != nil { // the test ended, so the registry may still answer
		return dir, err
	}
	if installs.all == nil {
		installs.all = map[string]install{}
	}
	installs.all[src] = install{dir, err}
	return dir, err
}

// installJS installs what the lock file pins, once for each content of it.
func installJS(ctx context.Context, src string) (string, error) {
	lock, err := os.ReadFile(filepath.Join(src, "package-lock.json"))
	if err != nil {
		return "", err
	}
	manifest, err := os.ReadFile(filepath.Join(src, "package.json"))
	if err != nil {
		return "", err
	}
	return installed(ctx, "js", lock, func(ctx context.Context, dir string) error {
		for name, b := range map[string][]byte{"package.json": manifest, "package-lock.json": lock} {
			if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
				return err
			}
		}
		args := []string{
			"ci", "--ignore-scripts", "--no-audit", "--no-fund",
			"--fetch-timeout=60000", "--fetch-retries=2", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000",
		}
		if path, err := exec.LookPath("node"); err == nil && majorOf(path) >= nodeMajor {
			args = append(args, "--omit=optional")
		}
		cmd := exec.CommandContext(ctx, "npm", args...)
		cmd.Dir = dir
		return runInstaller(cmd)
	})
}
