package check

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

type subscribed struct {
	ID             string  `json:"id"`
	RefreshBefore  *string `json:"refreshBefore"`
	Cursor         *string `json:"cursor"`
	DeliveryStatus *struct {
		LastError *string `json:"lastError"`
	} `json:"deliveryStatus"`
}

// expiry returns when the subscription ends. The zero time means that the subscription does not end. The result ok is false if the server
// sent an invalid time.
func (s *subscribed) expiry() (t time.Time, ok bool) {
	if s.RefreshBefore == nil {
		return t, true
	}
	t, err := time.Parse(time.RFC3339Nano, *s.RefreshBefore)
	return t, err == nil
}

var deliveryRules = []*Rule{
	ruleDelivery, ruleHeaders, ruleSignature, ruleWebhookID, ruleSize, ruleReplay, ruleRetry, ruleGone, ruleTooLarge, ruleRedirect, ruleStatus,
	ruleRotation, ruleDual, ruleUnsubscribe, ruleExpiry,
}

func toDelivery(url, secret string) map[string]any {
	return map[string]any{"mode": spec.ModeWebhook, "url": url, "secret": secret}
}

type subscriber struct {
	*checker
	t        eventType
	receiver *receiver
}

// subscribe subscribes the endpoint h, and checks the answer. If the server refuses, the returned subscription is nil. The parameter more
// has additional params of the request.
func (c *subscriber) subscribe(ctx context.Context, h *hook, more map[string]any) (*subscribed, *answer) {
	params := c.makeParams(c.t, more)
	params["delivery"] = toDelivery(h.url, h.secret())
	a := need(c.conn.call(ctx, spec.MethodEventsSub, params))
	s := &subscribed{}
	if a.result == nil || json.Unmarshal(a.result, s) != nil {
		return nil, a
	}
	var members map[string]json.RawMessage
	_ = json.Unmarshal(a.result, &members)
	_, said := members["refreshBefore"]
	_, ok := s.expiry()
	c.judge(ruleSubscribe, s.ID != "" && said && ok, "the result is %s", clip(a.result))
	if s.RefreshBefore == nil {
		_, asked := more["ttlMs"]
		c.judge(ruleTTLNull, asked && more["ttlMs"] == nil, "refreshBefore is null, but ttlMs was not")
	} else {
		c.pass(ruleTTLNull)
	}
	if s.DeliveryStatus != nil && s.DeliveryStatus.LastError != nil {
		c.judge(ruleStatus, slices.Contains(categories, *s.DeliveryStatus.LastError), "lastError is %s", clip([]byte(*s.DeliveryStatus.LastError)))
	}
	return s, a
}

func (c *subscriber) unsubscribe(ctx context.Context, h *hook) (*answer, error) {
	return c.conn.call(ctx, spec.MethodEventsUnsub, c.makeParams(c.t, map[string]any{"delivery": map[string]any{"url": h.url}}))
}

// webhookCheck checks webhook subscriptions. At the end, it uses a [deliveryCheck] to check deliveries.
type webhookCheck struct{ subscriber }

func (c *webhookCheck) run(ctx context.Context) {
	c.receiver = need(newReceiver(c.Listen, c.Receiver))
	defer c.receiver.end()
	c.checkRefusals(ctx)
	h := c.receiver.newHook("first")
	s, a := c.subscribe(ctx, h, map[string]any{"cursor": nil, "ttlMs": time.Hour.Milliseconds()})
	if s == nil {
		why := "the answer to events/subscribe is " + a.String()
		if c.Receiver == "" {
			why += "; if the server refuses loopback addresses, use --receiver, a public https URL that leads to --listen"
		} else {
			c.fail(ruleSubscribe, "%s", why)
		}
		c.skip(why, rulesOfMode(spec.ModeWebhook)...)
		return
	}
	defer func() { _, _ = c.unsubscribe(context.WithoutCancel(ctx), h) }()
	c.judgeChallenge(h)
	granted, _ := s.expiry()
	c.judge(ruleTTL, !granted.IsZero() && time.Until(granted) <= time.Hour+time.Minute, "the requested lifetime was an hour, but the subscription lasts until %v", granted)
	c.compareKeys(ctx, h, s)
	c.checkFailingEndpoints(ctx)
	if c.Publish == nil {
		c.skip(noPublish, deliveryRules...)
		return
	}
	(&deliveryCheck{subscriber: c.subscriber, hook: h, subscription: s, endpoints: makeEndpoints(c.receiver), quiet: 2 * time.Second}).run(ctx)
}

// noPrincipals is the reason in the report for the rule that cannot be tested if the server has no authentication.
const noPrincipals = "not testable here: the server has no authentication (ours has --auth none), so it does not tell callers apart; start it with authentication (--auth keys) and give a key with --key"

// judgeChallenge checks the challenge that the server sent to the first endpoint.
func (c *webhookCheck) judgeChallenge(h *hook) {
	control := h.listDeliveries(true)
	if len(control) == 0 {
		c.skip("the server sent no challenge, perhaps because it has a list of verified endpoints",
			ruleChallenge, ruleEnvelope, ruleChallengeFail)
		return
	}
	d := control[0]
	c.judge(ruleChallenge, len(h.listDeliveries(false)) == 0, "an event arrived before the challenge was answered")
	c.judge(ruleEnvelope, d.verified == nil && strings.HasPrefix(d.id(), "msg_verification_"), "webhook-id is %q; signature: %v", d.id(), d.verified)
	c.judgeHeaders(d)
}

func (c *webhookCheck) checkRefusals(ctx context.Context) {
	h := c.receiver.newHook("refused")
	subscribe := func(key string, delivery map[string]any) *answer {
		return need(c.conn.callAs(ctx, key, spec.MethodEventsSub, c.makeParams(c.t, map[string]any{"delivery": delivery})))
	}
	a := subscribe("", toDelivery(h.url, h.secret()))
	refused := a.status == http.StatusUnauthorized || a.status == http.StatusForbidden || slices.Contains(codes["Forbidden"], a.code())
	if !refused && c.Key == "" && httpcall.IsLocal(c.URL) { // on this machine, a developer may leave out authentication
		c.skip(noPrincipals, ruleAuthenticated)
	} else {
		c.judge(ruleAuthenticated, refused, "the answer without credentials is %s", a)
	}

	if !c.hasResult(ruleUnknownEvent) {
		c.sendUnfit(c.t, func(params map[string]any) *answer {
			params["delivery"] = toDelivery(h.url, h.secret())
			return need(c.conn.call(ctx, spec.MethodEventsSub, params))
		})
	}
	encoded := func(n int) string { return "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, n)) }
	for what, secret := range map[string]any{
		"no secret": nil, "another prefix": "secret_" + encoded(32)[6:], "23 bytes": encoded(23), "65 bytes": encoded(65), "invalid base64": "whsec_!!!", "a password": "hunter2",
	} {
		a = subscribe(c.Key, map[string]any{"mode": spec.ModeWebhook, "url": h.url, "secret": secret})
		c.judgeRefusal(ruleSecret, a, "InvalidParams", "a secret that is "+what)
	}
	for _, bad := range []string{"", "no url", "https://", "ftp://example.com/hook"} {
		a = subscribe(c.Key, toDelivery(bad, h.secret()))
		c.judgeRefusal(ruleBadURL, a, "InvalidParams", "the url \""+bad+"\"")
	}
	c.checkAddresses(subscribe, h)
}

// checkAddresses checks that the server refuses http URLs, and URLs of private addresses such as 10.0.0.1. If the receiver itself has an
// http URL, it marks these rules as not testable, because the server then probably has settings for development.
func (c *webhookCheck) checkAddresses(subscribe func(key string, delivery map[string]any) *answer, h *hook) {
	at := need(url.Parse(h.url))
	if at.Scheme != "https" {
		c.skip("the receiver has an http URL, so the server must accept such URLs; use --receiver with an https URL", ruleHTTPS, rulePrivate)
		return
	}
	at.Scheme = "http"
	a := subscribe(c.Key, toDelivery(at.String(), h.secret()))
	c.judgeRefusal(ruleHTTPS, a, "InvalidParams", "an http url")
	for _, host := range []string{"127.0.0.1", "10.0.0.1", "169.254.169.254", "[::1]"} {
		a = subscribe(c.Key, toDelivery("https://"+host+"/hook", h.secret()))
		c.judge(rulePrivate, a.err != nil, "the answer for https://%s is %s", host, a)
	}
}

// compareKeys checks that a subscription keeps its id after a refresh, and that a subscription with another URL has another id. It also
// checks the answer to events/unsubscribe for a subscription that does not exist.
func (c *webhookCheck) compareKeys(ctx context.Context, h *hook, s *subscribed) {
	again, a := c.subscribe(ctx, h, map[string]any{"cursor": s.Cursor})
	c.judge(ruleSameKey, again != nil && again.ID == s.ID, "the id was %s, and the answer to a refresh is %s", s.ID, a)
	other := c.receiver.newHook("other")
	second, a := c.subscribe(ctx, other, nil)
	c.judge(ruleOtherKey, second != nil && second.ID != s.ID, "the id is %s, and the answer for another url is %s", s.ID, a)
	c.subscribe(ctx, other, map[string]any{"ttlMs": nil})
	need(c.unsubscribe(ctx, other))
	if a = need(c.unsubscribe(ctx, other)); a.err == nil {
		c.pass(ruleUnsubUnknown)
		c.noteProfile(spec.Released, "unknown subscription")
		return
	}
	c.judgeRefusal(ruleUnsubUnknown, a, "NotFound", "an unknown subscription")
}

// checkFailingEndpoints subscribes endpoints that do not answer the challenge correctly. The server must refuse these subscriptions.
func (c *webhookCheck) checkFailingEndpoints(ctx context.Context) {
	if c.hasResult(ruleChallengeFail) { // it already has a result if the server sent no challenge to the first endpoint
		c.skip("the server sends no challenges", ruleUnreachable)
		return
	}
	c.checkFailing(ctx, "wrong-echo", ruleChallengeFail, "challenge_failed", func(w http.ResponseWriter) { _, _ = w.Write([]byte(`{"challenge":"another"}`)) })
	c.checkFailing(ctx, "refusing", ruleUnreachable, "", func(w http.ResponseWriter) { http.Error(w, oracle, http.StatusInternalServerError) })
}

// oracle is a text in the response of an endpoint. The server must not show this text to a subscriber. Otherwise subscribers could read
// responses from the server's internal network.
const oracle = "a-text-that-only-the-endpoint-knows"

func (c *webhookCheck) checkFailing(ctx context.Context, name string, r *Rule, reason string, challenge func(http.ResponseWriter)) {
	h := c.receiver.newHook(name)
	h.challenge = challenge
	s, a := c.subscribe(ctx, h, nil)
	if s != nil {
		_, _ = c.unsubscribe(ctx, h)
	}
	c.judgeRefusal(r, a, "CallbackEndpointError", "an endpoint that fails")
	if a.err == nil {
		return
	}
	var data struct {
		Reason string `json:"reason"`
	}
	_ = json.Unmarshal(a.err.Data, &data)
	c.judge(r, slices.Contains(categories, data.Reason) && (reason == "" || data.Reason == reason), "data.reason is %q", data.Reason)
	c.judge(r, !strings.Contains(string(a.body), oracle), "the error contains the text of the endpoint's response")
}
