package catalog

import (
	"cmp"
	"context"
	"slices"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// documents is the prefix of the names of stored catalogs, before the workspace.
const documents = "catalog:"

// Shared is used as a workspace for the catalog of all workspaces of a stand-alone server that have no catalog of their own.
const Shared = "*"

// Document is the stored catalog of a workspace.
type Document struct {
	settings.Stored
	Workspace string
	// Catalog is nil if the workspace has no catalog of its own. It is also nil if the catalog cannot be read, because another version
	// of this program wrote it. Invalid then has the reason.
	Catalog *Catalog
	Invalid error
}

// Read reads the stored catalog of a workspace, or the one of [Shared].
func Read(ctx context.Context, db store.DB, workspace string) (Document, error) {
	stored, err := settings.Read(ctx, db, documents+workspace)
	d := Document{Stored: stored, Workspace: workspace}
	if err == nil {
		d.Catalog, d.Invalid = parseStored(stored.Text)
	}
	return d, err
}

// parseStored parses a text that was checked before it was stored. It returns nil for a removed catalog.
func parseStored(src []byte) (*Catalog, error) {
	if len(src) == 0 {
		return nil, nil
	}
	return parseFile("stored catalog", src, true)
}

// Replace returns the edit that replaces the catalog and announces the change. A nil next removes the catalog.
func (d Document) Replace(next *Catalog) settings.Edit {
	e := settings.Edit{Old: d.Stored, Text: next.Source()}
	e.Also = append(settings.Unannounced(settings.Catalog, d.Workspace, []string{d.Workspace}, e.Version()),
		store.Put(store.Item{Key: store.Key{Table: store.Settings, Partition: namesPartition, Sort: d.Workspace}}))
	return e
}

// CheckChange returns the changes from one catalog to the next. Either may be nil. The error is of kind fault.Invalid if the next
// one takes [OrderNone] back from an event type and the log spreads the events of such a type over partitions with several
// writers, because readers of ordered events do not read these partitions.
func CheckChange(db store.DB, before, next *Catalog) ([]Change, error) {
	if before != nil && (&eventlog.Log{DB: db}).Spreads() {
		for _, e := range next.Entries() {
			if old := before.findByURI(e); old != nil && old.Unordered() && !e.Unordered() {
				return nil, fault.New(fault.Invalid, "event %s: order cannot go back to %s while the log has its events (allowed: another URI, or remove the event type, "+
					"wait for the retention, and add it again)", e.Name, OrderURI)
			}
		}
	}
	return Diff(before, next), nil
}

// findByURI returns the event type with the URI or template of e, whose events are in the same place of the log. Its name may differ.
func (c *Catalog) findByURI(e *Entry) *Entry {
	if old := c.ByName(e.Name); old != nil && old.Pattern() == e.Pattern() {
		return old
	}
	if at := slices.IndexFunc(c.entries, func(old *Entry) bool { return old.Pattern() == e.Pattern() }); at >= 0 {
		return c.entries[at]
	}
	return nil
}

// namesPartition has an item for each workspace that has or had a catalog, including [Shared].
const namesPartition = "catalogs"

// Names returns the workspaces that have their own catalog, including [Shared].
func Names(ctx context.Context, db store.DB) (names []string, err error) {
	err = store.Each(ctx, db, store.Key{Table: store.Settings, Partition: namesPartition}, "list the catalogs", func(it *store.Item) error {
		d, err := settings.Read(ctx, db, documents+it.Sort)
		if err == nil && len(d.Text) > 0 {
			names = append(names, it.Sort)
		}
		return err
	})
	return names, err
}

// Load reads the workspace's catalog, or the shared catalog if the workspace has no catalog of its own. If both are missing, the error
// is of kind fault.NotFound.
func Load(ctx context.Context, db store.DB, workspace string) (*Catalog, error) {
	for _, name := range []string{workspace, Shared} {
		d, err := Read(ctx, db, name)
		if err = cmp.Or(err, d.Invalid); err != nil {
			return nil, err
		}
		if d.Catalog != nil {
			return d.Catalog, nil
		}
	}
	return nil, errNoCatalog
}

var errNoCatalog = fault.New(fault.NotFound, "unknown workspace, or a workspace without a catalog")
