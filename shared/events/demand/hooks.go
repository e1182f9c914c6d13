package demand

import (
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
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Hooks are the webhook subscriptions at backends: the relay creates them, and the role publish receives their webhooks. Each has a URL
// with a token and a secret. Both are derived from a key of the deployment, so that no secret is stored, and every relay that takes a
// backend over continues the same subscription. A token authenticates itself, so that a guess costs no read of the store.
type Hooks struct {
	DB store.DB
	// Base is the URL of this server as backends reach it, without a path. Without it, the relay creates no subscriptions.
	Base string
	// Key returns a key of the deployment.
	Key func(ctx context.Context) ([]byte, error)
}

// HookPath is the path at which webhooks of backends arrive, before the token. Names of sources do not begin with a tilde.
const HookPath = "/sources/~backends/"

// Hook is a webhook subscription at a backend.
type Hook struct {
	Workspace string `json:"workspace"`
	URI       string `json:"uri"`
	// Days are the days since 1970 whose secrets are valid, the newest first. Each day's first refresh rotates the secret.
	Days []int64 `json:"days"`
	// ID is the backend's id of the subscription, and Until the end of its lifetime in seconds since 1970, or 0 if it is unlimited.
	ID    string `json:"id,omitempty"`
	Until int64  `json:"until,omitempty"`

	// Secrets are the valid secrets.
	Secrets []string `json:"-"`
}

// maxDays limits the valid secrets: the newest, the previous one, and one whose refresh was not answered.
const maxDays = 3

// hookID identifies the subscription for a URI in tokens and in the store.
func hookID(workspace, uri string) string { return hash(workspace + "\n" + uri) }

func hookKey(id string) store.Key {
	return store.Key{Table: store.Sessions, Partition: "eh#" + id, Sort: "hook"}
}

// derive returns a text that only this deployment can compute.
func (h *Hooks) derive(ctx context.Context, what, id string) ([]byte, error) {
	key, err := h.Key(ctx)
	if err != nil {
		return nil, err
	}
	derived, err := hkdf.Key(sha256.New, key, nil, "mcpevents backend webhooks", 32)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "derive the key of backends' webhooks")
	}
	m := hmac.New(sha256.New, derived)
	_, _ = fmt.Fprintf(m, "%q %q", what, id) // never fails
	return m.Sum(nil), nil
}

func (h *Hooks) secret(ctx context.Context, id string, day int64) (string, error) {
	key, err := h.derive(ctx, fmt.Sprintf("secret %d", day), id)
	return "whsec_" + base64.StdEncoding.EncodeToString(key), err // as Standard Webhooks writes a secret
}

// URL returns the URL to which the backend sends the events of a URI.
func (h *Hooks) URL(ctx context.Context, workspace, uri string) (string, error) {
	id := hookID(workspace, uri)
	code, err := h.tokenCode(ctx, id)
	return strings.TrimSuffix(h.Base, "/") + HookPath + id + code, err
}

// tokenCode returns the second half of a token, which authenticates the first half, the id.
func (h *Hooks) tokenCode(ctx context.Context, id string) (string, error) {
	mac, err := h.derive(ctx, "token", id)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(mac[:16]), nil
}

// Find returns the subscription to which a token belongs. For an unknown token, it returns an error of kind NotFound.
func (h *Hooks) Find(ctx context.Context, token string) (*Hook, error) {
	unknown := fault.New(fault.NotFound, "there is no subscription at this path")
	const size = 22 // 16 bytes in base64
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
		secret, err := h.secret(ctx, id, day)
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
	value, _ := json.Marshal(to) // texts and numbers
	it := store.Item{Key: hookKey(id), Value: value, Expires: time.Now().Add(unused)}
	return fault.Wrap(fault.Unavailable, h.DB.Write(ctx, store.Put(it)), "record a webhook subscription at a backend")
}

// Secret returns the secret for a registration or refresh of the subscription for a URI. From then on, [Hooks.Find] returns it, too. Only
// the holder of the backend's lease calls it.
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
	return h.secret(ctx, id, hook.Days[0])
}

// Accepted records that the backend has accepted a registration or refresh. It reports whether the backend had no such subscription
// before, so that events may be missing.
func (h *Hooks) Accepted(ctx context.Context, workspace, uri, subscription string, until time.Time) (fresh bool, err error) {
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

// Remove removes the subscription for a URI, so that its URL and secrets are no longer valid.
func (h *Hooks) Remove(ctx context.Context, workspace, uri string) error {
	return fault.Wrap(fault.Unavailable, h.DB.Write(ctx, store.Delete(hookKey(hookID(workspace, uri)))), "remove a webhook subscription at a backend")
}

// Restart is a request to the relay to subscribe again at a backend, because the backend has ended the subscription or given up
// deliveries.
type Restart struct {
	URI string `json:"uri"`
	// Cursor is where the backend should continue. It is empty if the backend named none.
	Cursor string `json:"cursor,omitempty"`
}

// restartKey returns the key of a restart. It is before the keys of states, which begin with a letter, a digit, - or _.
func restartKey(workspace, uri string) store.Key {
	key := stateKey(workspace, uri, "restart")
	key.Sort = "!" + key.Sort
	return key
}

// RequestRestart asks the relay to subscribe again. Requests that the relay has not seen yet are kept, because their cursor is earlier.
func (r *Registry) RequestRestart(ctx context.Context, workspace string, of Restart) error {
	if len(of.Cursor) > maxCursor {
		return fault.New(fault.Invalid, "the backend's cursor has %d bytes (allowed: %d)", len(of.Cursor), maxCursor)
	}
	value, _ := json.Marshal(of) // texts
	it := store.Item{Key: restartKey(workspace, of.URI), Value: value, Expires: time.Now().Add(unused)}
	err := r.DB.Write(ctx, store.Put(it, store.Absent()))
	if errors.Is(err, store.ErrConflict) {
		return nil
	}
	return fault.Wrap(fault.Unavailable, err, "ask for another subscription at a backend")
}

// Restarts returns the requests for a backend's subscriptions. The relay removes each with [Registry.Restarted].
func (r *Registry) Restarts(ctx context.Context, workspace, backend string) (all []Restart, err error) {
	page, err := r.DB.Query(ctx, store.Query{Table: store.Sessions, Partition: statePartition(workspace, backend), After: "!", Until: "\"", Limit: 100})
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read whether to subscribe again at a backend")
	}
	for _, it := range page.Items {
		var one Restart
		if json.Unmarshal(it.Value, &one) == nil {
			all = append(all, one)
		}
	}
	return all, nil
}

// Restarted removes a request. If the request has a cursor, it becomes the cursor of the subscription.
func (r *Registry) Restarted(ctx context.Context, workspace string, of Restart) error {
	ops := []store.Op{store.Delete(restartKey(workspace, of.URI))}
	if of.Cursor != "" {
		ops = append(ops, store.Put(cursorItem(workspace, of.URI, of.Cursor)))
	}
	return fault.Wrap(fault.Unavailable, r.DB.Write(ctx, ops...), "forget to subscribe again at a backend")
}
