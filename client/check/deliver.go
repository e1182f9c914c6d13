package check

import (
	"context"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// headers judges the headers, signature and size of a request to a hook.
func (r *results) headers(d delivery) {
	for _, name := range []string{webhook.HeaderID, webhook.HeaderTimestamp, webhook.HeaderSignature, webhook.HeaderSubscription} {
		r.judge(ruleHeaders, d.header.Get(name) != "", "%s is missing", name)
	}
	r.judge(ruleSignature, d.verified == nil, "%v", d.verified)
	r.judge(ruleSize, len(d.body) <= webhook.MaxBody, "a body has %d bytes", len(d.body))
}

// deliveryCheck checks the deliveries to a subscribed hook and to failing endpoints.
type deliveryCheck struct {
	subscriber
	hook         *hook
	subscription *subscribed
	endpoints    *endpoints
	// quiet is how long to wait before concluding that no delivery will arrive. It is longer than the first delivery took.
	quiet time.Duration
}

// arrived judges an event at the hook.
func (c *deliveryCheck) arrived(d delivery) occurrence {
	c.headers(d)
	c.judge(ruleDelivery, d.method == http.MethodPost && mediaJSON(d.header), "%s of %q", d.method, d.header.Get("Content-Type"))
	c.judge(ruleHeaders, d.header.Get(webhook.HeaderSubscription) == c.subscription.ID, "%s is %q, want the subscription %s", webhook.HeaderSubscription, d.header.Get(webhook.HeaderSubscription), c.subscription.ID)
	o := c.event(d.body, c.t, spec.ModeWebhook)
	message := strings.HasPrefix(d.id(), "msg_")
	c.judge(ruleWebhookID, message || d.id() == o.EventID, "webhook-id is %s, but eventId is %s", d.id(), o.EventID)
	if message { // only an id of the message shows the final profile, because its draft had the eventId, too
		c.shows(spec.Final, "webhook-id")
	}
	return o
}

func mediaJSON(h http.Header) bool {
	media, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	return media == "application/json"
}

// endpoints are the hooks that receive the same events concurrently.
type endpoints struct {
	retried, gone, large, redirect, target, expiring *hook
	expires                                          time.Time // zero if that takes longer than the wait
}

// run publishes events and judges their deliveries to endpoints that accept them and to endpoints that fail.
func (c *deliveryCheck) run(ctx context.Context) {
	defer c.dropEndpoints(context.WithoutCancel(ctx))
	c.subscribeEndpoints(ctx)
	c.Progress("publish, and wait for deliveries")
	begun := time.Now()
	c.emit(ctx, 1, ofDeliveries...)
	got := c.hook.events(ctx, 1, c.Wait)
	if len(got) == 0 {
		c.fail(ruleDelivery, "no event arrived within %s", c.Wait)
		c.skip("no event was delivered", ofDeliveries...)
		return
	}
	c.quiet = max(c.quiet, 3*time.Since(begun))
	first := c.arrived(got[0])
	c.rotation(ctx)
	c.Progress("wait for retries")
	c.retries(ctx)
	c.refreshed(ctx)
	c.ended(ctx)
	c.replayed(ctx, first)
}

func makeEndpoints(r *receiver) *endpoints {
	e := &endpoints{
		retried: r.hook("retried"), gone: r.hook("gone"), large: r.hook("large"),
		redirect: r.hook("redirect"), target: r.hook("target"), expiring: r.hook("expiring"),
	}
	e.retried.status = func(n int) int {
		if n == 0 {
			return http.StatusInternalServerError
		}
		return http.StatusNoContent
	}
	e.gone.status = func(int) int { return http.StatusGone }
	e.large.status = func(int) int { return http.StatusRequestEntityTooLarge }
	e.redirect.status, e.redirect.location = func(int) int { return http.StatusTemporaryRedirect }, e.target.url
	return e
}

func (c *deliveryCheck) subscribeEndpoints(ctx context.Context) {
	e := c.endpoints
	for _, h := range []*hook{e.retried, e.gone, e.large, e.redirect} {
		if s, a := c.subscribe(ctx, h, nil); s == nil {
			err := fault.New(fault.Unavailable, "the answer to events/subscribe of a further endpoint is %s", a)
			c.skip(err.Error(), ofDeliveries...)
			panic(stopped{err})
		}
	}
	s, _ := c.subscribe(ctx, e.expiring, map[string]any{"ttlMs": 1000})
	if s == nil {
		return
	}
	if until, ok := s.grant(); ok && !until.IsZero() && time.Until(until) < c.Wait {
		e.expires = until
	} else {
		c.skip("the shortest lifetime is longer than "+c.Wait.String(), ruleExpiry)
	}
}

func (c *deliveryCheck) dropEndpoints(ctx context.Context) {
	e := c.endpoints
	for _, h := range []*hook{e.retried, e.gone, e.large, e.redirect, e.expiring} {
		_, _ = c.unsubscribe(ctx, h)
	}
}

// rotation refreshes the subscription with a new secret and publishes another event.
func (c *deliveryCheck) rotation(ctx context.Context) {
	before := len(c.hook.all(false))
	c.hook.rotate()
	again, a := c.subscribe(ctx, c.hook, map[string]any{"cursor": c.subscription.Cursor})
	if again == nil {
		c.fail(ruleRotation, "the answer to a refresh with another secret is %s", a)
		return
	}
	c.emit(ctx, 1)
	got := c.hook.events(ctx, before+1, c.Wait)
	if len(got) <= before {
		c.fail(ruleRotation, "no event arrived within %s after a refresh", c.Wait)
		return
	}
	d := got[len(got)-1]
	c.judge(ruleRotation, d.verified == nil, "%v", d.verified)
	c.judge(ruleDual, d.old == nil, "%v", d.old)
}

// retries waits for the second attempt at the endpoint that failed once, and checks that the other endpoints did not get one.
func (c *deliveryCheck) retries(ctx context.Context) {
	e := c.endpoints
	attempts := map[string][]delivery{}
	deadline := time.Now().Add(c.Wait)
	for n := 2; len(attempts) == 0 || !c.again(attempts); n++ {
		got := e.retried.events(ctx, n, time.Until(deadline))
		attempts = byID(got)
		if len(got) < n {
			break
		}
	}
	if !c.again(attempts) {
		c.fail(ruleRetry, "an event that was answered with 500 was not retried within %s", c.Wait)
		c.skip("there are no retries to compare with", ruleGone, ruleTooLarge)
	} else {
		c.once(ctx, ruleGone, e.gone)
		c.once(ctx, ruleTooLarge, e.large)
	}
	c.judge(ruleRedirect, len(e.target.all(false)) == 0 && len(e.target.all(true)) == 0, "the target of a redirect received a request")
}

// again judges the second attempt of an event. It returns false if no event has had one.
func (c *deliveryCheck) again(attempts map[string][]delivery) bool {
	for _, of := range attempts {
		if len(of) < 2 {
			continue
		}
		first, second := of[0].header, of[1].header
		fresh := first.Get(webhook.HeaderTimestamp) != second.Get(webhook.HeaderTimestamp) && first.Get(webhook.HeaderSignature) != second.Get(webhook.HeaderSignature)
		c.judge(ruleRetry, fresh && of[1].verified == nil, "the second attempt has timestamp %s after %s; signature: %v",
			second.Get(webhook.HeaderTimestamp), first.Get(webhook.HeaderTimestamp), of[1].verified)
		return true
	}
	return false
}

// once judges that an endpoint received no event twice.
func (c *deliveryCheck) once(ctx context.Context, r *Rule, h *hook) {
	got := h.events(ctx, 1, c.Wait)
	if len(got) == 0 {
		c.skip("the endpoint received no request", r)
		return
	}
	h.events(ctx, len(got)+10, c.quiet)
	for id, of := range byID(h.all(false)) {
		c.judge(r, len(of) == 1, "%s arrived %d times", id, len(of))
	}
}

func byID(all []delivery) map[string][]delivery {
	m := map[string][]delivery{}
	for _, d := range all {
		m[d.id()] = append(m[d.id()], d)
	}
	return m
}

// refreshed judges the status of a subscription after a failure.
func (c *deliveryCheck) refreshed(ctx context.Context) {
	c.subscribe(ctx, c.endpoints.gone, nil)
	c.skip("a refresh after a failure has no deliveryStatus with lastError", ruleStatus)
}

// ended publishes an event after one subscription has been ended and another has expired.
func (c *deliveryCheck) ended(ctx context.Context) {
	h, e := c.hook, c.endpoints
	a := need(c.unsubscribe(ctx, h))
	c.judge(ruleUnsubscribe, a.result != nil, "the answer is %s", a)
	if !e.expires.IsZero() {
		c.Progress("wait for a subscription to expire")
		if err := periodic.Sleep(ctx, time.Until(e.expires)+time.Second); err != nil {
			panic(stopped{err})
		}
	}
	had, expired := len(h.all(false)), len(e.expiring.all(false))
	c.emit(ctx, 1)
	got := h.events(ctx, had+1, c.quiet)
	c.judge(ruleUnsubscribe, len(got) == had, "an event arrived after events/unsubscribe")
	if !e.expires.IsZero() {
		c.judge(ruleExpiry, len(e.expiring.all(false)) == expired, "an event arrived after refreshBefore")
	}
}

// replayed subscribes another endpoint at the cursor of an event.
func (c *deliveryCheck) replayed(ctx context.Context, first occurrence) {
	if first.Cursor == nil {
		c.skip("the event type has no replay (cursor null)", ruleReplay)
		return
	}
	h := c.receiver.hook("replayed")
	s, a := c.subscribe(ctx, h, map[string]any{"cursor": *first.Cursor})
	if s == nil {
		c.fail(ruleReplay, "the answer is %s", a)
		return
	}
	defer func() { _, _ = c.unsubscribe(context.WithoutCancel(ctx), h) }()
	c.judge(ruleReplay, len(h.events(ctx, 1, c.Wait)) > 0, "no event arrived within %s", c.Wait)
}
