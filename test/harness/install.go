//go:build unix

package harness

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/mcp-events/mcpevents/test/awslocal"
)

// installed returns a directory below the user's cache directory that fill has filled. It calls fill once for each content
// of pins. If several test processes need the directory, one of them fills it while the others wait, and it gets
// its name when it is complete.
func installed(ctx context.Context, name string, pins []byte, fill func(ctx context.Context, dir string) error) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	parent := filepath.Join(cache, "mcp-events")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	sum := sha256.Sum256(pins)
	dir := filepath.Join(parent, name+"-"+hex.EncodeToString(sum[:6]))
	unlock, err := awslocal.Lock(ctx, filepath.Join(parent, name+".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	temp, err := os.MkdirTemp(parent, name+"-installing-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temp)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	if err := fill(ctx, temp); err != nil {
		return "", err
	}
	return dir, os.Rename(temp, dir)
}

// runInstaller runs a program that fetches packages.
func runInstaller(cmd *exec.Cmd) error {
	cmd.WaitDelay = 5 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s did not get packages (does the registry answer? what it said is below): %w\n%.2000s", filepath.Base(cmd.Path), err, out)
	}
	return nil
}
