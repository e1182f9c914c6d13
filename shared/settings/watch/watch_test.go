package watch

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "catalog.yaml"), filepath.Join(dir, ".catalog.yaml.swp")
	write := func(path string) {
		t.Helper()
		if err := os.WriteFile(path, []byte("events: []"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(path)
	changed, err := Files(t.Context(), []string{path}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for how, change := range map[string]func(){
		"written": func() { write(path) },
		"replaced": func() {
			write(other)
			if err := os.Rename(other, path); err != nil {
				t.Fatal(err)
			}
		},
	} {
		change()
		select {
		case <-changed:
		case <-time.After(20 * time.Second):
			t.Errorf("a file that is %s is not noticed", how)
		}
	}
	if _, err := Files(t.Context(), []string{filepath.Join(dir, "none", "catalog.yaml")}, nil); err == nil {
		t.Error("a folder that is not there is watched")
	}
}
