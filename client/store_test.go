package client_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

func TestFilesOfCursors(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cursors")
	d := client.Dir(dir)
	t.Run("RCH-01 at first there is no cursor", func(t *testing.T) {
		if cursor, err := d.Load(t.Context(), "a"); cursor != "" || err != nil {
			t.Errorf("got %q, %v", cursor, err)
		}
	})
	t.Run("RCH-01 each key has the cursor that was saved last under it", func(t *testing.T) {
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
	t.Run("RCH-01 no temporary files are left, and other users cannot read the files", func(t *testing.T) {
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
	t.Run("RCH-01 RCH-03 two subscriptions cannot share a file", func(t *testing.T) {
		file := client.File(filepath.Join(t.TempDir(), "cursor"))
		if err := file.Save(t.Context(), "a", "a1"); err != nil {
			t.Fatal(err)
		}
		if cursor, err := file.Load(t.Context(), "b"); !fault.Is(err, fault.Conflict) {
			t.Errorf("another subscription loaded %q, %v, want an error of kind conflict", cursor, err)
		}
		if err := file.Save(t.Context(), "b", "b1"); !fault.Is(err, fault.Conflict) {
			t.Errorf("another subscription saved its cursor: %v, want an error of kind conflict", err)
		}
		if cursor, err := file.Load(t.Context(), "a"); cursor != "a1" || err != nil {
			t.Errorf("the first one loaded %q, %v, want a1", cursor, err)
		}
	})
	t.Run("RCH-01 RCH-03 a file that holds only a cursor belongs to the subscription that loads it", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "cursor")
		if err := os.WriteFile(path, []byte("a1"), 0o600); err != nil {
			t.Fatal(err)
		}
		file := client.File(path)
		if cursor, err := file.Load(t.Context(), "a"); cursor != "a1" || err != nil {
			t.Errorf("loaded %q, %v, want a1", cursor, err)
		}
		if err := file.Save(t.Context(), "a", "a2"); err != nil {
			t.Error(err)
		}
		if cursor, err := file.Load(t.Context(), "a"); cursor != "a2" || err != nil {
			t.Errorf("loaded %q, %v, want a2", cursor, err)
		}
	})
	t.Run("RCH-01 a file that does not hold a cursor is refused", func(t *testing.T) {
		file := filepath.Join(dir, "large")
		if err := os.WriteFile(file, []byte(strings.Repeat("x", 100_000)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := client.File(file).Load(t.Context(), ""); !fault.Is(err, fault.Invalid) {
			t.Errorf("got %v", err)
		}
	})
}
