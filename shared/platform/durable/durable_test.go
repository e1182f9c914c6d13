package durable

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestNamesAreSynced(t *testing.T) {
	var synced []string
	before := syncDir
	syncDir = func(dir string) error { synced = append(synced, dir); return before(dir) }
	defer func() { syncDir = before }()
	dir := t.TempDir()
	file, renamed := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	expect.OK(t, WriteFile(file, []byte("content")))
	expect.OK(t, Rename(file, renamed))
	expect.Equal(t, "the content", string(expect.Value(os.ReadFile(renamed))(t)), "content")
	expect.List(t, "OPS-16: the synced directories", synced, []string{dir, dir})
}
