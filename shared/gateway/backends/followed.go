package backends

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// The methods in this file are for package relay, which follows the backends' notifications. Their requests carry the operator's
// credentials.

// Followed returns the backends whose notifications the relay should receive. It leaves out a command that is not running, because the
// relay would start it. But if a client is subscribed to the command's events or resources, the result contains it. For each backend,
// Followed returns the same pointer until the backend's configuration changes.
func (bs *Set) Followed(ctx context.Context) (out []*Backend) {
	for _, b := range bs.current(ctx) {
		if !b.isDormant(ctx) {
			out = append(out, b)
		}
	}
	return out
}

// isDormant reports whether the backend is a command that is not running and need not be started. If clients are subscribed to events of
// the command, isDormant also records that it is in use, so that it keeps running between requests for its events.
func (b *Backend) isDormant(ctx context.Context) bool {
	if b.Command == nil || b.options.Commands == nil {
		return false
	}
	if b.options.EventsWanted != nil && b.options.EventsWanted(ctx, b.Workspace, b.Name) {
		b.options.Commands.Touch(b.Backend)
		return false
	}
	if b.options.Commands.Running(b.Backend) {
		return false
	}
	wanted, err := b.Wanted(ctx)
	return err != nil || len(wanted) == 0
}

// Client returns the client for the gateway's own requests to the backend.
func (b *Backend) Client() *upstream.Client { return &b.own }

// Ask asks the backend again for its revision and capabilities, because another server may run at its URL by now.
func (b *Backend) Ask(ctx context.Context) (*ServerInfo, error) {
	b.view.info.Expire(func(*ServerInfo) bool { return true })
	return b.view.LoadInfo(ctx)
}

// Check returns an error if the backend does not respond. To a session-based backend, it first sends a ping in the gateway's own session,
// because a new session for each check would cost the backend more.
func (b *Backend) Check(ctx context.Context) error {
	if info, _ := b.view.info.Peek(); info != nil && !info.Version.Stateless() {
		request := upstream.Request{Version: info.Version, Session: info.session}
		if _, err := b.own.Ask(ctx, request, "ping", json.RawMessage(`{}`)); err == nil {
			return nil
		}
	}
	_, err := b.Ask(ctx)
	return err
}

// Info returns the backend's revision and capabilities, even if they are old. It asks the backend if they are unknown.
func (b *Backend) Info(ctx context.Context) (*ServerInfo, error) {
	info, err := b.view.LoadInfo(ctx)
	if info != nil {
		err = nil
	}
	return info, err
}

// Wanted returns the URIs of the backend's resources to which clients are subscribed, each with the hashes of its subscribers'
// principals. The channel of [Backend.Changed] receives when the result may have changed.
func (b *Backend) Wanted(ctx context.Context) (map[string][]string, error) {
	out := map[string][]string{}
	partition := store.Key{Table: store.Sessions, Partition: wantedPartition(b.Place())}
	err := store.Each(ctx, b.options.DB, partition, "read the subscriptions at a backend", func(it *store.Item) error {
		uri, principal := string(it.Value), principalOf(it.Sort)
		if !slices.Contains(out[uri], principal) {
			out[uri] = append(out[uri], principal)
		}
		return nil
	})
	return out, err
}

// SetNoStream records in the store that the backend has no notification stream, until the given time. If until is zero, it removes the
// record.
func (b *Backend) SetNoStream(ctx context.Context, until time.Time) error {
	op := store.Delete(noStreamKey(b.Place()))
	if !until.IsZero() {
		op = store.Put(store.Item{Key: noStreamKey(b.Place()), Expires: until})
	}
	return fault.Wrap(fault.Unavailable, b.options.DB.Write(ctx, op), "record the notification stream of a backend")
}

// Changed returns a channel that receives when the result of [Backend.Wanted] may have changed.
func (b *Backend) Changed() <-chan struct{} { return b.changed }

// Reported returns a channel that receives the method of each notification about a changed list that the backend sends within a call of
// this process.
func (b *Backend) Reported() <-chan string { return b.reported }

// Outdate makes the next [Backend.List] fetch the list again.
func (b *Backend) Outdate() { b.view.Outdate() }

// List returns a list that was fetched after the last call of [Backend.Outdate].
func (b *Backend) List(ctx context.Context, kind api.Kind) ([]api.Entry, error) {
	version := listVersions(ctx, b.options, []*View{b.view}, kind)[0]
	list, err := b.view.list(ctx, kind, version, func(*fetched) time.Duration { return maxTTL })
	if err != nil {
		return nil, err
	}
	entries := make([]api.Entry, len(list.entries))
	for i, e := range list.entries {
		entries[i] = e.Entry
	}
	return entries, nil
}
