package standalone

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

func TestBackup(t *testing.T) {
	var settings Options
	s := serve(t, func(o *Options) { settings = *o })
	file := filepath.Join(t.TempDir(), "backup.tar.gz")
	var bars bytes.Buffer
	if err := Backup(t.Context(), settings.Data, file, &bars); err != nil {
		t.Fatal(err)
	}
	t.Run("OPS-16 a backup of a running server is for its owner only, and shows how far it is", func(t *testing.T) {
		if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
			t.Errorf("its mode is %v, %v", info.Mode(), err)
		}
		if text := bars.String(); !strings.Contains(text, "KiB copied") || !strings.Contains(text, "written") {
			t.Errorf("shows %q", text)
		}
		left(t, filepath.Dir(file), "backup.tar.gz")
	})
	t.Run("OPS-16 a restored server starts with the same keys, and files that only its owner reads", func(t *testing.T) {
		data := filepath.Join(t.TempDir(), "new")
		if err := Restore(t.Context(), file, data, nil); err != nil {
			t.Fatal(err)
		}
		left(t, data, keysName, databaseName)
		for _, name := range []string{databaseName, keysName} {
			if info, err := os.Stat(filepath.Join(data, name)); err != nil || info.Mode() != 0o600 {
				t.Errorf("the mode of %s is %v, %v", name, info.Mode(), err)
			}
		}
		was, _ := os.ReadFile(secretsPath(settings.Data))
		if is, _ := os.ReadFile(secretsPath(data)); !bytes.Equal(was, is) {
			t.Error("it has other keys")
		}
		restored := settings
		restored.Data = data
		again, err := New(t.Context(), restored)
		if err != nil {
			t.Fatal(err)
		}
		end(t, again)
	})
	end(t, s)
	t.Run("OPS-16 nothing is overwritten, and nothing stays of what fails", func(t *testing.T) {
		whole, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		damaged := bytes.Clone(whole)
		damaged[len(damaged)-6] ^= 1 // in the checksum
		write := func(b []byte) string {
			name := filepath.Join(t.TempDir(), "x.tar.gz")
			if err := os.WriteFile(name, b, 0o600); err != nil {
				t.Fatal(err)
			}
			return name
		}
		interrupted, cancel := context.WithCancel(t.Context())
		cancel()
		dir, data := t.TempDir(), filepath.Join(t.TempDir(), "d")
		for _, x := range []struct {
			name string
			do   func() error
			kind fault.Kind
			want string
		}{
			{"a backup over a file", func() error { return Backup(t.Context(), settings.Data, file, nil) }, fault.Invalid, "exists already"},
			{"of no server", func() error { return Backup(t.Context(), dir, filepath.Join(dir, "b"), nil) }, fault.Invalid, databaseName},
			{"interrupted", func() error { return Backup(interrupted, settings.Data, filepath.Join(dir, "b"), nil) }, fault.Unavailable, "no file was written"},
			{"over a server", func() error { return Restore(t.Context(), file, settings.Data, nil) }, fault.Conflict, "is there already"},
			{"of nothing", func() error { return Restore(t.Context(), filepath.Join(dir, "none"), data, nil) }, fault.Invalid, "none"},
			{"of another file", func() error { return Restore(t.Context(), write([]byte("no backup")), data, nil) }, fault.Invalid, "not a backup"},
			{"of a cut one", func() error { return Restore(t.Context(), write(whole[:len(whole)/2]), data, nil) }, fault.Invalid, ""},
			{"of a damaged one", func() error { return Restore(t.Context(), write(damaged), data, nil) }, fault.Invalid, "damaged"},
			{"of another archive", func() error { return Restore(t.Context(), write(archive("../evil")), data, nil) }, fault.Invalid, "../evil"},
			{"of half a backup", func() error { return Restore(t.Context(), write(archive(databaseName)), data, nil) }, fault.Invalid, "lacks"},
			{"interrupted", func() error { return Restore(interrupted, file, data, nil) }, fault.Unavailable, "no file was written"},
		} {
			if err := x.do(); !fault.Is(err, x.kind) || !strings.Contains(err.Error(), x.want) {
				t.Errorf("%s: got %v of kind %v, want %q of kind %v", x.name, err, fault.KindOf(err), x.want, x.kind)
			}
		}
		left(t, dir)
		left(t, data)
	})
}

// archive returns a gzipped tar archive with one member of the given name.
func archive(name string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	_ = w.WriteHeader(&tar.Header{Name: name, Size: 1, Mode: 0o600})
	_, _ = w.Write([]byte("x"))
	_, _ = w.Close(), z.Close()
	return b.Bytes()
}

// left checks the names of all files in a directory.
func left(t *testing.T, dir string, want ...string) {
	t.Helper()
	var got []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			got = append(got, filepath.Base(path))
		}
		return nil
	})
	if text := strings.Join(got, " "); text != strings.Join(want, " ") {
		t.Errorf("%s contains %q, want %q", dir, text, want)
	}
}
