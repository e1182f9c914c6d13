//go:build unix

package harness

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

// Python runs the scripts of test/interop/python.
type Python struct {
	venv, dir string
}

// NewPython prepares to run the scripts of test/interop/python. The first use on a
// machine installs the packages that requirements.txt there pins into a virtual environment in the
// user's cache directory. That needs python3 3.11 or later, with venv.
func NewPython(tb testing.TB) *Python {
	tb.Helper()
	dir := filepath.Join(Root(tb), "test", "interop", "python")
	file := filepath.Join(dir, "requirements.txt")
	pins, err := os.ReadFile(file)
	expect.OK(tb, err)
	venv, err := installed(tb.Context(), "python", pins, func(ctx context.Context, venv string) error {
		if err := runInstaller(exec.CommandContext(ctx, "python3", "-m", "venv", venv)); err != nil {
			return err
		}
		return runInstaller(exec.CommandContext(ctx, filepath.Join(venv, "bin", "python"), "-m", "pip", "install",
			"--quiet", "--disable-pip-version-check", "--no-input", "--requirement", file))
	})
	if err != nil {
		tb.Fatalf("install the Python packages: %v", err)
	}
	return &Python{venv: venv, dir: dir}
}

// Command prepares a script to run; one with an absolute path may be anywhere.
func (p *Python) Command(ctx context.Context, script string, args ...string) *exec.Cmd {
	if !filepath.IsAbs(script) {
		script = filepath.Join(p.dir, script)
	}
	// -B keeps Python from writing bytecode next to the script.
	cmd := exec.CommandContext(ctx, filepath.Join(p.venv, "bin", "python"), append([]string{"-B", "-u", script}, args...)...)
	cmd.Env = environment()
	cmd.WaitDelay = 5 * time.Second
	return cmd
}
