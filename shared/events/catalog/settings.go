package catalog

import (
	"context"
	"slices"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// documents and a workspace name a stored catalog.
const documents = "catalog:"

// Shared stands for the workspaces that have no catalog of their own: those of an embedded server.
const Shared = "*"

// Applied is the outcome of [Apply].
type Applied struct {
	// Version counts the catalogs of the workspace, from 1.
	Version int64
	// Changed is false when the same text was stored already.
	Changed bool
	// Changes lists what is different from the catalog before.
	Changes []Change
}

// orderKept refuses a catalog that takes [OrderNone] back from an event type. Its log is spread over
// partitions with several writers, where readers in order do not look.
func orderKept(old, next *Catalog) error {
	for _, e := range next.entries {
		before := old.ByName(e.Name)
		if before == nil || before.Pattern() != e.Pattern() {
			at := slices.IndexFunc(old.entries, func(o *Entry) bool { return o.Pattern() == e.Pattern() })
			if at < 0 {
				continue
			}
			before = old.entries[at]
		}
		if before.Unordered() && !e.Unordered() {
			return fault.New(fault.Invalid, "event %s: order cannot go back to %s while the log has its events (allowed: another URI, or remove the event type, "+
				"wait for the retention, and add it again)", e.Name, OrderURI)
		}
	}
	return nil
}

// Compare tells what a catalog changes for a workspace. One that may not take the place of the stored one is of
// kind fault.Invalid.
func Compare(ctx context.Context, db store.DB, workspace string, next *Catalog) ([]Change, error) {
	old, err := Load(ctx, db, workspace)
	switch {
	case fault.Is(err, fault.NotFound), fault.Is(err, fault.Invalid): // a stored text that is no catalog any more can be replaced
		return Diff(nil, next), nil
	case err != nil:
		return nil, err
	}
	if !db.Ordered() {
		err = orderKept(old, next)
	}
	return Diff(old, next), err
}

// Apply stores a catalog as the workspace's, which every process uses within [settings.MaxAge]; nil leaves the workspace
// without one of its own. That it changed is then announced by [settings.Announce]. A catalog that gives an event type its
// order back is of kind fault.Invalid, one that does not fit into an item fault.TooLarge, a concurrent change fault.Conflict.
func Apply(ctx context.Context, db store.DB, workspace string, next *Catalog) (Applied, error) {
	document, changes, err := Document(ctx, db, workspace, next)
	if err != nil {
		return Applied{}, err
	}
	written, err := settings.WriteAll(ctx, db, document)
	if err != nil {
		return Applied{}, err
	}
	return Applied{written[0].Version, written[0].Changed, changes}, nil
}

// Document returns the document that [Apply] writes, for callers that write others with it, and what it changes.
func Document(ctx context.Context, db store.DB, workspace string, next *Catalog) (d settings.Document, changes []Change, err error) {
	if next != nil {
		if changes, err = Compare(ctx, db, workspace, next); err != nil {
			return d, nil, err
		}
		d.Text = next.Source()
	}
	d.Name = documents + workspace
	d.Also = func(version int64, _ []byte) []store.Op {
		return append(settings.Unannounced(settings.Catalog, workspace, []string{workspace}, version),
			store.Put(store.Item{Key: store.Key{Table: store.Settings, Partition: namesPartition, Sort: workspace}}))
	}
	return d, changes, nil
}

// namesPartition lists the workspaces that have or had a catalog, [Shared] among them.
const namesPartition = "catalogs"

// Names lists the workspaces that have a catalog of their own, [Shared] among them.
func Names(ctx context.Context, db store.DB) (names []string, err error) {
	err = store.Each(ctx, db, store.Key{Table: store.Settings, Partition: namesPartition}, "list the catalogs", func(it *store.Item) error {
		src, _, err := settings.Read(ctx, db, documents+it.Sort)
		if err == nil && len(src) > 0 {
			names = append(names, it.Sort)
		}
		return err
	})
	return names, err
}

// Load reads the workspace's catalog, or that of [Shared]. A workspace without one is of kind
// fault.NotFound.
func Load(ctx context.Context, db store.DB, workspace string) (*Catalog, error) {
	for _, name := range []string{workspace, Shared} {
		src, _, err := settings.Read(ctx, db, documents+name)
		if err != nil {
			return nil, err
		}
		if len(src) > 0 {
			return parseStored(src)
		}
	}
	return nil, errNoCatalog
}

// parseStored reads a text that was checked before [Apply] stored it; nil of one that was removed.
func parseStored(src []byte) (*Catalog, error) {
	if len(src) == 0 {
		return nil, nil
	}
	return parseFile("stored catalog", src, true)
}

var errNoCatalog = fault.New(fault.NotFound, "unknown workspace, or a workspace without a catalog")
