package durable

import (
	"os"
	"path/filepath"
	"slices"
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
	if want := []string{dir, dir}; !slices.Equal(synced, want) {
		t.Errorf("OPS-16: got the synced directories %q, want %q", synced, want)
	}
}
