// Package demand records which events of backends clients want, so that the relay subscribes to them at the backends.
//
//	stream, poll, webhook ──[Registry.Want]──▶ [sessions] ──[Registry.ListWanted]──▶ relay
//	          ▲                                    │
//	          └────── waits for the [State] ◀──────┴──[Registry.SetState]─────── relay
//
// A demand is for one URI, which names the backend, the event type and the arguments (see package catalog). Equal demands of several
// clients lead to one subscription at the backend. The demand of a stream or a poll lasts for [keep] and is renewed; the demand of a
// webhook subscription lasts as long as the subscription. The package also stores the backend's cursors.
//
// [Hooks] manages the subscriptions at backends that deliver only by webhook.
//
// Continue in shared/gateway/relay, which subscribes at the backends, and in shared/events/demand/intake, which accepts their events.
package demand

import (
	"cmp"
	"context"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

const (
	// keep is how long a demand (the record that a client wants a backend's events) lasts after its last renewal. It is longer than the
	// time between two polls of a client.
	keep = 10 * time.Minute
	// RenewEvery is the time between two renewals of an open stream's demand.
	RenewEvery = keep / 4
	// maxWanted limits the URIs of one backend whose events a principal may want at the same time.
	maxWanted = 200
	// lookEvery is how often a waiting client's request checks whether the relay has subscribed at the backend.
	lookEvery = 50 * time.Millisecond
	// refusedFor is how long a backend's refusal of a subscription is remembered. Meanwhile, clients get the backend's error without
	// another attempt to subscribe.
	refusedFor = 30 * time.Second
	// unused is how long this package's items stay in the store if no relay removes them.
	unused = 30 * 24 * time.Hour
)

// Registry records demands, which say that a principal wants a backend's events. It is safe for concurrent use.
type Registry struct {
	DB store.DB
	// Start limits how long a client waits until the relay has subscribed at the backend; 0 means 3 s. If the relay takes longer, the
	// client may miss the first events.
	Start time.Duration
	// Key returns the key with which callers' access tokens are encrypted. It may be nil in processes that handle no such tokens.
	Key func(ctx context.Context) ([]byte, error)

	renewed bounded.Map[renewal, time.Time] // when this process last renewed a demand

	mu    sync.Mutex
	awake chan struct{} // closed when the next demand is recorded
}

// renewal identifies a demand and the caller's access token with which it was renewed.
type renewal struct {
	key   store.Key
	token string // the hash of the caller's token
}

// New returns a registry that uses the store.
func New(db store.DB) *Registry { return &Registry{DB: db, awake: make(chan struct{})} }

// Changed returns a channel that is closed when this process records the next demand.
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

// partition returns the partition of a backend's demands. The sort key of a demand consists of the hashes of the principal and the URI.
func partition(workspace, backend string) string { return "ev#" + workspace + "#" + backend }

func wantKey(workspace, principal, uri string) store.Key {
	return store.Key{Table: store.Sessions, Partition: partition(workspace, catalog.BackendOf(uri)), Sort: catalog.CallerID(principal) + "#" + hash(uri)}
}

func statePartition(workspace, backend string) string { return "es#" + workspace + "#" + backend }

func stateKey(workspace, uri, what string) store.Key {
	return store.Key{Table: store.Sessions, Partition: statePartition(workspace, catalog.BackendOf(uri)), Sort: hash(uri) + "#" + what}
}

const untilCount = "until"

// Want records that a principal wants the events of a URI, and waits a few seconds at most until the relay has subscribed at the backend.
// It returns an error if the backend refuses the subscription, or if the principal already has [maxWanted] demands. For a URI that
// belongs to no backend, and for a nil registry, Want does nothing.
//
// Some backends need the token of the caller that wants the events. For their URIs, the context must have this token, see
// [auth.WithToken].
func (r *Registry) Want(ctx context.Context, workspace, principal, uri string) error {
	if r == nil || catalog.BackendOf(uri) == "" {
		return nil
	}
	var token auth.Token
	caller := catalog.CallerOf(uri)
	if caller != "" {
		token = auth.TokenOf(ctx)
	}
	if caller != "" && caller != catalog.CallerID(principal) {
		return fault.New(fault.Forbidden, "the events are for another principal")
	}
	key, now := wantKey(workspace, principal, uri), time.Now()
	this := renewal{key, hash(token.Header)}
	if at, ok := r.renewed.Get(this); ok && periodic.Since(now, at) < RenewEvery {
		return nil
	}
	had, err := store.One(ctx, r.DB, key, "read a demand for events of a backend")
	if err != nil {
		return err
	}
	if had == nil {
		if err := r.checkLimit(ctx, key); err != nil {
			return err
		}
	}
	value, replaced := []byte(uri), false
	if caller != "" {
		if value, replaced, err = r.chooseToken(ctx, key, uri, had, token); err != nil {
			return err
		}
	}
	var before State
	if replaced { // an error in the current state belongs to the previous token
		if before, err = r.LoadState(ctx, workspace, uri); err != nil {
			return err
		}
	}
	if err := r.DB.Write(ctx, store.Put(item(key, value, now))); err != nil {
		return fault.Wrap(fault.Unavailable, err, "record a demand for events of a backend")
	}
	if err := r.await(ctx, workspace, uri, before); err != nil {
		return err
	}
	r.renewed.Put(this, now)
	return nil
}

func item(key store.Key, value []byte, now time.Time) store.Item {
	until := now.Add(keep)
	return store.Item{
		Key: key, Value: value, Version: now.UnixMicro(), Counts: map[string]int64{untilCount: until.Unix()}, Expires: until.Add(unused),
	}
}

// checkLimit returns an error if a new demand would exceed its principal's limit of demands at the backend ([maxWanted]). The parameter
// key is the new demand's key.
func (r *Registry) checkLimit(ctx context.Context, key store.Key) error {
	prefix, _, _ := strings.Cut(key.Sort, "#")
	q, n := queryOf(key.Partition, prefix), 0
	q.Limit = maxWanted
	err := store.EachOf(ctx, r.DB, q, "count the demands for events of a backend", func(*store.Item) error {
		n++
		return nil
	})
	if err != nil {
		return err
	}
	if n >= maxWanted {
		return fault.New(fault.Exhausted, "the limit backendEvents of %d different subscriptions to events of one backend is reached", maxWanted).
			AtLimit("backendEvents", maxWanted)
	}
	return nil
}

// EachOf calls visit with the key of each of a principal's demands for events of a backend. Package erase deletes these demands, because
// they may contain the principal's token. When a demand is deleted, the relay ends the subscription at the backend.
func EachOf(ctx context.Context, db store.DB, workspace, backend, principal string, visit func(store.Key) error) error {
	q := queryOf(partition(workspace, backend), catalog.CallerID(principal))
	return store.EachOf(ctx, db, q, "list the demands of a principal", func(it *store.Item) error { return visit(it.Key) })
}

// queryOf returns the query for one caller's demands for events of a backend. The parameter partition is the partition of the store with
// the demands of all callers.
func queryOf(partition, caller string) store.Query {
	return store.Query{Table: store.Sessions, Partition: partition, After: caller + "#", Until: caller + "#~"}
}

// uriOf returns the URI of the demand that an item stores. In the item's value, a line break and the encrypted token may follow the URI.
func uriOf(it *store.Item) string {
	uri, _, _ := strings.Cut(string(it.Value), "\n")
	return uri
}

// await waits until the relay has subscribed at the backend or has recorded an error. After the time [Registry.Start], await returns nil.
//
// If the demand has a new token, a recorded error may still be from the attempt with the previous token. The parameter before is the
// state before the token changed, and await ignores an error that is already in this state.
func (r *Registry) await(ctx context.Context, workspace, uri string, before State) error {
	r.wake()
	for end := time.Now().Add(cmp.Or(r.Start, 3*time.Second)); ; {
		s, err := r.LoadState(ctx, workspace, uri)
		switch {
		case err != nil:
			return err
		case s.Error != "" && s == before:
		case s.Unknown:
			return fault.New(fault.NotFound, "backend %s has no such event type for this caller", catalog.BackendOf(uri)).With(map[string]any{"kind": "event"})
		case s.Error != "":
			return fault.New(fault.Unavailable, "backend %s refused the subscription: %.300s", catalog.BackendOf(uri), s.Error)
		case s.Active:
			return nil
		}
		if time.Now().After(end) {
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
	// Error is the reason why the backend refused the subscription. Unknown means that the backend does not have the event type.
	Error   string `json:"error,omitempty"`
	Unknown bool   `json:"unknown,omitempty"`
	At      int64  `json:"at,omitempty"` // when the error happened, in microseconds since 1970
}

// LoadState returns the state of the subscription to a URI at its backend. It is zero before the relay has subscribed.
func (r *Registry) LoadState(ctx context.Context, workspace, uri string) (s State, err error) {
	it, err := store.One(ctx, r.DB, stateKey(workspace, uri, "state"), "read the state of a subscription at a backend")
	if it != nil && json.Unmarshal(it.Value, &s) != nil {
		s = State{}
	}
	return s, err
}

// SetState records the state of the subscription to a URI at its backend.
func (r *Registry) SetState(ctx context.Context, workspace, uri string, s State) error {
	if s.Error != "" {
		s.At = time.Now().UnixMicro()
	}
	value, _ := json.Marshal(s) // cannot fail for strings and numbers
	it := store.Item{Key: stateKey(workspace, uri, "state"), Value: value, Expires: time.Now().Add(unused)}
	if s.Error != "" {
		it.Expires = time.Now().Add(refusedFor)
	}
	return fault.Wrap(fault.Unavailable, r.DB.Write(ctx, store.Put(it)), "record the state of a subscription at a backend")
}

// Forget removes the state, the cursor and the restart request of a backend's subscription that has ended.
func (r *Registry) Forget(ctx context.Context, workspace, uri string) error {
	return fault.Wrap(fault.Unavailable, r.DB.WriteAll(ctx, store.Delete(stateKey(workspace, uri, "state")), store.Delete(stateKey(workspace, uri, "cursor")),
		store.Delete(restartKey(workspace, uri))), "forget a subscription at a backend")
}

// ListWanted returns the URIs of a backend whose events are wanted, each with the hashes of the principals that want them. It deletes the
// demands that were not renewed in time. But if webhook subscriptions have the URI of such a demand, ListWanted renews the demand.
func (r *Registry) ListWanted(ctx context.Context, workspace, backend string) (map[string][]string, error) {
	wanted := map[string][]string{}
	add := func(it *store.Item) {
		principal, _, _ := strings.Cut(it.Sort, "#")
		wanted[uriOf(it)] = append(wanted[uriOf(it)], principal)
	}
	var lapsed []store.Item
	now := time.Now()
	demands := store.Key{Table: store.Sessions, Partition: partition(workspace, backend)}
	err := store.Each(ctx, r.DB, demands, "read the demands for events of a backend", func(it *store.Item) error {
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
		uri := uriOf(&lapsed[i])
		header, err := store.One(ctx, r.DB, subscription.HeaderKey(workspace, uri), "read whether a URI has webhook subscriptions")
		if err != nil {
			return nil, err
		}
		// A new webhook subscriber records its demand before its subscription. So if the read above has missed a new subscription, the
		// demand was already renewed and has a newer version. This deletion then fails with a conflict.
		op := store.Delete(lapsed[i].Key, store.VersionIs(lapsed[i].Version))
		if subscription.HeaderCount(header) > 0 {
			add(&lapsed[i])
			op = store.Put(item(lapsed[i].Key, lapsed[i].Value, now), store.VersionIs(lapsed[i].Version))
		}
		switch err := r.DB.Write(ctx, op); {
		case errors.Is(err, store.ErrConflict):
			add(&lapsed[i]) // the demand was renewed meanwhile
		case err != nil:
			return nil, fault.Wrap(fault.Unavailable, err, "end a demand for events of a backend")
		}
	}
	return wanted, nil
}

// Cursor stores the cursor that a backend has sent for one subscription. It implements the interface client.Store.
type Cursor struct {
	DB             store.DB
	Workspace, URI string
}

// maxCursor is the maximum size of a backend's cursor in bytes.
const maxCursor = 64 << 10

// Load returns the cursor. It returns "" before the first [Cursor.Save].
func (c Cursor) Load(ctx context.Context, _ string) (string, error) {
	it, err := store.One(ctx, c.DB, stateKey(c.Workspace, c.URI, "cursor"), "read the cursor of a backend")
	if it == nil {
		return "", err
	}
	return string(it.Value), err
}

// Save stores the cursor.
func (c Cursor) Save(ctx context.Context, _, cursor string) error {
	if len(cursor) > maxCursor {
		return fault.New(fault.Invalid, "the backend's cursor has %d bytes (allowed: %d)", len(cursor), maxCursor)
	}
	// Do not wait for this write. If the process dies before it, the backend only sends some events again.
	return fault.Wrap(fault.Unavailable, store.Unhurried(c.DB).WriteAll(ctx, store.Put(cursorItem(c.Workspace, c.URI, cursor))), "keep the cursor of a backend")
}

func cursorItem(workspace, uri, cursor string) store.Item {
	return store.Item{Key: stateKey(workspace, uri, "cursor"), Value: []byte(cursor), Expires: time.Now().Add(unused)}
}

// seenFor is how long [Registry.WasSeen] recognizes an event. It is longer than five minutes, after which the events queue no longer
// drops repeated events.
const seenFor = 24 * time.Hour

func seenKey(workspace, uri, id string) store.Key { return stateKey(workspace, uri, "seen#"+id) }

// WasSeen reports whether [Registry.MarkSeen] was called with the id within the last 24 hours ([seenFor]).
func (r *Registry) WasSeen(ctx context.Context, workspace, uri, id string) (bool, error) {
	it, err := store.One(ctx, r.DB, seenKey(workspace, uri, id), "look up an event of a backend")
	return it != nil, err
}

// MarkSeen records a published event or gap for [Registry.WasSeen]. If the process dies between publishing an event and MarkSeen, the
// backend may send the event again. The events queue then drops a repeated event, but not a repeated gap.
func (r *Registry) MarkSeen(ctx context.Context, workspace, uri, id string) error {
	return markSeen(ctx, r.DB, workspace, uri, id)
}

// MarkSeenUnhurried does the same as [Registry.MarkSeen]. With SQLite, it does not wait for the commit; see [store.Unhurried].
func (r *Registry) MarkSeenUnhurried(ctx context.Context, workspace, uri, id string) error {
	return markSeen(ctx, store.Unhurried(r.DB), workspace, uri, id)
}

func markSeen(ctx context.Context, db store.DB, workspace, uri, id string) error {
	it := store.Item{Key: seenKey(workspace, uri, id), Expires: time.Now().Add(seenFor)}
	return fault.Wrap(fault.Unavailable, db.WriteAll(ctx, store.Put(it)), "remember an event of a backend")
}

// Hooks manages the webhook subscriptions at backends. The relay creates them, and the processes that serve publishers receive their
// webhooks.
//
// The URL of a webhook ends with a token, which consists of an id and its MAC. So the server can refuse a guessed token without reading
// the store. Tokens and secrets are derived from a key of the deployment, so that another relay that takes over a backend continues the
// same subscription.
type Hooks struct {
	DB store.DB
	// Base is the URL of this server as backends reach it, without a path. If it is empty, the relay creates no webhook subscriptions.
	Base string
	// Key returns the deployment's key, from which the tokens and secrets are derived.
	Key func(ctx context.Context) ([]byte, error)
}

// HookPath is the path at which webhooks of backends arrive, followed by a token. It differs from the paths of other webhook sources,
// because their names do not begin with a tilde.
const HookPath = "/sources/~backends/"

// Hook is a webhook subscription at a backend.
type Hook struct {
	Workspace string `json:"workspace"`
	URI       string `json:"uri"`
	// Days are the days since 1970 whose secrets are valid, the newest first. Each day has its own secret, which the first refresh of the
	// subscription on that day adds.
	Days []int64 `json:"days"`
	// ID is the id that the backend gave the subscription. Until is the end of the subscription's lifetime in seconds since 1970, or 0 if
	// it is unlimited.
	ID    string `json:"id,omitempty"`
	Until int64  `json:"until,omitempty"`

	Secrets []string `json:"-"`
}

// maxDays is the maximum number of valid secrets. The backend may still use the previous secret or, if a refresh got no response, the one
// before.
const maxDays = 3

// hookID returns this server's id of the webhook subscription to a URI. The token in the webhook's URL begins with it.
func hookID(workspace, uri string) string { return hash(workspace + "\n" + uri) }

func hookKey(id string) store.Key {
	return store.Key{Table: store.Sessions, Partition: "eh#" + id, Sort: "hook"}
}

// derive returns a secret for an id and a purpose, for example "token". Only this deployment can compute the secret, because it depends
// on the deployment's key.
func (h *Hooks) derive(ctx context.Context, purpose, id string) ([]byte, error) {
	key, err := h.Key(ctx)
	if err != nil {
		return nil, err
	}
	derived, err := hkdf.Key(sha256.New, key, nil, "mcpevents backend webhooks", 32)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "derive the key of backends' webhooks")
	}
	m := hmac.New(sha256.New, derived)
	_, _ = fmt.Fprintf(m, "%q %q", purpose, id) // writing to a hash never fails
	return m.Sum(nil), nil
}

func (h *Hooks) deriveSecret(ctx context.Context, id string, day int64) (string, error) {
	key, err := h.derive(ctx, fmt.Sprintf("secret %d", day), id)
	return "whsec_" + base64.StdEncoding.EncodeToString(key), err // the format of Standard Webhooks for secrets
}

// URL returns the URL to which the backend sends the events of a URI.
func (h *Hooks) URL(ctx context.Context, workspace, uri string) (string, error) {
	id := hookID(workspace, uri)
	code, err := h.tokenCode(ctx, id)
	return strings.TrimSuffix(h.Base, "/") + HookPath + id + code, err
}

// tokenCode returns the second half of the token in a webhook's URL. It is a MAC of the first half, which is the id, and proves that this
// deployment made the token.
func (h *Hooks) tokenCode(ctx context.Context, id string) (string, error) {
	mac, err := h.derive(ctx, "token", id)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(mac[:16]), nil
}

// Find returns the subscription to which the token in a webhook's URL belongs. For an unknown token, it returns an error of kind
// NotFound.
func (h *Hooks) Find(ctx context.Context, token string) (*Hook, error) {
	unknown := fault.New(fault.NotFound, "there is no subscription at this path")
	const size = 22 // characters of 16 bytes in base64url
	if len(token) != 2*size {
		return nil, unknown
	}
	id, got := token[:size], token[size:]
	code, err := h.tokenCode(ctx, id)
	if err != nil {
		return nil, err
	}
	if !hmac.Equal([]byte(got), []byte(code)) {
		return nil, unknown
	}
	found, err := h.read(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case found == nil:
		return nil, unknown
	}
	for _, day := range found.Days {
		secret, err := h.deriveSecret(ctx, id, day)
		if err != nil {
			return nil, err
		}
		found.Secrets = append(found.Secrets, secret)
	}
	return found, nil
}

func (h *Hooks) read(ctx context.Context, id string) (*Hook, error) {
	it, err := store.One(ctx, h.DB, hookKey(id), "read a webhook subscription at a backend")
	if it == nil {
		return nil, err
	}
	found := &Hook{}
	return found, fault.Wrap(fault.Internal, json.Unmarshal(it.Value, found), "decode a webhook subscription at a backend")
}

func (h *Hooks) write(ctx context.Context, id string, to Hook) error {
	value, _ := json.Marshal(to) // cannot fail for strings and numbers
	it := store.Item{Key: hookKey(id), Value: value, Expires: time.Now().Add(unused)}
	return fault.Wrap(fault.Unavailable, h.DB.Write(ctx, store.Put(it)), "record a webhook subscription at a backend")
}

// Secret returns the secret with which to register or refresh the subscription to a URI at the backend. [Hooks.Find] then returns this
// secret, too. Only the relay that holds the backend's lease may call Secret.
func (h *Hooks) Secret(ctx context.Context, workspace, uri string) (string, error) {
	id, today := hookID(workspace, uri), time.Now().Unix()/(24*60*60)
	hook, err := h.read(ctx, id)
	if err != nil {
		return "", err
	}
	if hook == nil {
		hook = &Hook{Workspace: workspace, URI: uri}
	}
	if !slices.Contains(hook.Days, today) {
		hook.Days = append([]int64{today}, hook.Days[:min(len(hook.Days), maxDays-1)]...)
		if err := h.write(ctx, id, *hook); err != nil {
			return "", err
		}
	}
	return h.deriveSecret(ctx, id, hook.Days[0])
}

// RecordAccepted records that the backend has accepted a registration or refresh. The parameter subscription is the backend's id of the
// subscription. The parameter until is the end of the subscription's lifetime, or zero if it is unlimited. The result fresh reports
// whether the subscription is new at the backend, so that events may be missing.
func (h *Hooks) RecordAccepted(ctx context.Context, workspace, uri, subscription string, until time.Time) (fresh bool, err error) {
	id := hookID(workspace, uri)
	hook, err := h.read(ctx, id)
	if err != nil || hook == nil {
		return false, err
	}
	now := time.Now()
	fresh = hook.ID != subscription || hook.Until != 0 && hook.Until < now.Unix()
	hook.ID, hook.Until = subscription, 0
	if !until.IsZero() {
		hook.Until = until.Unix()
	}
	return fresh, h.write(ctx, id, *hook)
}

// Remove removes the webhook subscription to a URI, so that its webhook URL and secrets are no longer valid.
func (h *Hooks) Remove(ctx context.Context, workspace, uri string) error {
	return fault.Wrap(fault.Unavailable, h.DB.Write(ctx, store.Delete(hookKey(hookID(workspace, uri)))), "remove a webhook subscription at a backend")
}

// Restart is a request to the relay to subscribe to a URI again, because the backend has ended the subscription or stopped delivering.
type Restart struct {
	URI string `json:"uri"`
	// Cursor is where the backend should continue. It is empty if the backend sent no cursor.
	Cursor string `json:"cursor,omitempty"`
}

// restartKey returns the key of the request for a restart. Its sort key begins with "!", so that one query finds all restarts of a
// backend. The other sort keys of the partition begin with a hash in base64url, which has no "!".
func restartKey(workspace, uri string) store.Key {
	key := stateKey(workspace, uri, "restart")
	key.Sort = "!" + key.Sort
	return key
}

// RequestRestart asks the relay to subscribe to a URI again. If there is already a request for the URI, RequestRestart keeps it, because
// its cursor is earlier.
func (r *Registry) RequestRestart(ctx context.Context, workspace string, restart Restart) error {
	if len(restart.Cursor) > maxCursor {
		return fault.New(fault.Invalid, "the backend's cursor has %d bytes (allowed: %d)", len(restart.Cursor), maxCursor)
	}
	value, _ := json.Marshal(restart) // cannot fail for strings
	it := store.Item{Key: restartKey(workspace, restart.URI), Value: value, Expires: time.Now().Add(unused)}
	err := r.DB.Write(ctx, store.Put(it, store.Absent()))
	if errors.Is(err, store.ErrConflict) {
		return nil
	}
	return fault.Wrap(fault.Unavailable, err, "ask for another subscription at a backend")
}

// ListRestarts returns the restarts that were requested for the subscriptions at a backend. The relay removes each with
// [Registry.FinishRestart].
func (r *Registry) ListRestarts(ctx context.Context, workspace, backend string) (all []Restart, err error) {
	q := store.Query{Table: store.Sessions, Partition: statePartition(workspace, backend), After: "!", Until: "\""}
	err = store.EachOf(ctx, r.DB, q, "read whether to subscribe again at a backend", func(it *store.Item) error {
		var one Restart
		if json.Unmarshal(it.Value, &one) == nil {
			all = append(all, one)
		}
		return nil
	})
	return all, err
}

// FinishRestart removes the request for a restart. If the request has a cursor, it becomes the cursor of the subscription.
func (r *Registry) FinishRestart(ctx context.Context, workspace string, restart Restart) error {
	ops := []store.Op{store.Delete(restartKey(workspace, restart.URI))}
	if restart.Cursor != "" {
		ops = append(ops, store.Put(cursorItem(workspace, restart.URI, restart.Cursor)))
	}
	return fault.Wrap(fault.Unavailable, r.DB.Write(ctx, ops...), "forget to subscribe again at a backend")
}
