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

func (r *results) judgeHeaders(d delivery) {
	for _, name := range []string{webhook.HeaderID, webhook.HeaderTimestamp, webhook.HeaderSignature, webhook.HeaderSubscription} {
		r.judge(ruleHeaders, d.header.Get(name) != "", "%s is missing", name)
	}
	r.judge(ruleSignature, d.verified == nil, "%v", d.verified)
	r.judge(ruleSize, len(d.body) <= webhook.MaxBody, "a body has %d bytes", len(d.body))
}

// deliveryCheck checks the deliveries of webhooks: to an endpoint that accepts all events, and to endpoints that fail on purpose.
type deliveryCheck struct {
	subscriber
	hook         *hook
	subscription *subscribed
	endpoints    *endpoints
	// quiet is how long to wait for a delivery that should not arrive. It is at least three times as long as the first delivery took.
	quiet time.Duration
}

func (c *deliveryCheck) judgeArrival(d delivery) occurrence {
	c.judgeHeaders(d)
	c.judge(ruleDelivery, d.method == http.MethodPost && isJSON(d.header), "%s of %q", d.method, d.header.Get("Content-Type"))
	c.judge(ruleHeaders, d.header.Get(webhook.HeaderSubscription) == c.subscription.ID, "%s is %q, want the subscription %s", webhook.HeaderSubscription, d.header.Get(webhook.HeaderSubscription), c.subscription.ID)
	o := c.judgeEvent(d.body, c.t, spec.ModeWebhook)
	message := strings.HasPrefix(d.id(), "msg_")
	c.judge(ruleWebhookID, message || d.id() == o.EventID, "webhook-id is %s, but eventId is %s", d.id(), o.EventID)
	if message { // msg_ shows the final profile; an eventId shows nothing, because some drafts of that profile used it
		c.noteProfile(spec.Final, "webhook-id")
	}
	return o
}

func isJSON(h http.Header) bool {
	media, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	return media == "application/json"
}

// endpoints has webhook endpoints to which the server sends the same events. The name of a field says how its endpoint answers. For
// example, gone answers every event with 410, and redirect redirects the server to target, which must receive no request. The field
// expiring has the endpoint of a subscription that ends during the run.
type endpoints struct {
	retried, gone, large, redirect, target, expiring *hook
	expires                                          time.Time // when the subscription of expiring ends; zero if the check cannot wait for it
}

func (c *deliveryCheck) run(ctx context.Context) {
	defer c.dropEndpoints(context.WithoutCancel(ctx))
	c.subscribeEndpoints(ctx)
	c.Progress("publish, and wait for deliveries")
	begun := time.Now()
	c.emit(ctx, 1, deliveryRules...)
	got := c.hook.awaitEvents(ctx, 1, c.Wait)
	if len(got) == 0 {
		c.fail(ruleDelivery, "no event arrived within %s", c.Wait)
		c.skip("no event was delivered", deliveryRules...)
		return
	}
	c.quiet = max(c.quiet, 3*time.Since(begun))
	first := c.judgeArrival(got[0])
	c.checkRotation(ctx)
	c.Progress("wait for retries")
	c.checkRetries(ctx)
	c.checkStatus(ctx)
	c.checkEnd(ctx)
	c.checkReplay(ctx, first)
}

func makeEndpoints(r *receiver) *endpoints {
	e := &endpoints{
		retried: r.newHook("retried"), gone: r.newHook("gone"), large: r.newHook("large"),
		redirect: r.newHook("redirect"), target: r.newHook("target"), expiring: r.newHook("expiring"),
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
			c.skip(err.Error(), deliveryRules...)
			panic(stopped{err})
		}
	}
	s, _ := c.subscribe(ctx, e.expiring, map[string]any{"ttlMs": 1000})
	if s == nil {
		return
	}
	if until, ok := s.expiry(); ok && !until.IsZero() && time.Until(until) < c.Wait {
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

// checkRotation refreshes a subscription with a new secret. It checks that the next event is signed with both the new and the old secret.
func (c *deliveryCheck) checkRotation(ctx context.Context) {
	before := len(c.hook.listDeliveries(false))
	c.hook.rotate()
	again, a := c.subscribe(ctx, c.hook, map[string]any{"cursor": c.subscription.Cursor})
	if again == nil {
		c.fail(ruleRotation, "the answer to a refresh with another secret is %s", a)
		return
	}
	c.emit(ctx, 1)
	got := c.hook.awaitEvents(ctx, before+1, c.Wait)
	if len(got) <= before {
		c.fail(ruleRotation, "no event arrived within %s after a refresh", c.Wait)
		return
	}
	d := got[len(got)-1]
	c.judge(ruleRotation, d.verified == nil, "%v", d.verified)
	c.judge(ruleDual, d.old == nil, "%v", d.old)
}

// checkRetries waits for the second attempt at the endpoint that has answered 500 once. It also checks that the server made no second
// attempt at the endpoints that answered 410 or 413, and that it did not follow a redirect.
func (c *deliveryCheck) checkRetries(ctx context.Context) {
	e := c.endpoints
	attempts := map[string][]delivery{}
	deadline := time.Now().Add(c.Wait)
	for n := 2; len(attempts) == 0 || !c.judgeRetry(attempts); n++ {
		got := e.retried.awaitEvents(ctx, n, time.Until(deadline))
		attempts = groupByID(got)
		if len(got) < n {
			break
		}
	}
	if !c.judgeRetry(attempts) {
		c.fail(ruleRetry, "an event that was answered with 500 was not retried within %s", c.Wait)
		c.skip("there are no retries to compare with", ruleGone, ruleTooLarge)
	} else {
		c.judgeOnce(ctx, ruleGone, e.gone)
		c.judgeOnce(ctx, ruleTooLarge, e.large)
	}
	c.judge(ruleRedirect, len(e.target.listDeliveries(false)) == 0 && len(e.target.listDeliveries(true)) == 0, "the target of a redirect received a request")
}

// judgeRetry checks that the second attempt to deliver an event has a new timestamp and a new valid signature. It returns false if no
// event has had a second attempt yet.
func (c *deliveryCheck) judgeRetry(attempts map[string][]delivery) bool {
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

// judgeOnce checks that an endpoint has received each event only once.
func (c *deliveryCheck) judgeOnce(ctx context.Context, r *Rule, h *hook) {
	got := h.awaitEvents(ctx, 1, c.Wait)
	if len(got) == 0 {
		c.skip("the endpoint received no request", r)
		return
	}
	h.awaitEvents(ctx, len(got)+10, c.quiet)
	for id, of := range groupByID(h.listDeliveries(false)) {
		c.judge(r, len(of) == 1, "%s arrived %d times", id, len(of))
	}
}

func groupByID(all []delivery) map[string][]delivery {
	m := map[string][]delivery{}
	for _, d := range all {
		m[d.id()] = append(m[d.id()], d)
	}
	return m
}

func (c *deliveryCheck) checkStatus(ctx context.Context) {
	c.subscribe(ctx, c.endpoints.gone, nil)
	c.skip("a refresh after a failure has no deliveryStatus with lastError", ruleStatus)
}

// checkEnd checks that an endpoint receives no event after events/unsubscribe, or after its subscription has expired.
func (c *deliveryCheck) checkEnd(ctx context.Context) {
	h, e := c.hook, c.endpoints
	a := need(c.unsubscribe(ctx, h))
	c.judge(ruleUnsubscribe, a.result != nil, "the answer is %s", a)
	if !e.expires.IsZero() {
		c.Progress("wait for a subscription to expire")
		if err := periodic.Sleep(ctx, time.Until(e.expires)+time.Second); err != nil {
			panic(stopped{err})
		}
	}
	had, expired := len(h.listDeliveries(false)), len(e.expiring.listDeliveries(false))
	c.emit(ctx, 1)
	got := h.awaitEvents(ctx, had+1, c.quiet)
	c.judge(ruleUnsubscribe, len(got) == had, "an event arrived after events/unsubscribe")
	if !e.expires.IsZero() {
		c.judge(ruleExpiry, len(e.expiring.listDeliveries(false)) == expired, "an event arrived after refreshBefore")
	}
}

// checkReplay subscribes a new endpoint with the cursor of an earlier event. It checks that the endpoint receives the events after that
// event.
func (c *deliveryCheck) checkReplay(ctx context.Context, first occurrence) {
	if first.Cursor == nil {
		c.skip("the event type has no replay (cursor null)", ruleReplay)
		return
	}
	h := c.receiver.newHook("replayed")
	s, a := c.subscribe(ctx, h, map[string]any{"cursor": *first.Cursor})
	if s == nil {
		c.fail(ruleReplay, "the answer is %s", a)
		return
	}
	defer func() { _, _ = c.unsubscribe(context.WithoutCancel(ctx), h) }()
	c.judge(ruleReplay, len(h.awaitEvents(ctx, 1, c.Wait)) > 0, "no event arrived within %s", c.Wait)
}
