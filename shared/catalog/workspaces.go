package catalog

import "context"

// Workspaces is a [Source] that puts others together: a workspace that has a
// catalog of its own gets that, every other one Rest. Without Rest, the others are
// unknown.
type Workspaces struct {
	Own  map[string]Source
	Rest Source
}

// Catalog returns the workspace's catalog.
func (w Workspaces) Catalog(ctx context.Context, workspace string) (*Catalog, error) {
	if own := w.Own[workspace]; own != nil {
		return own.Catalog(ctx, workspace)
	}
	if w.Rest == nil {
		return nil, errNoCatalog
	}
	return w.Rest.Catalog(ctx, workspace)
}
