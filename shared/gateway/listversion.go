package gateway

import (
	"context"
	"crypto/rand"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// A backend's list has a list version, which changes whenever the backend reports a change. The new version is stored
// before any client is notified. An instance uses a cached list only if the list version is still the one from before the
// fetch. So a client that asks after the notification gets the new list, at any instance.

// listVersionLife is how long a list version is kept, which is longer than any list is used. An expired list version counts as
// a changed one.
const listVersionLife = time.Hour

// listVersionKey returns the key of the version of the lists whose changes the notification reports.
func (b *backend) listVersionKey(method string) store.Key {
	return store.Key{Table: store.Sessions, Partition: "relay#" + b.Place().String(), Sort: "mark#" + method}
}

// ChangeListVersion records that the lists behind a notification have changed.
func (b *backend) ChangeListVersion(ctx context.Context, method string) error {
	err := b.options.DB.Write(ctx, store.Put(store.Item{
		Key: b.listVersionKey(method), Value: []byte(rand.Text()), Expires: time.Now().Add(max(listVersionLife, 2*b.options.ListTTL)),
	}))
	return fault.Wrap(fault.Unavailable, err, "record that a backend's list has changed")
}

// listVersions reads the versions of the backends' lists of a kind, with one read per [store.MaxGet] backends. If a read fails,
// it returns random versions, so that no cached list is used.
func listVersions(ctx context.Context, o *Options, views []*view, kind api.Kind) (versions []string) {
	for some := range slices.Chunk(views, store.MaxGet) {
		var keys []store.Key
		for _, v := range some {
			keys = append(keys, v.of.listVersionKey(kind.Changed()))
		}
		items, err := o.DB.Get(ctx, keys...)
		if err != nil {
			o.Log.WarnContext(ctx, "list versions not read, the lists are fetched", "error", err)
		}
		for i := range keys {
			version := ""
			switch {
			case err != nil:
				version = rand.Text()
			case items[i] != nil:
				version = string(items[i].Value)
			}
			versions = append(versions, version)
		}
	}
	return versions
}
