// Package demand records which events of backends are wanted, so that the relay subscribes at the backends for them.
//
//	stream, poll, webhook ──[Registry.Want]──▶ [sessions] ──[Registry.Wanted]──▶ relay
//	          ▲                                    │
//	          └────── waits for the [State] ◀──────┴──[Registry.SetState]─────── relay
//
// A demand is for one URI, which names the backend, the event type and the arguments (see package catalog). Equal demands of several
// clients lead to one subscription at the backend. The demand of a stream or a poll lasts for [keep] and is renewed; the demand of a
// webhook subscription lasts as long as the subscription. The package also keeps the backend's cursors.
//
// [Hooks] has the subscriptions at backends that deliver by webhook only.
//
// Continue in shared/gateway/relay, which subscribes at the backends, and in shared/events/demand/intake, which accepts their events.
package demand

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

const (
	// keep is how long a demand lasts after its last renewal. It is also the grace period in which a client can return. Clients
	// poll more often.
	keep = 10 * time.Minute
	// RenewEvery is how often the demand of an open stream is renewed.
	RenewEvery = keep / 4
	// maxWanted limits the demands of a principal at one backend.
	maxWanted = 200
	// lookEvery is how often a waiting client looks whether the relay has subscribed.
	lookEvery = 50 * time.Millisecond
	// refusedFor is how long clients get the error of a refused subscription without another attempt.
	refusedFor = 30 * time.Second
	// unused is how long the items stay if no relay removes them.
	unused = 30 * 24 * time.Hour
)

// Registry records demands. It is safe for concurrent use.
type Registry struct {
	DB store.DB
	// Start limits how long a client waits until the relay has subscribed. Events that arrive later still reach it, after a gap.
	// 0 means 3 s.
	Start time.Duration

	renewed bounded.Map[store.Key, time.Time] // when this process renewed a demand

	mu    sync.Mutex
	awake chan struct{} // closed at the next demand
}

// New returns a registry over the store.
func New(db store.DB) *Registry { return &Registry{DB: db, awake: make(chan struct{})} }

// Changed returns a channel that is closed when this process records another demand.
func (r *Registry) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.awake
}

func (r *Registry) wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.awake)
	r.awake = make(chan struct{})
}

func hash(text string) string {
	h := sha256.Sum256([]byte(text))
	return base64.RawURLEncoding.EncodeToString(h[:16])
}

// partition returns the partition with the demands at a backend. Their sort keys are the hashes of the principal and the URI.
func partition(workspace, backend string) string { return "ev#" + workspace + "#" + backend }

func wantKey(workspace, principal, uri string) store.Key {
	return store.Key{Table: store.Sessions, Partition: partition(workspace, catalog.BackendOf(uri)), Sort: hash(principal) + "#" + hash(uri)}
}

// statePartition returns the partition with the states of the subscriptions at a backend.
func statePartition(workspace, backend string) string { return "es#" + workspace + "#" + backend }

func stateKey(workspace, uri, what string) store.Key {
	return store.Key{Table: store.Sessions, Partition: statePartition(workspace, catalog.BackendOf(uri)), Sort: hash(uri) + "#" + what}
}

const untilCount = "until"

// Want records that a principal wants the events of a URI, and waits until the relay has subscribed at the backend, for a few seconds at
// most. It returns an error if the backend refuses the subscription, or if the principal wants too much. For a URI that belongs to no
// backend, and for a nil registry, it does nothing.
func (r *Registry) Want(ctx context.Context, workspace, principal, uri string) error {
	if r == nil || catalog.BackendOf(uri) == "" {
		return nil
	}
	key, now := wantKey(workspace, principal, uri), time.Now()
	if at, ok := r.renewed.Get(key); ok && now.Sub(at) < RenewEvery {
		return nil
	}
	items, err := r.DB.Get(ctx, key)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "read a demand for events of a backend")
	}
	if items[0] == nil {
		if err := r.checkLimit(ctx, key); err != nil {
			return err
		}
	}
	if err := r.DB.Write(ctx, store.Put(item(key, uri, now))); err != nil {
		return fault.Wrap(fault.Unavailable, err, "record a demand for events of a backend")
	}
	if err := r.await(ctx, workspace, uri); err != nil {
		return err
	}
	r.renewed.Put(key, now)
	return nil
}

func item(key store.Key, uri string, now time.Time) store.Item {
	until := now.Add(keep)
	return store.Item{
		Key: key, Value: []byte(uri), Version: now.UnixMicro(), Counts: map[string]int64{untilCount: until.Unix()}, Expires: until.Add(unused),
	}
}

// checkLimit returns an error if the principal has too many demands at the backend for another one.
func (r *Registry) checkLimit(ctx context.Context, key store.Key) error {
	prefix, _, _ := strings.Cut(key.Sort, "#")
	page, err := r.DB.Query(ctx, store.Query{Table: key.Table, Partition: key.Partition, After: prefix + "#", Until: prefix + "#~", Limit: maxWanted})
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "count the demands for events of a backend")
	}
	if len(page.Items) >= maxWanted {
		return fault.New(fault.Exhausted, "the limit backendEvents of %d different subscriptions to events of one backend is reached", maxWanted).
			AtLimit("backendEvents", maxWanted)
	}
	return nil
}

// await waits until the relay has subscribed.
func (r *Registry) await(ctx context.Context, workspace, uri string) error {
	r.wake()
	for end := time.Now().Add(cmp.Or(r.Start, 3*time.Second)); ; {
		s, err := r.State(ctx, workspace, uri)
		switch {
		case err != nil:
			return err
		case s.Error != "":
			return fault.New(fault.Unavailable, "backend %s refused the subscription: %.300s", catalog.BackendOf(uri), s.Error)
		case s.Active, time.Now().After(end):
			return nil
		}
		if err := periodic.Sleep(ctx, lookEvery); err != nil {
			return err
		}
	}
}

// State is the state of a subscription at a backend.
type State struct {
	Active bool `json:"active,omitempty"`
	// Error says why the backend refused it.
	Error string `json:"error,omitempty"`
}

// State returns the state of the subscription for a URI, which is zero before the relay has subscribed.
func (r *Registry) State(ctx context.Context, workspace, uri string) (s State, err error) {
	it, err := store.One(ctx, r.DB, stateKey(workspace, uri, "state"), "read the state of a subscription at a backend")
	if it != nil && json.Unmarshal(it.Value, &s) != nil {
		s = State{}
	}
	return s, err
}

// SetState records the state of the subscription for a URI.
func (r *Registry) SetState(ctx context.Context, workspace, uri string, s State) error {
	value, _ := json.Marshal(s) // a bool and a text
	it := store.Item{Key: stateKey(workspace, uri, "state"), Value: value, Expires: time.Now().Add(unused)}
	if s.Error != "" {
		it.Expires = time.Now().Add(refusedFor)
	}
	return fault.Wrap(fault.Unavailable, r.DB.Write(ctx, store.Put(it)), "record the state of a subscription at a backend")
}

// Forget removes the state and the cursor of a subscription that has ended.
func (r *Registry) Forget(ctx context.Context, workspace, uri string) error {
	return fault.Wrap(fault.Unavailable, r.DB.WriteAll(ctx, store.Delete(stateKey(workspace, uri, "state")), store.Delete(stateKey(workspace, uri, "cursor")),
		store.Delete(restartKey(workspace, uri))), "forget a subscription at a backend")
}

// Wanted returns the URIs that are wanted from a backend, each with the hashes of the principals that want it. It ends demands that were
// not renewed, unless a webhook subscription has the URI.
func (r *Registry) Wanted(ctx context.Context, workspace, backend string) (map[string][]string, error) {
	wanted := map[string][]string{}
	add := func(it *store.Item) {
		principal, _, _ := strings.Cut(it.Sort, "#")
		wanted[string(it.Value)] = append(wanted[string(it.Value)], principal)
	}
	var lapsed []store.Item
	now := time.Now()
	of := store.Key{Table: store.Sessions, Partition: partition(workspace, backend)}
	err := store.Each(ctx, r.DB, of, "read the demands for events of a backend", func(it *store.Item) error {
		if now.Unix() < it.Counts[untilCount] {
			add(it)
		} else {
			lapsed = append(lapsed, *it)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i := range lapsed {
		uri := string(lapsed[i].Value)
		header, err := store.One(ctx, r.DB, subscription.HeaderKey(workspace, uri), "read whether a URI has webhook subscriptions")
		if err != nil {
			return nil, err
		}
		// The subscriber records its demand before the subscription, so a subscription that is not visible yet has a newer version here.
		op := store.Delete(lapsed[i].Key, store.VersionIs(lapsed[i].Version))
		if subscription.HeaderCount(header) > 0 {
			add(&lapsed[i])
			op = store.Put(item(lapsed[i].Key, uri, now), store.VersionIs(lapsed[i].Version))
		}
		switch err := r.DB.Write(ctx, op); {
		case errors.Is(err, store.ErrConflict):
			add(&lapsed[i]) // it was renewed meanwhile
		case err != nil:
			return nil, fault.Wrap(fault.Unavailable, err, "end a demand for events of a backend")
		}
	}
	return wanted, nil
}

// Cursor keeps the backend's cursor of one subscription. It implements the interface Store of package client.
type Cursor struct {
	DB             store.DB
	Workspace, URI string
}

// maxCursor limits the cursors of a backend in bytes.
const maxCursor = 64 << 10

// Load implements the interface.
func (c Cursor) Load(ctx context.Context, _ string) (string, error) {
	it, err := store.One(ctx, c.DB, stateKey(c.Workspace, c.URI, "cursor"), "read the cursor of a backend")
	if it == nil {
		return "", err
	}
	return string(it.Value), err
}

// Save implements the interface.
func (c Cursor) Save(ctx context.Context, _, cursor string) error {
	if len(cursor) > maxCursor {
		return fault.New(fault.Invalid, "the backend's cursor has %d bytes (allowed: %d)", len(cursor), maxCursor)
	}
	// If the process dies before the cursor is written, the backend sends some events again.
	return fault.Wrap(fault.Unavailable, c.DB.WriteAll(store.Unhurried(ctx), store.Put(cursorItem(c.Workspace, c.URI, cursor))), "keep the cursor of a backend")
}

func cursorItem(workspace, uri, cursor string) store.Item {
	return store.Item{Key: stateKey(workspace, uri, "cursor"), Value: []byte(cursor), Expires: time.Now().Add(unused)}
}

// seenFor is how long the ids of events are remembered. The events queue drops repetitions only within five minutes.
const seenFor = 24 * time.Hour

func seenKey(workspace, uri, id string) store.Key { return stateKey(workspace, uri, "seen#"+id) }

// Seen reports whether an event was published before.
func (r *Registry) Seen(ctx context.Context, workspace, uri, id string) (bool, error) {
	it, err := store.One(ctx, r.DB, seenKey(workspace, uri, id), "look up an event of a backend")
	return it != nil, err
}

// MarkSeen remembers an event that was published. If the process dies before, the event may be published again, and then the events queue
// drops the repetition.
func (r *Registry) MarkSeen(ctx context.Context, workspace, uri, id string) error {
	it := store.Item{Key: seenKey(workspace, uri, id), Expires: time.Now().Add(seenFor)}
	return fault.Wrap(fault.Unavailable, r.DB.WriteAll(store.Unhurried(ctx), store.Put(it)), "remember an event of a backend")
}
