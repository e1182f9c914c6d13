package client_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestFilesOfCursors(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cursors")
	d := client.Dir(dir)
	loads := func(t *testing.T, store client.Store, key, want string) {
		t.Helper()
		if cursor, err := store.Load(t.Context(), key); cursor != want || err != nil {
			t.Errorf("%s: loaded %q, %v, want %q", key, cursor, err, want)
		}
	}
	t.Run("RCH-01 at first there is no cursor", func(t *testing.T) { loads(t, d, "a", "") })
	t.Run("RCH-01 each key has the cursor that was saved last under it", func(t *testing.T) {
		for _, cursor := range []string{"1", "2"} {
			for _, key := range []string{"a", "b"} {
				expect.OK(t, d.Save(t.Context(), key, key+cursor))
			}
		}
		loads(t, d, "a", "a2")
		loads(t, d, "b", "b2")
	})
	t.Run("RCH-01 no temporary files are left, and other users cannot read the files", func(t *testing.T) {
		files, err := os.ReadDir(dir)
		if err != nil || len(files) != 2 {
			t.Fatalf("found %v, %v, want two files", files, err)
		}
		for _, f := range files {
			if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("got the mode %v (%v), want 0600", info.Mode(), err)
			}
		}
	})
	t.Run("RCH-01 RCH-03 two subscriptions cannot share a file", func(t *testing.T) {
		file := client.File(filepath.Join(t.TempDir(), "cursor"))
		expect.OK(t, file.Save(t.Context(), "a", "a1"))
		if cursor, err := file.Load(t.Context(), "b"); !fault.Is(err, fault.Conflict) {
			t.Errorf("another subscription loaded %q, %v, want an error of kind conflict", cursor, err)
		}
		if err := file.Save(t.Context(), "b", "b1"); !fault.Is(err, fault.Conflict) {
			t.Errorf("another subscription saved its cursor: %v, want an error of kind conflict", err)
		}
		loads(t, file, "a", "a1")
	})
	t.Run("RCH-01 RCH-03 a file that holds only a cursor belongs to the subscription that loads it", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "cursor")
		expect.OK(t, os.WriteFile(path, []byte("a1"), 0o600))
		file := client.File(path)
		loads(t, file, "a", "a1")
		expect.OK(t, file.Save(t.Context(), "a", "a2"))
		loads(t, file, "a", "a2")
	})
	t.Run("RCH-01 a file that does not hold a cursor is refused", func(t *testing.T) {
		file := filepath.Join(dir, "large")
		expect.OK(t, os.WriteFile(file, []byte(strings.Repeat("x", 100_000)), 0o600))
		if _, err := client.File(file).Load(t.Context(), ""); !fault.Is(err, fault.Invalid) {
			t.Errorf("got %v, want an error of kind invalid", err)
		}
	})
}
