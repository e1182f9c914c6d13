package engine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

func TestAFileThatIsRemovedWhileItIsOpen(t *testing.T) {
	for name, tt := range map[string]struct {
		remove, restore func(path string) error
	}{
		"OPS-16 a database that is removed":       {os.Remove, nil},
		"OPS-16 a log that is removed":            {func(path string) error { return os.Remove(path + "-wal") }, nil},
		"OPS-16 a database that is replaced":      {func(path string) error { return replace(path) }, nil},
		"OPS-16 a folder that is moved, and back": {func(path string) error { return move(path, ".old") }, func(path string) error { return move(path+".old", "") }},
	} {
		t.Run(name, func(t *testing.T) {
			path := filled(t)
			e, err := Open(path, Options{})
			if err != nil {
				t.Fatal(err)
			}
			do(t, e, insert(100_000, "kept"))
			if err := tt.remove(path); err != nil {
				t.Fatal(err)
			}
			if err := e.Do(t.Context(), insert(100_001, "lost")); !fault.Is(err, fault.Unavailable) {
				t.Errorf("a write got %v, want an error of kind unavailable", err)
			}
			if err := e.Health(); !fault.Is(err, fault.Unavailable) {
				t.Errorf("health got %v, want an error of kind unavailable", err)
			}
			if tt.restore == nil {
				if err := e.Close(); !fault.Is(err, fault.Unavailable) {
					t.Errorf("close got %v, want an error of kind unavailable", err)
				}
				return
			}
			if err := tt.restore(path); err != nil {
				t.Fatal(err)
			}
			if err := e.Health(); err != nil {
				t.Errorf("health got %v although the files are back", err)
			}
			do(t, e, insert(100_001, "kept, too"))
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// replace puts another file in the place of the one at path.
func replace(path string) error {
	if err := os.WriteFile(path+".new", nil, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// move moves the folder of the file at path, which has the ending from already, to one with the ending to.
func move(path, to string) error {
	if to != "" {
		return os.Rename(filepath.Dir(path), filepath.Dir(path)+to)
	}
	dir := filepath.Dir(path)
	return os.Rename(dir+".old", dir)
}
