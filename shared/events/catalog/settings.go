package catalog

import (
	"cmp"
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/refresh"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// documents is the prefix of the names under which catalogs are stored. The rest of such a name is the workspace.
const documents = "catalog:"

// Shared is the name under which a stand-alone server stores the catalog for all workspaces without their own catalog.
const Shared = "*"

// Document is the stored catalog of a workspace.
type Document struct {
	settings.Stored
	Workspace string
	// Catalog is nil if the workspace has no catalog of its own, or if another version of the program stored a catalog that this version
	// cannot read. In the second case, Invalid is the reason.
	Catalog *Catalog
	Invalid error
}

// Read reads the stored catalog of a workspace, or the shared catalog if workspace is [Shared].
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

// Replace returns a [settings.Edit] that replaces the stored catalog, or removes it if next is nil. The edit also records the change for
// [settings.Announce].
func (d Document) Replace(next *Catalog) settings.Edit {
	e := settings.Edit{Old: d.Stored, Text: next.Text()}
	e.Also = append(settings.Unannounced(settings.Catalog, d.Workspace, []string{d.Workspace}, e.Version()),
		store.Put(store.Item{Key: store.Key{Table: store.Settings, Partition: namesPartition, Sort: d.Workspace}}))
	return e
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

// Load reads the workspace's catalog or, if that is missing, the shared catalog. If both are missing, the error is of kind
// fault.NotFound.
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

// Source provides the current catalogs of workspaces. For an unknown workspace, the error is of kind fault.NotFound. A Source may be used
// concurrently.
type Source interface {
	Catalog(ctx context.Context, workspace string) (*Catalog, error)
}

// Static is a [Source] with the same catalog for all workspaces.
type Static struct{ current atomic.Pointer[Catalog] }

// NewStatic returns a Static with the catalog c.
func NewStatic(c *Catalog) *Static {
	s := &Static{}
	s.current.Store(c)
	return s
}

// Replace replaces the catalog and returns the previous one.
func (s *Static) Replace(c *Catalog) (before *Catalog) { return s.current.Swap(c) }

// Catalog implements [Source].
func (s *Static) Catalog(context.Context, string) (*Catalog, error) { return s.current.Load(), nil }

// Stored is a [Source] of stored catalogs, at most [settings.MaxAge] old, with the event types of the workspace's backends. A
// workspace without its own catalog uses the catalog of [Shared].
type Stored struct {
	cache    *settings.Cache[*Catalog]
	backends *settings.Cache[map[string]BackendTypes]
	merger   merger
}

// NewStored returns a source of the catalogs in the store. A nil clock is time.Now, and a nil log is slog.Default. If configured is nil,
// the backends have the prefixes and scopes that are stored with their event types.
func NewStored(db store.DB, now func() time.Time, log *slog.Logger, configured Configured) *Stored {
	s := &Stored{
		cache:    settings.NewCache(db, documents, parseStored, now, log),
		backends: settings.NewCache(db, backendDocuments, parseBackends, now, log),
	}
	s.merger.configured, s.merger.log = configured, cmp.Or(log, slog.Default())
	s.merger.stored = s.backends.Read
	return s
}

// Latest returns the workspace's catalog without using a cache, for decisions that cannot be undone.
func Latest(ctx context.Context, s Source, workspace string) (*Catalog, error) {
	if l, ok := s.(interface {
		Latest(ctx context.Context, workspace string) (*Catalog, error)
	}); ok {
		return l.Latest(ctx, workspace)
	}
	return s.Catalog(ctx, workspace)
}

// Try calls accept with the workspace's catalog and, if accept returns false, with the latest one, because the cached catalog may lack an
// event type that another process already uses. Try returns the catalog with which it called accept last, even if accept returned false.
func Try(ctx context.Context, s Source, workspace string, accept func(*Catalog) bool) (*Catalog, error) {
	cat, err := s.Catalog(ctx, workspace)
	if err == nil && accept(cat) || err != nil && !fault.Is(err, fault.NotFound) {
		return cat, err
	}
	latest, err := Latest(ctx, s, workspace)
	if err == nil && latest != cat {
		accept(latest)
	}
	return latest, err
}

// Latest returns the workspace's catalog without using a cache. The function [Latest] calls it.
func (s *Stored) Latest(ctx context.Context, workspace string) (*Catalog, error) {
	return s.read(ctx, workspace, refresh.Latest)
}

// Catalog implements [Source].
func (s *Stored) Catalog(ctx context.Context, workspace string) (*Catalog, error) {
	return s.read(ctx, workspace, refresh.Cached)
}

func (s *Stored) read(ctx context.Context, workspace string, f refresh.Freshness) (*Catalog, error) {
	c, _, err := s.cache.Read(ctx, workspace, f)
	if c == nil && err == nil {
		c, _, err = s.cache.Read(ctx, Shared, f)
	}
	if err == nil {
		c, err = s.merger.add(ctx, workspace, c, f)
	}
	if c == nil && err == nil {
		err = errNoCatalog
	}
	return c, err
}

// UsesShared reports whether a workspace uses the catalog of [Shared].
func (s *Stored) UsesShared(ctx context.Context, workspace string) bool {
	c, _, err := s.cache.Get(ctx, workspace)
	return c == nil && err == nil
}

// Invalidate drops the cached catalogs, see [settings.Cache.Invalidate].
func (s *Stored) Invalidate() {
	s.cache.Invalidate()
	s.backends.Invalidate()
}

// Workspaces is a [Source] with a separate source per workspace. Workspaces that are not in Own use Rest. If Rest is nil, these
// workspaces are unknown.
type Workspaces struct {
	Own  map[string]Source
	Rest Source
}

// Catalog implements [Source].
func (w Workspaces) Catalog(ctx context.Context, workspace string) (*Catalog, error) {
	if own := w.Own[workspace]; own != nil {
		return own.Catalog(ctx, workspace)
	}
	if w.Rest == nil {
		return nil, errNoCatalog
	}
	return w.Rest.Catalog(ctx, workspace)
}
