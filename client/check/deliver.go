package check

import (
	"context"
	"mime"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/periodic"
	"github.com/mcp-events/mcpevents/shared/webhook"
)

// headers judges what every request to a hook has.
func (c *checker) headers(d delivery) {
	for _, name := range []string{webhook.HeaderID, webhook.HeaderTimestamp, webhook.HeaderSignature, webhook.HeaderSubscription} {
		c.judge(ruleHeaders, d.header.Get(name) != "", "%s is missing", name)
	}
	c.judge(ruleSignature, d.verified == nil, "%v", d.verified)
	c.judge(ruleSize, len(d.body) <= webhook.MaxBody, "a body has %d bytes", len(d.body))
}

// arrived judges an event at a hook of a subscription.
func (c *checker) arrived(d delivery, t eventType, id string) occurrence {
	c.headers(d)
	c.judge(ruleDelivery, d.method == http.MethodPost && mediaJSON(d.header), "%s of %q", d.method, d.header.Get("Content-Type"))
	c.judge(ruleHeaders, d.header.Get(webhook.HeaderSubscription) == id, "%s is %q, and the subscription is %s", webhook.HeaderSubscription, d.header.Get(webhook.HeaderSubscription), id)
	o := c.event(d.body, t, mcpspec.ModeWebhook)
	c.judge(ruleWebhookID, d.id() == o.EventID, "webhook-id is %s, and eventId is %s", d.id(), o.EventID)
	return o
}

func mediaJSON(h http.Header) bool {
	media, _, _ := mime.ParseMediaType(h.Get("Content-Type")) // empty for none
	return media == "application/json"
}

// endpoints are the hooks that events are delivered to at once.
type endpoints struct {
	retried, gone, large, redirect, target, expiring *hook
	expires                                          time.Time // zero if it does not within the wait
}

// deliveries has events come to endpoints that take them, and to some that do not.
func (c *checker) deliveries(ctx context.Context, t eventType, h *hook, s *subscribed) {
	e := c.makeEndpoints()
	defer c.dropEndpoints(context.WithoutCancel(ctx), t, e)
	c.subscribeEndpoints(ctx, t, e)
	c.Progress("publish, and wait for deliveries")
	begun := time.Now()
	c.emit(ctx, 1, ofDeliveries...)
	got := h.events(ctx, 1, c.Wait)
	if len(got) == 0 {
		c.fail(ruleDelivery, "no event came within %s", c.Wait)
		c.skip("nothing is delivered", ofDeliveries...)
		return
	}
	c.quiet = max(c.quiet, 3*time.Since(begun))
	first := c.arrived(got[0], t, s.ID)
	c.rotation(ctx, t, h, s)
	c.Progress("wait for retries")
	c.retries(ctx, e)
	c.refreshed(ctx, t, e.gone)
	c.ended(ctx, t, h, e)
	c.replayed(ctx, t, first)
}

func (c *checker) makeEndpoints() *endpoints {
	e := &endpoints{
		retried: c.receiver.hook("retried"), gone: c.receiver.hook("gone"), large: c.receiver.hook("large"),
		redirect: c.receiver.hook("redirect"), target: c.receiver.hook("target"), expiring: c.receiver.hook("expiring"),
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

func (c *checker) subscribeEndpoints(ctx context.Context, t eventType, e *endpoints) {
	for _, h := range []*hook{e.retried, e.gone, e.large, e.redirect} {
		if s, a := c.subscribe(ctx, t, h, nil); s == nil {
			err := fault.New(fault.Unavailable, "events/subscribe of a further endpoint is answered with %s", a)
			c.skip(err.Error(), ofDeliveries...)
			panic(stopped{err})
		}
	}
	s, _ := c.subscribe(ctx, t, e.expiring, map[string]any{"ttlMs": 1000})
	if s == nil {
		return
	}
	if until, ok := s.grant(); ok && !until.IsZero() && time.Until(until) < c.Wait {
		e.expires = until
	} else {
		c.skip("the shortest grant is longer than "+c.Wait.String(), ruleExpiry)
	}
}

func (c *checker) dropEndpoints(ctx context.Context, t eventType, e *endpoints) {
	for _, h := range []*hook{e.retried, e.gone, e.large, e.redirect, e.expiring} {
		_, _ = c.unsubscribe(ctx, t, h)
	}
}

// rotation refreshes with a new secret, and has another event come.
func (c *checker) rotation(ctx context.Context, t eventType, h *hook, s *subscribed) {
	before := len(h.all(false))
	h.rotate()
	again, a := c.subscribe(ctx, t, h, map[string]any{"cursor": s.Cursor})
	if again == nil {
		c.fail(ruleRotation, "a refresh with another secret is answered with %s", a)
		return
	}
	c.emit(ctx, 1)
	got := h.events(ctx, before+1, c.Wait)
	if len(got) <= before {
		c.fail(ruleRotation, "after a refresh no event came within %s", c.Wait)
		return
	}
	d := got[len(got)-1]
	c.judge(ruleRotation, d.verified == nil, "%v", d.verified)
	c.judge(ruleDual, d.old == nil, "%v", d.old)
}

// retries waits for the second attempt at the endpoint that failed once, and looks whether the others had one too.
func (c *checker) retries(ctx context.Context, e *endpoints) {
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
		c.fail(ruleRetry, "an event that was answered with 500 did not come again within %s", c.Wait)
		c.skip("there are no retries to compare with", ruleGone, ruleTooLarge)
	} else {
		c.once(ctx, ruleGone, e.gone)
		c.once(ctx, ruleTooLarge, e.large)
	}
	c.judge(ruleRedirect, len(e.target.all(false)) == 0 && len(e.target.all(true)) == 0, "a request came to where the endpoint redirects")
}

// again judges an event that came twice, if one did.
func (c *checker) again(attempts map[string][]delivery) bool {
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

// once judges that no event came twice to an endpoint.
func (c *checker) once(ctx context.Context, r *Rule, h *hook) {
	got := h.events(ctx, 1, c.Wait)
	if len(got) == 0 {
		c.skip("nothing came to the endpoint", r)
		return
	}
	h.events(ctx, len(got)+10, c.quiet)
	for id, of := range byID(h.all(false)) {
		c.judge(r, len(of) == 1, "%s came %d times", id, len(of))
	}
}

func byID(all []delivery) map[string][]delivery {
	m := map[string][]delivery{}
	for _, d := range all {
		m[d.id()] = append(m[d.id()], d)
	}
	return m
}

// refreshed looks at the status of a subscription that had a failure.
func (c *checker) refreshed(ctx context.Context, t eventType, h *hook) {
	c.subscribe(ctx, t, h, nil)
	c.skip("a refresh after a failure has no deliveryStatus with lastError", ruleStatus)
}

// ended publishes after a subscription was ended, and after another expired.
func (c *checker) ended(ctx context.Context, t eventType, h *hook, e *endpoints) {
	a := need(c.unsubscribe(ctx, t, h))
	c.judge(ruleUnsubscribe, a.result != nil, "it is answered with %s", a)
	if !e.expires.IsZero() {
		c.Progress("wait for a subscription to expire")
		if err := periodic.Sleep(ctx, time.Until(e.expires)+time.Second); err != nil {
			panic(stopped{err})
		}
	}
	had, expired := len(h.all(false)), len(e.expiring.all(false))
	c.emit(ctx, 1)
	got := h.events(ctx, had+1, c.quiet)
	c.judge(ruleUnsubscribe, len(got) == had, "an event came after it")
	if !e.expires.IsZero() {
		c.judge(ruleExpiry, len(e.expiring.all(false)) == expired, "an event came after refreshBefore")
	}
}

// replayed subscribes another endpoint from the cursor of an event.
func (c *checker) replayed(ctx context.Context, t eventType, first occurrence) {
	if first.Cursor == nil {
		c.skip("the event type has no replay (cursor null)", ruleReplay)
		return
	}
	h := c.receiver.hook("replayed")
	s, a := c.subscribe(ctx, t, h, map[string]any{"cursor": *first.Cursor})
	if s == nil {
		c.fail(ruleReplay, "it is answered with %s", a)
		return
	}
	defer func() { _, _ = c.unsubscribe(context.WithoutCancel(ctx), t, h) }()
	c.judge(ruleReplay, len(h.events(ctx, 1, c.Wait)) > 0, "no event came within %s", c.Wait)
}

// common says why what no check looks at is not testable.
func (c *checker) common() {
	c.skip("it takes an operator to remove an event type or a right", ruleTerminated)
	c.skip("the server offers events", ruleUnoffered)
}
