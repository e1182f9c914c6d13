package client

import (
	"cmp"
	"context"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// hook is a subscription that receives webhooks through the [Handler].
type hook struct {
	*flow
	url   string
	over  chan error    // the reason for which the server ended it
	again chan struct{} // to subscribe again from the saved cursor

	registered chan struct{} // of SEP-1803; closed when the server has sent the secret

	mu      sync.Mutex
	secrets []string // the newest first
	id      string   // empty before the server's answer
}

// maxSecrets is how many secrets are valid: the newest, the previous one, with which a server may still sign, and one whose
// refresh was not answered.
const maxSecrets = 3

// defaultRotate is the age of a secret at which a refresh replaces it.
const defaultRotate = 24 * time.Hour

// awaitSecret is how long a webhook waits for the answer to a registration. It can arrive before that answer, and its sender
// would try again only seconds later.
const awaitSecret = 10 * time.Second

// errNotRegistered is the error of a webhook that waits in vain for the answer to a registration.
var errNotRegistered = fault.New(fault.Unavailable, "not registered yet")

// verify returns nil if one of the secrets has signed the webhook, or if the server sends unsigned ones.
func (k *hook) verify(r *http.Request, body []byte) error {
	if k.registered == nil {
		return webhook.Verify(r.Header, body, k.keys()...)
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
	if keys := k.keys(); len(keys) > 0 {
		return webhook.Verify(r.Header, body, keys...)
	}
	return nil
}

// unsigned reports whether the server sends unsigned webhooks, or has not sent the secret yet. A challenge is then echoed
// without a check of its signature, because an echo only tells the server that webhooks may arrive.
func (k *hook) unsigned() bool { return k.registered != nil && len(k.keys()) == 0 }

// setSecret sets the secret of a registration; empty is for unsigned webhooks.
func (k *hook) setSecret(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if key != "" {
		k.secrets = []string{key}
	}
	close(k.registered)
}

func (k *hook) rotate() {
	key, _ := webhook.NewSecret()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.secrets = append([]string{key}, k.secrets...)
	k.secrets = k.secrets[:min(len(k.secrets), maxSecrets)]
}

func (k *hook) keys() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.secrets)
}

// subscribed is the answer to events/subscribe.
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

// webhook subscribes, refreshes in time, and unsubscribes at the end if the subscription says so.
func (c *Client) webhook(f *flow) error {
	k := &hook{flow: f, url: c.options.Webhooks.URL, over: make(chan error, 1), again: make(chan struct{}, 1)}
	k.rotate()
	defer c.options.Webhooks.remove(k)
	if f.sub.Unsubscribe {
		// Also without an answer to events/subscribe, because the server may have made the subscription.
		defer c.unsubscribe(k)
	}
	var lifetime time.Duration
	began, rotated := time.Now(), time.Now()
	anew := f.position() != "" // an earlier run may have left a subscription
	for failures := 0; ; {
		wait := time.Until(began.Add(refreshAfter(lifetime)))
		switch {
		case failures > 0:
			wait = httpcall.Backoff(failures - 1)
		case !f.begun:
			wait = 0
		}
		select {
		case <-f.ctx.Done():
			return context.Cause(f.ctx)
		case err := <-k.over:
			return err
		case <-k.again:
			anew = true
		case <-time.After(wait):
		}
		if failures == 0 && time.Since(rotated) >= cmp.Or(f.sub.Rotate, defaultRotate) {
			k.rotate()
			rotated = time.Now()
		}
		asked := time.Now()
		granted, err := c.subscribe(k, anew)
		switch {
		case f.ctx.Err() != nil:
			return context.Cause(f.ctx)
		case err == nil:
			if f.begun {
				f.log.Debug("subscription refreshed", "subscription", k.id)
			}
			began, lifetime, failures, anew = asked, granted, 0, false
			f.started(grant{id: k.id, secret: k.keys()[0]})
		case !f.transient(err):
			return f.ended(err)
		case f.begun:
			f.log.Warn("subscription not refreshed", "error", err)
			failures++
		default:
			f.log.Warn("request failed, retrying", "mode", f.sub.Mode, "error", err)
			failures++
		}
	}
}

// refreshAfter returns between half and three quarters of a lifetime. The jitter keeps clients that started together
// from refreshing together, and the rest of the lifetime leaves room to repeat a refresh that fails. A subscription
// whose lifetime does not end (0) is refreshed about once a day, because that moves its cursor and reactivates it if it
// was suspended.
func refreshAfter(lifetime time.Duration) time.Duration {
	if lifetime == 0 {
		lifetime = 2 * defaultRotate
	}
	return lifetime/2 + rand.N(lifetime/4)
}

const (
	// clockTolerance is the difference between two clocks that is taken for the time of the exchange, and for the whole
	// seconds of a Date header.
	clockTolerance = 5 * time.Second
	// leastLifetime is the shortest lifetime.
	leastLifetime = time.Second
	// unknownLifetime is the lifetime if the answer's clock is not known and must be far behind ours.
	unknownLifetime = time.Minute
)

// grantedLifetime returns how long a subscription lives that ends at the given time of the server's clock. It compares
// that time with the Date of the answer if our clock is different. Otherwise a clock that is ahead would refresh
// continuously, and one that is behind would let the subscription lapse.
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

// delivery returns the parameters that identify the subscription, and a secret that does not.
func (k *hook) delivery(secret string) map[string]any {
	delivery := map[string]any{"mode": ModeWebhook, "url": k.url}
	if secret != "" {
		delivery["secret"] = secret
	}
	return map[string]any{"name": k.sub.Name, "arguments": k.sub.arguments, "delivery": delivery}
}

// regain continues from the cursor of a gap, because the server may still have the events that it gave up. Until it has
// subscribed there again, it does not save the cursors of other webhooks, which are after the gap.
func (k *hook) regain(g Gap) error {
	if g.Cursor == "" {
		return k.announce(g)
	}
	k.hold(true)
	if err := k.announce(g); err != nil {
		return err
	}
	k.pin(g.Cursor)
	select {
	case k.again <- struct{}{}:
	default:
	}
	return nil
}

// subscribe makes the subscription or refreshes it, and returns its lifetime, 0 if that does not end.
//
// The request has the cursor of the last acknowledged event. A server that still has the subscription ignores the
// cursor, and a server that has lost it continues from there. With anew, subscribe first ends the subscription at the
// server, so that the cursor is used.
func (c *Client) subscribe(k *hook, anew bool) (lifetime time.Duration, err error) {
	if anew {
		if _, err := c.call(k.ctx, spec.MethodEventsUnsub, k.delivery(""), nil); Retryable(err) {
			return 0, err
		}
	}
	params := k.delivery(k.keys()[0])
	params["cursor"] = nil
	if cursor := cmp.Or(k.position(), k.sub.Cursor); cursor != "" {
		params["cursor"] = cursor
	}
	if k.sub.TTL > 0 {
		params["ttlMs"] = k.sub.TTL.Milliseconds()
	}
	var g subscribed
	c.options.Webhooks.await(k)
	header, err := c.call(k.ctx, spec.MethodEventsSub, params, &g)
	if err != nil {
		return 0, err
	}
	answered := time.Now()
	if g.ID == "" {
		return 0, fault.New(fault.Unavailable, "%s: the server's answer has no id", spec.MethodEventsSub)
	}
	c.options.Webhooks.bind(k, g.ID)
	if anew {
		k.hold(false)
	}
	if s := g.Status; s != nil && !s.Active {
		k.log.Warn("subscription was suspended", "subscription", g.ID, "lastError", s.LastError, "failedSince", s.FailedSince)
	}
	if g.Truncated {
		if err := k.gap(Gap{Name: k.sub.Name, Cursor: g.Cursor}); err != nil {
			return 0, err
		}
	}
	k.settle(g.Cursor)
	if g.RefreshBefore == nil {
		return 0, nil
	}
	return grantedLifetime(*g.RefreshBefore, answered, header), nil
}

// unsubscribe ends the subscription at the server, also when the context has ended.
func (c *Client) unsubscribe(k *hook) {
	ctx, cancel := ending(k.ctx)
	defer cancel()
	switch _, err := c.call(ctx, spec.MethodEventsUnsub, k.delivery(""), nil); {
	case err != nil && !fault.Is(err, fault.NotFound):
		k.log.Warn("subscription not ended", "subscription", k.id, "error", err)
	case k.id != "":
		k.log.Info("subscription ended", "subscription", k.id)
	}
}
