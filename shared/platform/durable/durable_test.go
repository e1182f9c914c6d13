package durable

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestNamesAreSynced(t *testing.T) {
	var synced []string
	before := syncDir
	syncDir = func(dir string) error { synced = append(synced, dir); return before(dir) }
	defer func() { syncDir = before }()
	dir := t.TempDir()
	file, renamed := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	if err := WriteFile(file, []byte("content")); err != nil {
		t.Fatal(err)
	}
	if err := Rename(file, renamed); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(renamed); err != nil || string(b) != "content" {
		t.Errorf("got %q, %v, want the content", b, err)
	}
	if want := []string{dir, dir}; !slices.Equal(synced, want) {
		t.Errorf("OPS-16: got the synced directories %q, want %q", synced, want)
	}
}
