//go:build unix

package durable

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

// TestRootKeepsTheOwner checks that a command that root runs leaves a file that its owner can still read, for example the server whose keys
// the command changes.
func TestRootKeepsTheOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can change owners")
	}
	const user, group = 65532, 65533
	file := filepath.Join(t.TempDir(), "keys.json")
	expect.OK(t, WriteFile(file, []byte("old")))
	expect.OK(t, os.Chown(file, user, group))
	expect.OK(t, WriteFile(file, []byte("new")))
	info := expect.Value(os.Stat(file))(t)
	expect.Equal(t, "the content", string(expect.Value(os.ReadFile(file))(t)), "new")
	expect.Equal(t, "the mode", info.Mode(), 0o600)
	owner := info.Sys().(*syscall.Stat_t)
	expect.List(t, "user and group", []uint32{owner.Uid, owner.Gid}, []uint32{user, group})
}
