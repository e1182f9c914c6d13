//go:build unix

package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/mcp-events/mcpevents/test/awslocal"
)

// Chromium returns the path of a Chromium. If the machine lacks one and the tests run as root, it installs Debian's with
// apt-get.
func Chromium(tb testing.TB) string {
	tb.Helper()
	if path := findChromium(); path != "" {
		return path
	}
	if err := installChromium(tb); err != nil {
		tb.Fatalf("the tests of the console need Chromium (apt-get install chromium, as root): %v", err)
	}
	return findChromium()
}

func findChromium() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

func installChromium(tb testing.TB) error {
	if os.Geteuid() != 0 {
		return errors.New("this is not root")
	}
	unlock, err := awslocal.Lock(tb.Context(), filepath.Join(os.TempDir(), "mcp-events-apt.lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if findChromium() != "" { // another process was faster
		return nil
	}
	for _, args := range [][]string{{"update"}, {"install", "-y", "--no-install-recommends", "chromium"}} {
		cmd := exec.CommandContext(tb.Context(), "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", args[0], err, out)
		}
	}
	if findChromium() == "" {
		return errors.New("apt-get installed it, and it is not there")
	}
	return nil
}
