package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/mcp-events/mcpevents/shared/app"
)

// VersionCmd prints the version.
type VersionCmd struct{}

// Run implements the command.
func (c *VersionCmd) Run(g *Globals) error {
	revision := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				revision = " " + s.Value[:12]
			}
		}
	}
	_, err := fmt.Fprintf(g.out, "mcpevents %s%s %s %s/%s\n", app.Version, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// agent returns the name and version that servers see.
func agent() string { return "mcp-events-cli/" + app.Version }
