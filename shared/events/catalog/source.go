package catalog

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Source serves the current catalog of a workspace. An unknown workspace is of
// kind fault.NotFound. It may be used concurrently.
type Source interface {
	Catalog(ctx context.Context, workspace string) (*Catalog, error)
}

// Static is a [Source] that this process sets itself, for all workspaces.
type Static struct{ current atomic.Pointer[Catalog] }

// NewStatic serves one catalog.
func NewStatic(c *Catalog) *Static {
	s := &Static{}
	s.current.Store(c)
	return s
}

// Replace changes the catalog for all calls that follow, and returns the one before.
func (s *Static) Replace(c *Catalog) (before *Catalog) { return s.current.Swap(c) }

// Catalog returns the catalog that was set last.
func (s *Static) Catalog(context.Context, string) (*Catalog, error) { return s.current.Load(), nil }

// Stored is a [Source] that serves what [Apply] wrote, at most [settings.MaxAge] old. A workspace
// without a catalog of its own has that of [Shared].
type Stored struct{ cache *settings.Cache[*Catalog] }

// NewStored makes a source over the store. The clock is time.Now when nil, the
// log slog.Default.
func NewStored(db store.DB, now func() time.Time, log *slog.Logger) *Stored {
	return &Stored{settings.NewCache(db, documents, parseStored, now, log)}
}

// Latest is a [Source]'s catalog without the age that a cache of it may have, for
// decisions that cannot be taken back.
func Latest(ctx context.Context, s Source, workspace string) (*Catalog, error) {
	if l, ok := s.(interface {
		Latest(ctx context.Context, workspace string) (*Catalog, error)
	}); ok {
		return l.Latest(ctx, workspace)
	}
	return s.Catalog(ctx, workspace)
}

// Latest implements [Latest].
func (s *Stored) Latest(ctx context.Context, workspace string) (*Catalog, error) {
	return s.own(ctx, workspace, s.cache.Latest)
}

// Catalog returns the workspace's catalog.
func (s *Stored) Catalog(ctx context.Context, workspace string) (*Catalog, error) {
	return s.own(ctx, workspace, s.cache.Get)
}

func (s *Stored) own(ctx context.Context, workspace string, get func(context.Context, string) (*Catalog, int64, error)) (*Catalog, error) {
	c, _, err := get(ctx, workspace)
	if c == nil && err == nil {
		c, _, err = get(ctx, Shared)
	}
	if c == nil && err == nil {
		err = errNoCatalog
	}
	return c, err
}

// Shares reports whether a workspace has the catalog of [Shared].
func (s *Stored) Shares(ctx context.Context, workspace string) bool {
	c, _, err := s.cache.Get(ctx, workspace)
	return c == nil && err == nil
}

// Written is [settings.Cache.Written].
func (s *Stored) Written() { s.cache.Written() }

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
