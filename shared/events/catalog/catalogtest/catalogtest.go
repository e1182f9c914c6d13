// Package catalogtest stores catalogs for tests. Operators' files go through shared/app/apply, which checks them.
package catalogtest

import (
	"context"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Store replaces the stored catalog of a workspace, or removes it if next is nil.
func Store(ctx context.Context, db store.DB, workspace string, next *catalog.Catalog) error {
	d, err := catalog.Read(ctx, db, workspace)
	if err != nil {
		return err
	}
	return settings.Write(ctx, db, d.Replace(next))
}
