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
	at          endpoint // who receives MCP Events; nil for SEP-1803, whose webhooks this program always receives
	url         string
	ended       chan error    // receives the error with which the server has ended the subscription
	resubscribe chan struct{} // receives a value when the client must subscribe again from the saved cursor
	id          string        // empty before the server's answer; only the goroutine that subscribes and refreshes uses it

	registered chan struct{} // for SEP-1803: closed when the server has sent the secret; nil for MCP Events

	mu      sync.Mutex
	secrets []string // the newest first
}

// maxSecrets is how many secrets of a subscription are valid at the same time: the current one, the previous one, which a server may
// still use, and a new one for which the server has not answered the refresh.
const maxSecrets = 3

// defaultRotate is the default age of a secret at which a refresh replaces it.
const defaultRotate = 24 * time.Hour

// awaitSecret is how long a webhook of SEP-1803 waits for the secret, which is in the answer to its registration. A webhook can arrive
// before that answer. If the handler refused the webhook, the sender would try again only seconds later.
const awaitSecret = 10 * time.Second

// errNotRegistered is the error for a webhook of SEP-1803 if the answer to its registration did not arrive within awaitSecret. It is also
// the error for an unsigned webhook that belongs to another subscription.
var errNotRegistered = fault.New(fault.Unavailable, "not registered yet")

// verify returns nil if the signature of a webhook is valid, or if the server sends unsigned webhooks.
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

// registeredID returns the id in the URI of a SEP-1803 subscription, for example sub_1f0c… in subscription://sub_1f0c…. The server's
// webhooks have this id in a header. registeredID returns an empty string before the server has answered, and for a URI of any other
// form.
func (k *hook) registeredID() string {
	if id, ok := strings.CutPrefix(k.granted.Load().id, "subscription://"); ok {
		return id
	}
	return ""
}

// isUnsigned reports whether the subscription has no secret, because the server sends unsigned webhooks or has not sent the secret yet.
// The handler then echoes a challenge without checking its signature. That is safe, because an echo only tells the server that webhooks
// may arrive here.
func (k *hook) isUnsigned() bool { return k.registered != nil && len(k.validSecrets()) == 0 }

// setSecret stores the secret that the server returned for a webhook subscription of SEP-1803. An empty key means that the server sends
// unsigned webhooks. Webhooks that arrive earlier cannot be verified yet, so they wait up to [awaitSecret] for this call.
func (k *hook) setSecret(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if key != "" {
		k.secrets = []string{key}
	}
	close(k.registered)
}

// addSecret creates a secret, which becomes the newest. The newest [maxSecrets] secrets are valid. An older secret is dropped.
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
	// expect sets the secret for the next registration or refresh. The endpoint must accept webhooks with this secret even before the
	// server has answered.
	expect(k *hook) error
	// bind records the id that the server has given to the subscription.
	bind(k *hook, id string)
	// complete is called after the server has accepted a registration or a refresh. The parameter until is the end of the subscription's
	// lifetime, or the zero time if the lifetime is unlimited.
	complete(k *hook, until time.Time) error
	remove(k *hook)
}

type inside struct {
	handler   *Handler
	rotated   time.Time
	confirmed bool // the server has accepted the newest secret
}

// expect replaces the secret if it is older than Rotate. It keeps a secret that the server has not confirmed yet, because the server may
// already use it.
func (at *inside) expect(k *hook) error {
	if at.rotated.IsZero() || at.confirmed && time.Since(at.rotated) >= cmp.Or(k.sub.Rotate, defaultRotate) {
		k.addSecret()
		at.rotated, at.confirmed = time.Now(), false
	}
	at.handler.expect(k)
	return nil
}

func (at *inside) bind(k *hook, id string) {
	at.handler.bind(k, id)
	at.confirmed = true
}

func (*inside) complete(*hook, time.Time) error { return nil }

func (at *inside) remove(k *hook) { at.handler.remove(k) }

type outside struct{ options *Endpoint }

// expect gets the secret from the external endpoint. It reads the cursor from the store, because that endpoint saves the cursors there.
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
		// Unsubscribe even if events/subscribe was not answered, because the server may have created the subscription.
		defer c.unsubscribe(k)
	}
	var began time.Time        // when the server last accepted the subscription
	var lifetime time.Duration // the lifetime that the server granted
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

// isUnverified reports whether the server could not verify the webhook endpoint. At the first subscribe, the URL of the endpoint is then
// probably wrong. At a refresh, the endpoint is probably restarting, and the subscription exists until its lifetime is over.
func isUnverified(err error) bool {
	_, ok := errors.AsType[*endpointError](err)
	return ok
}

// refreshAfter returns how long to wait before a subscription is refreshed: a random time between half and three quarters of its
// lifetime. Clients that started together then do not refresh together, and there is time left to repeat a failed refresh.
//
// A subscription with an unlimited lifetime (0) is refreshed after 24 to 36 hours. The answer to a refresh has a newer cursor for the
// store. A refresh also reactivates a suspended subscription.
func refreshAfter(lifetime time.Duration) time.Duration {
	lifetime = cmp.Or(lifetime, unlimited)
	return lifetime/2 + rand.N(lifetime/4)
}

const (
	// clockTolerance is the difference between our clock and a Date header above which one of the clocks must be wrong. Smaller
	// differences are normal, because the request takes time and the header has only whole seconds.
	clockTolerance = 5 * time.Second
	// leastLifetime is the shortest lifetime that the client assumes. If the server grants a shorter one, the client would otherwise
	// refresh the subscription again and again without a pause.
	leastLifetime = time.Second
	// unlimited is the lifetime that the client assumes for a subscription with an unlimited lifetime. With it, refreshAfter returns 24
	// to 36 hours.
	unlimited = 2 * defaultRotate
	// unknownLifetime is the lifetime that the client assumes if the end of the subscription is already past when the answer arrives. One
	// of the clocks is probably wrong then, and the answer has no Date header that shows the difference.
	unknownLifetime = time.Minute
)

// grantedLifetime returns how long a subscription lives from now on. The parameter until is the end of the subscription by the server's
// clock. The parameter answered is when the answer with this header arrived, by our clock.
//
// If the two clocks differ, grantedLifetime counts from the answer's Date header. Otherwise, a client whose clock is ahead would refresh
// continuously, and a client whose clock is behind would refresh too late.
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

// resumeAt subscribes again at the cursor of a gap, because the server may still have the events whose delivery it gave up. The saved
// cursor stays at the gap until the server has accepted the new subscription. Otherwise webhooks that arrive meanwhile would move the
// cursor past the lost events.
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

// subscribe creates or refreshes the subscription. It returns the subscription's lifetime, or 0 if the lifetime is unlimited. If the
// parameter afresh is true, it first ends the subscription at the server, so that the server begins at the cursor in the request.
//
// The request has the cursor of the last acknowledged event. A server that still has the subscription ignores this cursor. A server that
// has lost the subscription begins there.
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
	case err != nil && k.id != "" && !fault.Is(err, fault.NotFound): // without an id, the server probably never created it
		k.log.Warn("subscription not ended", "subscription", k.id, "error", err)
	case k.id != "":
		k.log.Info("subscription ended", "subscription", k.id)
	}
}
