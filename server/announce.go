package server

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/bounded"
	"github.com/mcp-events/mcpevents/shared/catalog"
	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/stream"
)

// announcer tells the streams of a workspace when its catalog, or the set of its backends, is
// another than the one they were told of. What was told is kept in the store: a client that comes
// back with its cursor learns of a change that was made while the server was down.
type announcer struct {
	*stream.Tails // what streams read

	db  store.DB
	log *eventlog.Log

	mu    sync.Mutex
	kinds []*announced
}

// announced is what streams are told the changes of.
type announced struct {
	partition string // of the store
	// now has the fingerprint of a workspace's; fault.NotFound for a workspace that there is not.
	now  func(ctx context.Context, workspace string) (string, error)
	tell func(ctx context.Context, log *eventlog.Log, workspace, version string) error
	// kept are workspaces of which the store has a fingerprint.
	kept *bounded.Map[string, bool]
}

// maxKept bounds the workspaces that are remembered; their names come from callers.
const maxKept = 1024

func newAnnouncer(ctx context.Context, db store.DB, log *eventlog.Log, catalogs catalog.Source, settings *config.Replaceable, feeds *stream.Tails) (*announcer, error) {
	a := &announcer{db: db, log: log, Tails: feeds, kinds: []*announced{
		{partition: "catalog-told", tell: stream.AnnounceCatalog, now: func(ctx context.Context, workspace string) (string, error) {
			cat, err := catalogs.Catalog(ctx, workspace)
			if err != nil {
				return "", err
			}
			return cat.Fingerprint(), nil
		}},
		{partition: "backends-told", tell: stream.AnnounceBackends, now: func(ctx context.Context, workspace string) (string, error) {
			c, err := settings.Config(ctx)
			if err != nil {
				return "", err
			}
			return c.Fingerprint(workspace), nil
		}},
	}}
	for _, k := range a.kinds {
		k.kept = bounded.NewMap[string, bool](maxKept)
	}
	return a, a.Changed(ctx)
}

// Open opens a feed, from which on its workspace is to be told of changes.
func (a *announcer) Open(ctx context.Context, r stream.Request) (*stream.Feed, error) {
	if err := a.follow(ctx, r.Workspace); err != nil {
		return nil, err
	}
	return a.Tails.Open(ctx, r)
}

func (a *announcer) follow(ctx context.Context, workspace string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.kinds {
		if _, known := k.kept.Get(workspace); known {
			continue
		}
		now, err := k.now(ctx, workspace)
		if err != nil {
			return err
		}
		if err := k.keep(ctx, a.db, workspace, now, store.Absent()); err != nil && !errors.Is(err, store.ErrConflict) {
			return err
		}
		k.kept.Put(workspace, true)
	}
	return nil
}

// keep stores what was announced to a workspace.
func (k *announced) keep(ctx context.Context, db store.DB, workspace, fingerprint string, cond ...store.Condition) error {
	err := db.Write(ctx, store.Put(store.Item{
		Key: store.Key{Table: store.Settings, Partition: k.partition, Sort: workspace}, Value: []byte(fingerprint),
	}, cond...))
	return fault.Wrap(fault.Unavailable, err, "keep what is announced")
}

// Changed tells all workspaces that have another catalog now, or other backends.
func (a *announcer) Changed(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.kinds {
		q := store.Query{Table: store.Settings, Partition: k.partition, Limit: 1000}
		for more := true; more; {
			page, err := a.db.Query(ctx, q)
			if err != nil {
				return fault.Wrap(fault.Unavailable, err, "read what was announced")
			}
			for _, it := range page.Items {
				if err := a.compare(ctx, k, it.Sort, string(it.Value)); err != nil {
					return err
				}
			}
			q.After, more = page.Last, page.More
		}
	}
	return nil
}

// compare tells a workspace of a change since what it was told last.
func (a *announcer) compare(ctx context.Context, k *announced, workspace, last string) error {
	now, err := k.now(ctx, workspace)
	if fault.Is(err, fault.NotFound) || err == nil && now == last {
		return nil
	}
	if err != nil {
		return err
	}
	version := now + "-" + strconv.FormatInt(time.Now().UnixMicro(), 36) // it may come back to an older one
	if err := k.tell(ctx, a.log, workspace, version); err != nil {
		return err
	}
	return k.keep(ctx, a.db, workspace, now)
}
