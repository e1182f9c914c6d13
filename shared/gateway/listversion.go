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

// The list version of a backend's list is another whenever the backend is known to have changed
// it. It is in the store before any client is notified of the change, so that whoever asks after that,
// at whatever instance, gets what is listed now: an instance uses what it has fetched
// only while the list version is the one that it read before.

// listVersionLife is how long a list version is kept: longer than any list is used. Without it a list is as one whose list version
// has changed.
const listVersionLife = time.Hour

// listVersionKey is of the lists whose change that notification is of.
func (b *backend) listVersionKey(method string) store.Key {
	return store.Key{Table: store.Sessions, Partition: "relay#" + b.Place().String(), Sort: "mark#" + method}
}

// ChangeListVersion records that the lists have changed whose notification that is.
func (b *backend) ChangeListVersion(ctx context.Context, method string) error {
	err := b.options.DB.Write(ctx, store.Put(store.Item{
		Key: b.listVersionKey(method), Value: []byte(rand.Text()), Expires: time.Now().Add(max(listVersionLife, 2*b.options.ListTTL)),
	}))
	return fault.Wrap(fault.Unavailable, err, "record that a backend's list has changed")
}

// listVersions reads the versions of the backends' lists of a kind, in one read for up to
// [store.MaxGet] of them. One that cannot be read is like no other, so that nothing old is used.
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
