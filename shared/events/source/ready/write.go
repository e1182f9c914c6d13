package ready

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// The files that [Write] writes.
const (
	CatalogFile = "catalog.yaml"
	ConfigFile  = "config.yaml"
)

// Write puts the event types and sources of providers into the two files of a folder, which it makes. Files that are
// there already are replaced only by force; without it nothing is written, and the error, of kind fault.Conflict, says
// what to do.
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
		if err := os.WriteFile(paths[i], content, 0o644); err != nil { // no secrets: those are references
			return fault.Wrap(fault.Invalid, err, "write %s", paths[i])
		}
	}
	return nil
}

// absent is an error if one of the files is there.
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
	return fault.New(fault.Conflict, "%s %s already; nothing was written. Write into another folder with --dir and copy the entries of events and sources from there, or replace the files with --force",
		strings.Join(there, " and "), verb)
}
