//go:build unix

package harness

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// nodeMajor is the oldest Node.js that the packages of the tests run on.
const nodeMajor = 22

// JS is a directory with scripts and their packages beside them, and a Node.js
// that runs them.
type JS struct {
	node, dir string
}

// Node prepares to run the scripts of test/interop/js.
func Node(tb testing.TB) *JS { return NodeIn(tb, filepath.Join("test", "interop", "js")) }

// NodeIn prepares to run the scripts of a directory of the module, or those of its
// packages, which are below node_modules. The first use on a machine
// installs the packages that package-lock.json there pins into the user's cache directory, and
// among them a Node.js where the machine's own is older than 22. That needs npm.
func NodeIn(tb testing.TB, dir string) *JS {
	tb.Helper()
	src := filepath.Join(Root(tb), dir)
	installed, err := installJS(tb.Context(), src)
	if err != nil {
		tb.Fatalf("install the JavaScript packages of %s: %v", dir, err)
	}
	js := &JS{dir: tb.TempDir()}
	if js.node, err = findNode(installed); err != nil {
		tb.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(installed, "node_modules"), filepath.Join(js.dir, "node_modules")); err != nil {
		tb.Fatal(err)
	}
	scripts, err := filepath.Glob(filepath.Join(src, "*.js"))
	if err != nil {
		tb.Fatal(err)
	}
	for _, script := range append(scripts, filepath.Join(src, "package.json")) {
		b, err := os.ReadFile(script)
		if err != nil {
			tb.Fatal(err)
		}
		writeFile(tb, js.dir, filepath.Base(script), string(b))
	}
	return js
}

// Path is that of a file beside the scripts, or below node_modules.
func (j *JS) Path(name string) string { return filepath.Join(j.dir, name) }

// Command prepares a script to run.
func (j *JS) Command(ctx context.Context, script string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, j.node, append([]string{j.Path(script)}, args...)...)
	cmd.Env = environment()
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// Run runs a script to its end, with v as JSON in its standard input, and
// decodes the JSON that it writes.
func (j *JS) Run(tb testing.TB, script string, v, result any) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 2*time.Minute)
	defer cancel()
	input, err := json.Marshal(v)
	if err != nil {
		tb.Fatal(err)
	}
	cmd := j.Command(ctx, script)
	cmd.Stdin = strings.NewReader(string(input))
	var stderr output
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("%s: %v\n%s", script, err, stderr.tail(4<<10))
	}
	if err := json.Unmarshal(out, result); err != nil {
		tb.Fatalf("%s wrote %.300q: %v", script, out, err)
	}
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
		return "", fmt.Errorf("no Node.js %d or later: install it, for there is no package of it for %s/%s", nodeMajor, runtime.GOOS, runtime.GOARCH)
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

// installJS installs what the lock file pins, once for each content of it.
// Several test processes may ask at once: one works, and the directory
// gets its name when it is complete.
func installJS(ctx context.Context, src string) (string, error) {
	lock, err := os.ReadFile(filepath.Join(src, "package-lock.json"))
	if err != nil {
		return "", err
	}
	manifest, err := os.ReadFile(filepath.Join(src, "package.json"))
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	parent := filepath.Join(cache, "mcp-events")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	sum := sha256.Sum256(lock)
	dir := filepath.Join(parent, "js-"+hex.EncodeToString(sum[:6]))
	unlock, err := lockFile(ctx, filepath.Join(parent, "js.lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	temp, err := os.MkdirTemp(parent, "js-installing-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temp)
	for name, b := range map[string][]byte{"package.json": manifest, "package-lock.json": lock} {
		if err := os.WriteFile(filepath.Join(temp, name), b, 0o644); err != nil {
			return "", err
		}
	}
	args := []string{"ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=2", "--fetch-timeout=60000"}
	if path, err := exec.LookPath("node"); err == nil && majorOf(path) >= nodeMajor {
		args = append(args, "--omit=optional")
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", args...)
	cmd.Dir = temp
	cmd.WaitDelay = 5 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci did not get them (does the registry answer? what it said is below): %w\n%s", err, out)
	}
	return dir, os.Rename(temp, dir)
}

// lockFile waits for an exclusive lock on a file, which ends with the process
// at the latest.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		}
	}
}
