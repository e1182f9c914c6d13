package main

import (
	"context"
	"strconv"
	"sync"
	"time"

	"mcpevents/shared/catalog"
	"mcpevents/shared/config"
	"mcpevents/shared/eventlog"
	"mcpevents/shared/fault"
	"mcpevents/shared/store"
	"mcpevents/shared/stream"
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
	told map[string]string // fingerprints by workspace
}

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
		if err := k.load(ctx, db); err != nil {
			return nil, err
		}
	}
	return a, a.Changed(ctx)
}

// load reads what was told.
func (k *announced) load(ctx context.Context, db store.DB) error {
	k.told = map[string]string{}
	q := store.Query{Table: store.Settings, Partition: k.partition, Limit: 1000}
	for {
		page, err := db.Query(ctx, q)
		if err != nil {
			return fault.Wrap(fault.Unavailable, err, "read what was announced")
		}
		for _, it := range page.Items {
			k.told[it.Sort] = string(it.Value)
		}
		if !page.More {
			return nil
		}
		q.After = page.Last
	}
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
		if _, known := k.told[workspace]; known {
			continue
		}
		now, err := k.now(ctx, workspace)
		if err != nil {
			return err
		}
		if err := k.remember(ctx, a.db, workspace, now); err != nil {
			return err
		}
	}
	return nil
}

// remember keeps what a workspace was told. The caller holds the lock.
func (k *announced) remember(ctx context.Context, db store.DB, workspace, fingerprint string) error {
	err := db.Write(ctx, store.Put(store.Item{
		Key: store.Key{Table: store.Settings, Partition: k.partition, Sort: workspace}, Value: []byte(fingerprint),
	}))
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "keep what was announced")
	}
	k.told[workspace] = fingerprint
	return nil
}

// Changed tells all workspaces that have another catalog now, or other backends.
func (a *announcer) Changed(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.kinds {
		for workspace, told := range k.told {
			now, err := k.now(ctx, workspace)
			if fault.Is(err, fault.NotFound) || err == nil && now == told {
				continue
			}
			if err != nil {
				return err
			}
			version := now + "-" + strconv.FormatInt(time.Now().UnixMicro(), 36) // it may come back to an older one
			if err := k.tell(ctx, a.log, workspace, version); err != nil {
				return err
			}
			if err := k.remember(ctx, a.db, workspace, now); err != nil {
				return err
			}
		}
	}
	return nil
}
