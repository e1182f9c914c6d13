package ready

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Names of the files that [Write] writes.
const (
	CatalogFile = "catalog.yaml"
	ConfigFile  = "config.yaml"
)

// Write writes the providers' event types and sources to two files in a folder, which it creates if needed. If one of
// the files exists and force is false, it changes no file and returns an error of kind fault.Conflict that says what
// to do.
func Write(dir string, providers []Provider, force bool) error {
	if len(providers) == 0 {
		return fault.New(fault.Invalid, "no ready-made source is named (there are: %s)", strings.Join(Names(), ", "))
	}
	paths := []string{filepath.Join(dir, CatalogFile), filepath.Join(dir, ConfigFile)}
	if !force {
		if err := absent(paths); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fault.Wrap(fault.Invalid, err, "make the folder")
	}
	for i, content := range [][]byte{Catalog(providers...), Config(providers...)} {
		if err := os.WriteFile(paths[i], content, 0o644); err != nil { // contains no secrets, only references to them
			return fault.Wrap(fault.Invalid, err, "write %s", paths[i])
		}
	}
	return nil
}

// absent returns an error if one of the files exists.
func absent(paths []string) error {
	var there []string
	for _, p := range paths {
		_, err := os.Lstat(p)
		switch {
		case err == nil:
			there = append(there, p)
		case !errors.Is(err, fs.ErrNotExist):
			return fault.Wrap(fault.Invalid, err, "look for %s", p)
		}
	}
	if len(there) == 0 {
		return nil
	}
	verb := "exists"
	if len(there) > 1 {
		verb = "exist"
	}
	return fault.New(fault.Conflict, "%s %s already, so no file was written. Write into another folder with --dir and copy the entries of events and sources from there, or replace the files with --force",
		strings.Join(there, " and "), verb)
}
