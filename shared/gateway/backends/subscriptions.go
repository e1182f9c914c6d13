package backends

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// The store has an item for each subscription to a resource of a backend. The item's sort key is "p#", the hash of the principal, the hash
// of the URI, and the session or stream that holds the subscription, so that a query finds the subscriptions of one principal.

func wantedPartition(p api.Place) string { return "w#" + p.String() }

func wantedPrefix(s api.Subscription) string {
	h := sha256.Sum256([]byte(s.Principal))
	return "p#" + hex.EncodeToString(h[:16]) + "#"
}

func wantedURI(s api.Subscription) string {
	h := sha256.Sum256([]byte(s.URI))
	return hex.EncodeToString(h[:])
}

func wantedKey(s api.Subscription) store.Key {
	return store.Key{Table: store.Sessions, Partition: wantedPartition(s.Place), Sort: wantedPrefix(s) + wantedURI(s) + "#" + s.Holder}
}

func principalOf(sort string) string {
	principal, _, _ := strings.Cut(strings.TrimPrefix(sort, "p#"), "#")
	return principal
}

// maxWanted limits how many resources of one backend a principal may subscribe to.
const maxWanted = 2000

// Subscribe stores a client's subscription to a backend's resource, or extends an existing one. The relay then subscribes at the backend:
// immediately on a stand-alone server, and otherwise within a second. Subscribe returns an error if the principal has too many
// subscriptions at the backend.
func (bs *Set) Subscribe(ctx context.Context, s api.Subscription) error {
	if err := bs.checkLimit(ctx, s); err != nil {
		return err
	}
	err := bs.options.DB.Write(ctx, store.Put(store.Item{Key: wantedKey(s), Value: []byte(s.URI), Expires: s.Until}))
	bs.wakeRelay(ctx, s.Place)
	return fault.Wrap(fault.Unavailable, err, "record a subscription at a backend")
}

func (bs *Set) checkLimit(ctx context.Context, s api.Subscription) error {
	prefix, own := wantedPrefix(s), wantedURI(s)
	uris := map[string]bool{}
	q := store.Query{Table: store.Sessions, Partition: wantedPartition(s.Place), After: prefix, Until: prefix + "~", Limit: 1000}
	err := store.EachOf(ctx, bs.options.DB, q, "count the subscriptions at a backend", func(it *store.Item) error {
		uri, _, _ := strings.Cut(strings.TrimPrefix(it.Sort, prefix), "#")
		uris[uri] = true
		return nil
	})
	if err != nil {
		return err
	}
	if len(uris) >= maxWanted && !uris[own] {
		return fault.New(fault.Exhausted, "the limit backendSubscriptions of %d is reached at backend %s", maxWanted, s.Backend).
			AtLimit("backendSubscriptions", maxWanted)
	}
	return nil
}

// Unsubscribe deletes the stored subscription of a client to a backend's resource. The relay then ends its own subscription at the backend,
// unless other clients need it.
func (bs *Set) Unsubscribe(ctx context.Context, s api.Subscription) error {
	err := bs.options.DB.Write(ctx, store.Delete(wantedKey(s)))
	bs.wakeRelay(ctx, s.Place)
	return fault.Wrap(fault.Unavailable, err, "end a subscription at a backend")
}

// wakeRelay makes the relay read the clients' subscriptions to the backend's resources again, if the relay runs in this process.
func (bs *Set) wakeRelay(ctx context.Context, at api.Place) {
	for _, b := range bs.current(ctx) {
		if b.Place() == at {
			select {
			case b.changed <- struct{}{}:
			default:
			}
		}
	}
}

// Subscribable finds the backend that serves a resource. The result ok reports whether a client can subscribe to the resource: the
// backend offers subscriptions, the relay has credentials for the backend, and the relay has not found that the backend lacks a
// notification stream. Subscribable returns an error only if the principal lacks a scope for the resource.
func (bs *Set) Subscribable(ctx context.Context, p auth.Principal, uri string) (backend string, ok bool, err error) {
	e, err := bs.findListed(ctx, p, bs.viewsFor(ctx, api.Client{Principal: p}), api.Resources, uri)
	switch {
	case auth.LacksScope(err):
		return "", false, err
	// A client cannot subscribe if the URI is in no list, or if the relay has no credentials for the backend.
	case err != nil || e.View.backend.OnlyForCallers():
		return "", false, nil
	}
	info, _ := e.View.LoadInfo(ctx)
	return e.Backend, info != nil && info.Subscribe && e.View.backend.hasStream(ctx), nil
}

// Permits reports whether the principal may use a backend and receive updates of a resource according to the backend's rules. A rule that
// denies a resource template also denies the resources that match the template. As an exception, the principal may use a resource that
// the backend lists with a permitted entry of its own, or that matches another, permitted template.
func (bs *Set) Permits(ctx context.Context, p auth.Principal, backend, uri string) bool {
	for _, b := range bs.VisibleTo(ctx, p) {
		if b.Name != backend {
			continue
		}
		scopes, ok := b.rules[api.Resources].Permits(uri)
		if !ok || !p.Has(scopes...) || b.Resources.Empty() {
			return ok && p.Has(scopes...)
		}
		templates := b.view.listOfAnyVersion(ctx, api.Templates)
		if templates == nil {
			return false
		}
		if !templates.restricts(uri) {
			return true
		}
		_, err := lookUp(p, api.Resources, uri, func(kind api.Kind) iter.Seq[*fetched] {
			return slices.Values([]*fetched{cmp.Or(b.view.listOfAnyVersion(ctx, kind), &fetched{})})
		})
		return err == nil
	}
	return false
}

// listOfAnyVersion returns the backend's list of this kind, or nil if it was never fetched and cannot be fetched now. It fetches the list
// again only if the cached one is older than Options.ListTTL. It does not check whether the list version in the store has changed,
// because it runs for each update of a resource.
func (v *View) listOfAnyVersion(ctx context.Context, kind api.Kind) *fetched {
	l := v.currentList(kind)
	version := ""
	if l != nil {
		version = l.version
	} else {
		version = listVersions(ctx, v.backend.options, []*View{v}, kind)[0]
	}
	// If list returns an error, it also returns the list that was fetched last. So the error does not matter.
	list, _ := v.list(ctx, kind, version, func(*fetched) time.Duration { return v.backend.options.ListTTL })
	return list
}

func noStreamKey(p api.Place) store.Key {
	return store.Key{Table: store.Sessions, Partition: "relay#" + p.String(), Sort: "nostream"}
}

func (b *Backend) hasStream(ctx context.Context) bool {
	none, err := b.noStream.Get(ctx)
	if err != nil {
		b.options.Log.WarnContext(ctx, "notification stream of backend not read", "backend", b.Name, "error", err)
		return true
	}
	return !none
}

func (b *Backend) readNoStream(ctx context.Context, _ bool) (bool, error) {
	it, err := store.One(ctx, b.options.DB, noStreamKey(b.Place()), "read whether a backend has a notification stream")
	return it != nil, err
}
