package mcp

import (
	"context"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// catalogs finds the catalog of a principal's workspace.
type catalogs struct{ source catalog.Source }

func (cs catalogs) of(ctx context.Context, p auth.Principal) (*catalog.Catalog, error) {
	cat, err := cs.source.Catalog(ctx, p.Workspace)
	return cat, fault.Wrap(fault.Unavailable, err, "read the catalog")
}

// with returns the principal's catalog. If it lacks the named event type, with reads the latest catalog, because the
// type may have been added, and its first event published, within the seconds for which this process keeps a catalog.
func (cs catalogs) with(ctx context.Context, p auth.Principal, name string) (*catalog.Catalog, error) {
	cat, err := cs.of(ctx, p)
	if err == nil && cat.ByName(name) == nil {
		cat, err = catalog.Latest(ctx, cs.source, p.Workspace)
		err = fault.Wrap(fault.Unavailable, err, "read the latest catalog")
	}
	return cat, err
}
