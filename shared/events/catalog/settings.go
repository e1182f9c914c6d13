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

// documents and a workspace name a stored catalog.
const documents = "catalog:"

// Shared stands for the workspaces that have no catalog of their own: those of a stand-alone server.
const Shared = "*"

// Document is the stored catalog of a workspace.
type Document struct {
	settings.Stored
	Workspace string
	// Catalog is nil if the workspace has no catalog of its own, and if Invalid says why it cannot be read: another version
	// of this program wrote it.
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

// Replace returns the edit that replaces the catalog, and announces that. Without a next one the workspace has no catalog of
// its own any more.
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
			if old := before.samePlace(e); old != nil && old.Unordered() && !e.Unordered() {
				return nil, fault.New(fault.Invalid, "event %s: order cannot go back to %s while the log has its events (allowed: another URI, or remove the event type, "+
					"wait for the retention, and add it again)", e.Name, OrderURI)
			}
		}
	}
	return Diff(before, next), nil
}

// samePlace returns the event type whose events are where those of e will be. Its name may be another one.
func (c *Catalog) samePlace(e *Entry) *Entry {
	if old := c.ByName(e.Name); old != nil && old.Pattern() == e.Pattern() {
		return old
	}
	if at := slices.IndexFunc(c.entries, func(old *Entry) bool { return old.Pattern() == e.Pattern() }); at >= 0 {
		return c.entries[at]
	}
	return nil
}

// Applied is the outcome of [Apply].
type Applied struct {
	// Version counts the catalogs of the workspace, from 1.
	Version int64
	// Changed is false if the same text was stored already.
	Changed bool
	// Changes lists the differences from the catalog before.
	Changes []Change
}

// Apply checks and writes one catalog. Operators' catalogs go through package apply, which checks more.
func Apply(ctx context.Context, db store.DB, workspace string, next *Catalog) (a Applied, err error) {
	d, err := Read(ctx, db, workspace)
	if err != nil {
		return a, err
	}
	if a.Changes, err = CheckChange(db, d.Catalog, next); err != nil {
		return a, err
	}
	e := d.Replace(next)
	a.Version, a.Changed = e.Version(), e.Changes()
	return a, settings.Write(ctx, db, e)
}

// namesPartition lists the workspaces that have or had a catalog, [Shared] among them.
const namesPartition = "catalogs"

// Names lists the workspaces that have a catalog of their own, [Shared] among them.
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

// Load reads the workspace's catalog, or the one of [Shared]. A workspace without one is of kind fault.NotFound.
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
