package backends

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Followed is a backend as the relay sees it, with the operator's credentials. As long as its configuration is unchanged, each
// call of [Set.Followed] returns an equal value for it, so that the relay can find its state for the backend.
type Followed struct{ *Backend }

// Followed returns the backends that the relay can follow. It leaves out commands that do not run, because following would start them,
// although nothing changes in them. It includes such a command if a client is subscribed to its events or resources.
func (bs *Set) Followed(ctx context.Context) (out []Followed) {
	for _, b := range bs.current(ctx) {
		if !b.isDormant(ctx) {
			out = append(out, Followed{b})
		}
	}
	return out
}

// isDormant reports whether the backend is a command that does not run and need not be started. If clients are subscribed to
// events of the command, isDormant also records that it is in use, so that it keeps running between polls.
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
	wanted, err := Followed{b}.Wanted(ctx)
	return err != nil || len(wanted) == 0
}

// OnlyForCallers reports whether only callers have credentials for the backend.
func (f Followed) OnlyForCallers() bool { return f.perCaller() }

// Client returns the client for the gateway's own requests to the backend.
func (f Followed) Client() *upstream.Client { return &f.own }

// Ask asks the backend again for its revision and capabilities, because another server may have taken its place.
func (f Followed) Ask(ctx context.Context) (api.Capabilities, spec.Version, error) {
	f.view.info.Expire(func(*ServerInfo) bool { return true })
	info, err := f.view.LoadInfo(ctx)
	if err != nil {
		return api.Capabilities{}, "", err
	}
	return info.Capabilities, info.Version, nil
}

// Check returns an error unless the backend responds. To a session-based backend, it first sends a ping in the gateway's own
// session, because a new session for each check would cost the backend more.
func (f Followed) Check(ctx context.Context) error {
	if info, _ := f.view.info.Peek(); info != nil && !info.Version.Stateless() {
		request := upstream.Request{Version: info.Version, Session: info.session}
		if _, err := f.own.Ask(ctx, request, "ping", json.RawMessage(`{}`)); err == nil {
			return nil
		}
	}
	_, _, err := f.Ask(ctx)
	return err
}

// Info returns the backend's revision and capabilities, even if they are old. It asks the backend if they are unknown.
func (f Followed) Info(ctx context.Context) (api.Capabilities, spec.Version, error) {
	info, err := f.view.LoadInfo(ctx)
	if info == nil {
		return api.Capabilities{}, "", err
	}
	return info.Capabilities, info.Version, nil
}

// Wanted returns the URIs of the backend's resources to which clients are subscribed, each with its subscribers' principals (hashed). The
// channel of [Followed.Changed] receives when they may have changed.
func (f Followed) Wanted(ctx context.Context) (map[string][]string, error) {
	out := map[string][]string{}
	partition := store.Key{Table: store.Sessions, Partition: wantedPartition(f.Place())}
	err := store.Each(ctx, f.options.DB, partition, "read the subscriptions at a backend", func(it *store.Item) error {
		uri, principal := string(it.Value), principalOf(it.Sort)
		if !slices.Contains(out[uri], principal) {
			out[uri] = append(out[uri], principal)
		}
		return nil
	})
	return out, err
}

// SetNoStream records until the given time that the backend has no notification stream. If until is zero, it removes the record.
func (f Followed) SetNoStream(ctx context.Context, until time.Time) error {
	op := store.Delete(noStreamKey(f.Place()))
	if !until.IsZero() {
		op = store.Put(store.Item{Key: noStreamKey(f.Place()), Expires: until})
	}
	return fault.Wrap(fault.Unavailable, f.options.DB.Write(ctx, op), "record the notification stream of a backend")
}

// Changed returns a channel that receives when the result of [Followed.Wanted] may have changed.
func (f Followed) Changed() <-chan struct{} { return f.changed }

// Reported returns a channel that receives the methods of the list changes that the backend has reported within calls of this process.
func (f Followed) Reported() <-chan string { return f.reported }

// Outdate makes the next [Followed.List] fetch the list again.
func (f Followed) Outdate() { f.view.Outdate() }

// List returns a list that was fetched after the last call of [Followed.Outdate].
func (f Followed) List(ctx context.Context, kind api.Kind) ([]api.Entry, error) {
	version := listVersions(ctx, f.options, []*View{f.view}, kind)[0]
	list, err := f.view.list(ctx, kind, version, func(*fetched) time.Duration { return maxTTL })
	if err != nil {
		return nil, err
	}
	entries := make([]api.Entry, len(list.entries))
	for i, e := range list.entries {
		entries[i] = e.Entry
	}
	return entries, nil
}
