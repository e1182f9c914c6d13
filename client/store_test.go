package client_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/fault"
)

func TestFilesOfCursors(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cursors")
	d := client.Dir(dir)
	t.Run("RCH-01 there is none at first", func(t *testing.T) {
		if cursor, err := d.Load(t.Context(), "a"); cursor != "" || err != nil {
			t.Errorf("got %q, %v", cursor, err)
		}
	})
	t.Run("RCH-01 each key has its own, the last one saved", func(t *testing.T) {
		for _, cursor := range []string{"1", "2"} {
			for _, key := range []string{"a", "b"} {
				if err := d.Save(t.Context(), key, key+cursor); err != nil {
					t.Fatal(err)
				}
			}
		}
		if a, _ := d.Load(t.Context(), "a"); a != "a2" {
			t.Errorf("got %q", a)
		}
		if b, _ := d.Load(t.Context(), "b"); b != "b2" {
			t.Errorf("got %q", b)
		}
	})
	t.Run("RCH-01 nothing is left beside them, and others cannot read them", func(t *testing.T) {
		files, err := os.ReadDir(dir)
		if err != nil || len(files) != 2 {
			t.Fatalf("found %v, %v", files, err)
		}
		for _, f := range files {
			if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%v, %v", info.Mode(), err)
			}
		}
	})
	t.Run("RCH-01 what is no cursor is refused", func(t *testing.T) {
		file := filepath.Join(dir, "large")
		if err := os.WriteFile(file, []byte(strings.Repeat("x", 100_000)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := client.File(file).Load(t.Context(), ""); !fault.Is(err, fault.Invalid) {
			t.Errorf("got %v", err)
		}
	})
}
