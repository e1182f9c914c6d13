package watch

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestFiles(t *testing.T) {
	write := func(t *testing.T, path, text string) {
		t.Helper()
		expect.OK(t, os.MkdirAll(filepath.Dir(path), 0o700))
		expect.OK(t, os.WriteFile(path, []byte(text), 0o600))
	}
	link := func(t *testing.T, to, path string) {
		t.Helper()
		expect.OK(t, os.Symlink(to, path+".new"))
		expect.OK(t, os.Rename(path+".new", path))
	}
	// existing prepares a file that is there at first.
	existing := func(change func(t *testing.T, path string)) func(*testing.T, string) (string, func()) {
		return func(t *testing.T, dir string) (string, func()) {
			path := filepath.Join(dir, "c.yaml")
			write(t, path, "one")
			return path, func() { change(t, path) }
		}
	}
	for name, prepare := range map[string]func(t *testing.T, dir string) (path string, change func()){
		"EVS-14 a file that is written": existing(func(t *testing.T, path string) { write(t, path, "three") }),
		"EVS-14 a file that is removed": existing(func(t *testing.T, path string) { expect.OK(t, os.Remove(path)) }),
		"EVS-14 a file that is replaced": existing(func(t *testing.T, path string) {
			write(t, path+".new", "two")
			expect.OK(t, os.Rename(path+".new", path))
		}),
		"EVS-14 a file that may be read now": func(t *testing.T, dir string) (string, func()) {
			path := filepath.Join(dir, "c.yaml")
			write(t, path, "one")
			expect.OK(t, os.Chmod(path, 0))
			return path, func() { expect.OK(t, os.Chmod(path, 0o600)) }
		},
		"EVS-14 a link to a file elsewhere that is written": func(t *testing.T, dir string) (string, func()) {
			write(t, filepath.Join(dir, "real", "c.yaml"), "one")
			expect.OK(t, os.Mkdir(filepath.Join(dir, "etc"), 0o700))
			link(t, "../real/c.yaml", filepath.Join(dir, "etc", "c.yaml"))
			return filepath.Join(dir, "etc", "c.yaml"), func() { write(t, filepath.Join(dir, "real", "c.yaml"), "three") }
		},
		"EVS-14 a ConfigMap of Kubernetes": func(t *testing.T, dir string) (string, func()) {
			write(t, filepath.Join(dir, "..1", "c.yaml"), "one")
			write(t, filepath.Join(dir, "..2", "c.yaml"), "two")
			link(t, "..1", filepath.Join(dir, "..data"))
			link(t, "..data/c.yaml", filepath.Join(dir, "c.yaml"))
			return filepath.Join(dir, "c.yaml"), func() { link(t, "..2", filepath.Join(dir, "..data")) }
		},
		"EVS-14 a link to a folder that is replaced": func(t *testing.T, dir string) (string, func()) {
			write(t, filepath.Join(dir, "r1", "c.yaml"), "one")
			write(t, filepath.Join(dir, "r2", "c.yaml"), "two")
			link(t, "r1", filepath.Join(dir, "current"))
			return filepath.Join(dir, "current", "c.yaml"), func() { link(t, "r2", filepath.Join(dir, "current")) }
		},
		"EVS-14 a folder that is replaced": func(t *testing.T, dir string) (string, func()) {
			write(t, filepath.Join(dir, "conf", "c.yaml"), "one")
			return filepath.Join(dir, "conf", "c.yaml"), func() {
				expect.OK(t, os.Rename(filepath.Join(dir, "conf"), filepath.Join(dir, "old")))
				write(t, filepath.Join(dir, "conf", "c.yaml"), "two")
			}
		},
		"EVS-14 a folder that is not there at first": func(t *testing.T, dir string) (string, func()) {
			path := filepath.Join(dir, "later", "c.yaml")
			return path, func() { write(t, path, "one") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				path, change := prepare(t, dir)
				changed := Files(t.Context(), []string{path})
				time.Sleep(10 * every)
				select {
				case <-changed:
					t.Error("a change is reported before there is one")
				default:
				}
				change()
				time.Sleep(every + settle)
				synctest.Wait()
				select {
				case <-changed:
				default:
					t.Error("the change is not noticed")
				}
				time.Sleep(10 * every)
				select {
				case <-changed:
					t.Error("the change is reported twice")
				default:
				}
			})
		})
	}
}
