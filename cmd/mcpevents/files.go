package main

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// open opens a file. Errors call it what, for example "catalog".
func open(what, path string) (*os.File, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		hint := map[string]string{"catalog": `, or create one with "mcpevents catalog init"`}[what]
		return nil, fault.New(fault.Invalid, "there is no %s at %s: give its path%s", what, path, hint)
	}
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "open the %s", what)
	}
	if info, err := f.Stat(); err == nil && info.IsDir() {
		_ = f.Close()
		return nil, fault.New(fault.Invalid, "%s is a directory: give the path of the %s in it", path, what)
	}
	return f, nil
}

func read(what, path string) ([]byte, error) {
	f, err := open(what, path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	return b, fault.Wrap(fault.Invalid, err, "read the %s", what)
}

func readCatalog(path string) (*catalog.Catalog, error) {
	src, err := read("catalog", path)
	if err != nil {
		return nil, err
	}
	return catalog.ParseFile(path, src)
}

// readCatalogs reads the catalogs of the workspaces that have their own.
func readCatalogs(files map[string]string) (map[string]*catalog.Catalog, error) {
	out := map[string]*catalog.Catalog{}
	for workspace, path := range files {
		if !auth.ValidWorkspace(workspace) {
			return nil, fault.New(fault.Invalid, "--workspace-catalog: %q is not the name of a workspace", workspace)
		}
		var err error
		if out[workspace], err = readCatalog(path); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// readConfig reads a configuration. It returns nil for an empty path.
func readConfig(path string) (*config.Config, error) {
	if path == "" {
		return nil, nil
	}
	src, err := read("configuration", path)
	if err != nil {
		return nil, err
	}
	return config.ParseFile(path, src)
}
