package client

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

type hook struct {
	*flow
	client      *Client
	at          endpoint // nil for SEP-1803
	url         string
	ended       chan error    // why the server has ended the subscription
	resubscribe chan struct{} // a value asks to subscribe again from the saved cursor
	id          string        // empty before the server's answer; only the goroutine that subscribes and refreshes uses it

	registered chan struct{} // for SEP-1803: closed when the server has sent the secret; nil for MCP Events

	mu      sync.Mutex
	secrets []string // the newest first
}

// maxSecrets counts the current secret, the previous one, which a server may still use, and a new one whose refresh was not answered.
const maxSecrets = 3

// defaultRotate is the age of a secret at which a refresh replaces it.
const defaultRotate = 24 * time.Hour

// awaitSecret is how long an incoming webhook waits for the answer to the request that registered it. If it were refused, the sender would
// try again only seconds later.
const awaitSecret = 10 * time.Second

// errNotRegistered is for a webhook whose registration is not answered in time, or that belongs to another subscription.
var errNotRegistered = fault.New(fault.Unavailable, "not registered yet")

// verify returns nil for a valid signature, or if the server sends unsigned webhooks.
func (k *hook) verify(r *http.Request, body []byte) error {
	if k.registered == nil {
		return webhook.Verify(r.Header, body, k.validSecrets()...)
	}
	select {
	case <-k.registered:
	case <-time.After(awaitSecret):
		return errNotRegistered
	case <-k.ctx.Done():
		return errNotRegistered
	case <-r.Context().Done():
		return errNotRegistered
	}
	if keys := k.validSecrets(); len(keys) > 0 {
		return webhook.Verify(r.Header, body, keys...)
	}
	if id, own := r.Header.Get(webhook.HeaderSubscription), k.registeredID(); id != "" && own != "" && id != own {
		return errNotRegistered // an unsigned webhook that belongs to another subscription
	}
	return nil
}

// registeredID returns the id in the URI of a SEP-1803 subscription, for example sub_1f0c… in subscription://sub_1f0c…, or "" if it is
// unknown. The server's webhooks contain this id in a header.
func (k *hook) registeredID() string {
	if id, ok := strings.CutPrefix(k.granted.Load().id, "subscription://"); ok {
		return id
	}
	return ""
}

// isUnsigned reports whether there is no secret. The handler then echoes a challenge without checking its signature, which is safe, because an
// echo only tells the server that webhooks may arrive here.
func (k *hook) isUnsigned() bool { return k.registered != nil && len(k.validSecrets()) == 0 }

// setSecret sets the secret of a registration, or "" for unsigned webhooks.
func (k *hook) setSecret(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if key != "" {
		k.secrets = []string{key}
	}
	close(k.registered)
}

// addSecret creates the next secret. Older ones stay valid, up to [maxSecrets].
func (k *hook) addSecret() {
	key, _ := webhook.NewSecret()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.secrets = append([]string{key}, k.secrets...)
	k.secrets = k.secrets[:min(len(k.secrets), maxSecrets)]
}

func (k *hook) newestSecret() string { return k.validSecrets()[0] }

func (k *hook) validSecrets() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.secrets)
}

type endpoint interface {
	// expect sets the secret for a registration or a refresh. The endpoint must accept webhooks with it before the server has answered.
	expect(k *hook) error
	// bind sets the id of the subscription to the one in the server's answer.
	bind(k *hook, id string)
	// complete is called when the server has accepted a registration or a refresh. until is zero if the lifetime is unlimited.
	complete(k *hook, until time.Time) error
	remove(k *hook)
}

type inside struct {
	handler *Handler
	rotated time.Time
	bound   bool // the server has accepted the newest secret
}

// expect keeps a secret that the server has not confirmed, because the server may already use it.
func (at *inside) expect(k *hook) error {
	if at.rotated.IsZero() || at.bound && time.Since(at.rotated) >= cmp.Or(k.sub.Rotate, defaultRotate) {
		k.addSecret()
		at.rotated, at.bound = time.Now(), false
	}
	at.handler.expect(k)
	return nil
}

func (at *inside) bind(k *hook, id string) {
	at.handler.bind(k, id)
	at.bound = true
}

func (*inside) complete(*hook, time.Time) error { return nil }

func (at *inside) remove(k *hook) { at.handler.remove(k) }

type outside struct{ options *Endpoint }

// The endpoint saves the cursors in the store.
func (at outside) expect(k *hook) error {
	key, err := at.options.Secret(k.ctx)
	if err != nil {
		return err
	}
	if err := k.cursors.load(k.ctx); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.secrets = []string{key}
	return nil
}

func (outside) bind(k *hook, id string) { k.id = id }

func (at outside) complete(k *hook, until time.Time) error {
	if at.options.Accepted == nil {
		return nil
	}
	return at.options.Accepted(k.ctx, k.id, until)
}

func (outside) remove(*hook) {}

type subscribed struct {
	ID            string     `json:"id"`
	RefreshBefore *time.Time `json:"refreshBefore"`
	Cursor        string     `json:"cursor"`
	Truncated     bool       `json:"truncated"`
	Status        *struct {
		Active      bool   `json:"active"`
		LastError   string `json:"lastError"`
		FailedSince string `json:"failedSince"`
	} `json:"deliveryStatus"`
}

func (c *Client) receiveWebhooks(f *flow) error {
	k := &hook{flow: f, client: c, ended: make(chan error, 1), resubscribe: make(chan struct{}, 1)}
	afresh := f.cursors.savedCursor() != "" // the server may still have an earlier run's subscription, and then ignores the cursor
	if e := f.sub.Endpoint; e != nil {
		k.at, k.url, afresh = outside{e}, e.URL, e.Resume
	} else {
		k.at, k.url = &inside{handler: c.options.Webhooks}, c.options.Webhooks.URL
		if err := c.options.Webhooks.add(k); err != nil {
			return err
		}
	}
	defer k.at.remove(k)
	if f.sub.Unsubscribe {
		// The server may have created the subscription even if events/subscribe was not answered.
		defer c.unsubscribe(k)
	}
	var began time.Time        // when the server last accepted the subscription
	var lifetime time.Duration // the lifetime that it granted
	for failures := 0; ; {
		wait := time.Until(began.Add(refreshAfter(lifetime)))
		switch {
		case failures > 0:
			wait = httpcall.Backoff(failures - 1)
		case !f.started:
			wait = 0
		}
		select {
		case <-f.ctx.Done():
			return context.Cause(f.ctx)
		case err := <-k.ended:
			return err
		case <-k.resubscribe:
			afresh = true
		case <-time.After(wait):
		}
		asked := time.Now()
		granted, err := c.subscribe(k, afresh)
		switch {
		case f.ctx.Err() != nil:
			return context.Cause(f.ctx)
		case err == nil:
			if f.started {
				f.log.Debug("subscription refreshed", "subscription", k.id)
			}
			began, lifetime, failures, afresh = asked, granted, 0, false
			f.markAccepted(grant{id: k.id, secret: k.newestSecret()})
		case !f.isTransient(err) && !(isUnverified(err) && time.Since(began) < cmp.Or(lifetime, unlimited)):
			return f.asTerminated(err)
		case f.started:
			f.log.Warn("subscription not refreshed", "error", err)
			failures++
		default:
			f.failed = err
			f.log.Warn("request failed, retrying", "mode", f.sub.Mode, "error", err)
			failures++
		}
	}
}

// isUnverified reports whether the server could not verify the webhook endpoint. At a refresh, the endpoint is probably restarting, and the
// subscription exists until its lifetime is over.
func isUnverified(err error) bool {
	_, ok := errors.AsType[*endpointError](err)
	return ok
}

// refreshAfter returns a time between half and three quarters of a lifetime. The jitter keeps clients that started together from
// refreshing together. A subscription with an unlimited lifetime (0) is refreshed about once a day, because a refresh moves its cursor and
// reactivates it if it was suspended.
func refreshAfter(lifetime time.Duration) time.Duration {
	lifetime = cmp.Or(lifetime, unlimited)
	return lifetime/2 + rand.N(lifetime/4)
}

const (
	// clockTolerance is the difference between our clock and a Date header above which one of the clocks must be wrong. The header has only
	// whole seconds.
	clockTolerance = 5 * time.Second
	// leastLifetime replaces a shorter lifetime, because otherwise the client would refresh without a pause.
	leastLifetime = time.Second
	// With unlimited, refreshAfter returns 24 to 36 hours.
	unlimited = 2 * defaultRotate
	// unknownLifetime replaces a lifetime that seems to have ended before the answer arrived, because one of the clocks is wrong.
	unknownLifetime = time.Minute
)

// grantedLifetime returns how long a subscription lives from now on. until is by the server's clock, and answered by ours. If the two clocks
// differ, grantedLifetime counts from the answer's Date header, because a client whose clock is wrong would refresh continuously or too late.
func grantedLifetime(until, answered time.Time, header http.Header) time.Duration {
	now := answered
	if date, err := http.ParseTime(header.Get("Date")); err == nil && answered.Sub(date).Abs() > clockTolerance {
		now = date
	}
	lifetime := until.Sub(now)
	if lifetime < -clockTolerance {
		return unknownLifetime
	}
	return max(lifetime, leastLifetime)
}

func (k *hook) delivery(secret string) map[string]any {
	delivery := map[string]any{"mode": ModeWebhook, "url": k.url}
	if secret != "" {
		delivery["secret"] = secret
	}
	return map[string]any{"name": k.sub.Name, "arguments": k.sub.arguments, "delivery": delivery}
}

// resumeAt subscribes again at the cursor of a gap, because the server may still have the events whose delivery it gave up. The
// saved cursor stays at the gap meanwhile, because other webhooks would move it past the gap.
func (k *hook) resumeAt(g Gap) error {
	if g.Cursor == "" {
		return k.reportGap(g)
	}
	k.cursors.hold(true)
	if err := k.reportGap(g); err != nil {
		return err
	}
	k.cursors.saveAndHold(g.Cursor)
	select {
	case k.resubscribe <- struct{}{}:
	default:
	}
	return nil
}

// subscribe creates or refreshes the subscription and returns its lifetime, or 0 if the lifetime is unlimited.
//
// A server that still has the subscription ignores the cursor in the request. If afresh is set, subscribe first ends the subscription at
// the server, so that the server uses the cursor.
func (c *Client) subscribe(k *hook, afresh bool) (lifetime time.Duration, err error) {
	if afresh {
		if _, err := c.call(k.ctx, spec.MethodEventsUnsub, k.delivery(""), nil); Retryable(err) {
			return 0, err
		}
	}
	if err := k.at.expect(k); err != nil {
		return 0, err
	}
	params := k.delivery(k.newestSecret())
	params["cursor"] = nil
	if cursor := cmp.Or(k.cursors.savedCursor(), k.sub.Cursor); cursor != "" {
		params["cursor"] = cursor
	}
	if k.sub.TTL > 0 {
		params["ttlMs"] = k.sub.TTL.Milliseconds()
	}
	var g subscribed
	header, err := c.call(k.ctx, spec.MethodEventsSub, params, &g)
	if err != nil {
		return 0, err
	}
	answered := time.Now()
	if g.ID == "" {
		return 0, fault.New(fault.Unavailable, "%s: the server's answer has no id", spec.MethodEventsSub)
	}
	k.at.bind(k, g.ID)
	if afresh {
		k.cursors.hold(false)
	}
	if s := g.Status; s != nil && !s.Active {
		k.log.Warn("subscription was suspended", "subscription", g.ID, "lastError", s.LastError, "failedSince", s.FailedSince)
	}
	if g.Truncated {
		if err := k.handleGap(Gap{Name: k.sub.Name, Cursor: g.Cursor}); err != nil {
			return 0, err
		}
	}
	k.saveSafe(g.Cursor)
	var until time.Time
	if g.RefreshBefore != nil {
		lifetime = grantedLifetime(*g.RefreshBefore, answered, header)
		until = answered.Add(lifetime)
	}
	return lifetime, k.at.complete(k, until)
}

func (c *Client) unsubscribe(k *hook) {
	ctx, cancel := closingContext(k.ctx)
	defer cancel()
	switch _, err := c.call(ctx, spec.MethodEventsUnsub, k.delivery(""), nil); {
	case err != nil && k.id != "" && !fault.Is(err, fault.NotFound): // without an id, there was probably no subscription
		k.log.Warn("subscription not ended", "subscription", k.id, "error", err)
	case k.id != "":
		k.log.Info("subscription ended", "subscription", k.id)
	}
}
