package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/store"
)

// Subscription says that a session or a stream is subscribed to a resource of a backend.
// The relay subscribes there while anybody is.
type Subscription struct {
	Workspace, Backend, URI string
	// Holder is the session or stream, Until when it is over at the latest.
	Holder string
	Until  time.Time
}

func wantedPartition(p place) string { return "w#" + p.String() }

func (w Subscription) place() place { return place{w.Workspace, w.Backend} }

func (w Subscription) key() store.Key {
	h := sha256.Sum256([]byte(w.URI))
	return store.Key{Table: store.Sessions, Partition: wantedPartition(w.place()), Sort: hex.EncodeToString(h[:]) + "#" + w.Holder}
}

// Subscribe records a subscription. The relay acts on it within a second, embedded at once.
func (g *Gateway) Subscribe(ctx context.Context, w Subscription) error {
	err := g.options.DB.Write(ctx, store.Put(store.Item{Key: w.key(), Value: []byte(w.URI), Expires: w.Until}))
	g.kick(ctx, w.place())
	return fault.Wrap(fault.Unavailable, err, "record a subscription at a backend")
}

// Unsubscribe ends it.
func (g *Gateway) Unsubscribe(ctx context.Context, w Subscription) error {
	err := g.options.DB.Write(ctx, store.Delete(w.key()))
	g.kick(ctx, w.place())
	return fault.Wrap(fault.Unavailable, err, "end a subscription at a backend")
}

// wanted are the URIs that somebody is subscribed to.
func (g *Gateway) wanted(ctx context.Context, at place) (map[string]bool, error) {
	out := map[string]bool{}
	q := store.Query{Table: store.Sessions, Partition: wantedPartition(at), Limit: 1000}
	for {
		page, err := g.options.DB.Query(ctx, q)
		if err != nil {
			return nil, fault.Wrap(fault.Unavailable, err, "read the subscriptions at a backend")
		}
		for _, it := range page.Items {
			out[string(it.Value)] = true
		}
		if !page.More {
			return out, nil
		}
		q.After = page.Last
	}
}

func (g *Gateway) kick(ctx context.Context, at place) {
	for _, b := range g.backends(ctx) {
		if b.place() == at {
			select {
			case b.changed <- struct{}{}:
			default:
			}
		}
	}
}

// Backends names the backends that a principal may use.
func (g *Gateway) Backends(ctx context.Context, p auth.Principal) (names []string) {
	for _, b := range g.visible(ctx, p) {
		names = append(names, b.Name)
	}
	return names
}

// Subscribable finds the backend that serves a resource and tells of its changes.
func (g *Gateway) Subscribable(ctx context.Context, p auth.Principal, uri string) (backend string, ok bool) {
	e, ok := g.serves(ctx, Client{Principal: p}, Resources, uri)
	if !ok || e.backend.perCaller() { // nobody listens there
		return "", false
	}
	known, _ := e.backend.known(ctx)
	return e.backend.Name, known != nil && known.offers.Subscribe
}
