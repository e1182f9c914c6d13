package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/store"
)

func wantedPartition(p api.Place) string { return "w#" + p.String() }

func wantedKey(s api.Subscription) store.Key {
	h := sha256.Sum256([]byte(s.URI))
	return store.Key{Table: store.Sessions, Partition: wantedPartition(s.Place), Sort: hex.EncodeToString(h[:]) + "#" + s.Holder}
}

// Subscribe records a subscription. The relay acts on it within a second, embedded at once.
func (g *Gateway) Subscribe(ctx context.Context, s api.Subscription) error {
	err := g.options.DB.Write(ctx, store.Put(store.Item{Key: wantedKey(s), Value: []byte(s.URI), Expires: s.Until}))
	g.backends.kick(ctx, s.Place)
	return fault.Wrap(fault.Unavailable, err, "record a subscription at a backend")
}

// Unsubscribe ends it.
func (g *Gateway) Unsubscribe(ctx context.Context, s api.Subscription) error {
	err := g.options.DB.Write(ctx, store.Delete(wantedKey(s)))
	g.backends.kick(ctx, s.Place)
	return fault.Wrap(fault.Unavailable, err, "end a subscription at a backend")
}

// kick makes the relay of this process look at the subscriptions.
func (bs *backends) kick(ctx context.Context, at api.Place) {
	for _, b := range bs.now(ctx) {
		if b.Place() == at {
			select {
			case b.changed <- struct{}{}:
			default:
			}
		}
	}
}

// Subscribable finds the backend that serves a resource and notifies of its changes.
func (g *Gateway) Subscribable(ctx context.Context, p auth.Principal, uri string) (backend string, ok bool) {
	e, ok := g.lists.serves(ctx, g.backends.shown(ctx, api.Client{Principal: p}), api.Resources, uri)
	if !ok || e.view.of.perCaller() { // the relay has no credentials there
		return "", false
	}
	known, _ := e.view.known(ctx)
	return e.Backend, known != nil && known.Subscribe
}
