package main

import (
	"context"
	"strconv"
	"sync"
	"time"

	"mcpevents/shared/catalog"
	"mcpevents/shared/eventlog"
	"mcpevents/shared/fault"
	"mcpevents/shared/store"
	"mcpevents/shared/stream"
)

// announcer tells the streams of a workspace when its catalog is another than the
// one they were told of. What was told is kept in the store: a client that comes
// back with its cursor learns of a change that was made while the server was down.
type announcer struct {
	*stream.Tails // what streams read

	db       store.DB
	log      *eventlog.Log
	catalogs catalog.Source

	mu   sync.Mutex
	told map[string]string // fingerprints by workspace
}

const toldPartition = "catalog-told"

func newAnnouncer(ctx context.Context, db store.DB, log *eventlog.Log, catalogs catalog.Source, feeds *stream.Tails) (*announcer, error) {
	a := &announcer{db: db, log: log, catalogs: catalogs, Tails: feeds, told: map[string]string{}}
	q := store.Query{Table: store.Settings, Partition: toldPartition, Limit: 1000}
	for {
		page, err := db.Query(ctx, q)
		if err != nil {
			return nil, fault.Wrap(fault.Unavailable, err, "read which catalogs were announced")
		}
		for _, it := range page.Items {
			a.told[it.Sort] = string(it.Value)
		}
		if !page.More {
			return a, a.Changed(ctx)
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
	if _, known := a.told[workspace]; known {
		return nil
	}
	cat, err := a.catalogs.Catalog(ctx, workspace)
	if err != nil {
		return err
	}
	return a.remember(ctx, workspace, cat.Fingerprint())
}

// remember keeps what a workspace was told. The caller holds the lock.
func (a *announcer) remember(ctx context.Context, workspace, fingerprint string) error {
	err := a.db.Write(ctx, store.Put(store.Item{
		Key: store.Key{Table: store.Settings, Partition: toldPartition, Sort: workspace}, Value: []byte(fingerprint),
	}))
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "keep which catalog was announced")
	}
	a.told[workspace] = fingerprint
	return nil
}

// Changed tells all workspaces whose catalog is another now.
func (a *announcer) Changed(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for workspace, told := range a.told {
		cat, err := a.catalogs.Catalog(ctx, workspace)
		if fault.Is(err, fault.NotFound) {
			continue
		}
		if err != nil {
			return err
		}
		now := cat.Fingerprint()
		if now == told {
			continue
		}
		version := now + "-" + strconv.FormatInt(time.Now().UnixMicro(), 36) // it may come back to an older text
		if err := stream.AnnounceCatalog(ctx, a.log, workspace, version); err != nil {
			return err
		}
		if err := a.remember(ctx, workspace, now); err != nil {
			return err
		}
	}
	return nil
}
