package gateway

import (
	"context"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Followed is a backend as the relay needs it: with the operator's credentials, and the same value for as
// long as its configuration is the same.
type Followed struct{ *backend }

// Followed are the backends whose notifications can be had. Where only callers have credentials there are none.
func (g *Gateway) Followed(ctx context.Context) (out []Followed) {
	for _, b := range g.backends.now(ctx) {
		if !b.perCaller() {
			out = append(out, Followed{b})
		}
	}
	return out
}

// Client speaks to it for the gateway itself.
func (f Followed) Client() *upstream.Client { return &f.own }

// Ask asks the backend again for its revision and capabilities, because another server may have taken its place.
func (f Followed) Ask(ctx context.Context) (api.Capabilities, spec.Version, error) {
	f.answer.Expire(func(*known) bool { return true })
	known, err := f.known(ctx)
	if err != nil {
		return api.Capabilities{}, "", err
	}
	return known.Capabilities, known.version, nil
}

// Wanted returns the URIs that sessions or streams are subscribed to there, each with the principals that are. Changed receives when
// they may be others.
func (f Followed) Wanted(ctx context.Context) (map[string][]string, error) {
	out := map[string][]string{}
	partition := store.Key{Table: store.Sessions, Partition: wantedPartition(f.Place())}
	err := store.Each(ctx, f.options.DB, partition, "read the subscriptions at a backend", func(it *store.Item) error {
		uri, principal := string(it.Value), wantedBy(it.Sort)
		if !slices.Contains(out[uri], principal) {
			out[uri] = append(out[uri], principal)
		}
		return nil
	})
	return out, err
}

// SetNoStream records until when the backend has no notification stream; the zero time records that it has one.
func (f Followed) SetNoStream(ctx context.Context, until time.Time) error {
	op := store.Delete(noStreamKey(f.Place()))
	if !until.IsZero() {
		op = store.Put(store.Item{Key: noStreamKey(f.Place()), Expires: until})
	}
	return fault.Wrap(fault.Unavailable, f.options.DB.Write(ctx, op), "record the notification stream of a backend")
}

// Changed is described at [Followed.Wanted].
func (f Followed) Changed() <-chan struct{} { return f.changed }

// List is its list of a kind, fetched since [Followed.Outdate].
func (f Followed) List(ctx context.Context, kind api.Kind) ([]api.Entry, error) {
	version := listVersions(ctx, f.options, []*view{f.view}, kind)[0]
	list, err := f.list(ctx, kind, version, func(*fetched) time.Duration { return maxTTL })
	if err != nil {
		return nil, err
	}
	entries := make([]api.Entry, len(list.entries))
	for i, e := range list.entries {
		entries[i] = e.Entry
	}
	return entries, nil
}
