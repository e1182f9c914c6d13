package check

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// specVersion is the version of the specification from which the rules are taken.
const specVersion = "SEP-3415, seps/0000-events-extension.md at commit 5eb6862 of modelcontextprotocol/modelcontextprotocol"

const (
	must   = "MUST"
	should = "SHOULD"
)

// Rule is a requirement that the specification has for servers.
type Rule struct {
	ID      string `json:"rule"`
	Level   string `json:"level"`
	Section string `json:"section"`
	Text    string `json:"text"`
}

// rules lists all rules in the order of the report. If the specification says something without MUST or SHOULD, but clients depend on it,
// the rule counts as a MUST.
var rules []*Rule

func rule(id, level, section, text string) *Rule {
	r := &Rule{id, level, section, text}
	rules = append(rules, r)
	return r
}

func rulesOfMode(mode string) []*Rule {
	return slices.DeleteFunc(slices.Clone(rules), func(r *Rule) bool { return !strings.HasPrefix(r.ID, mode+"-") })
}

const (
	inConventions = "Specification"
	inCapability  = "Capability Negotiation"
	inList        = "Listing Available Events"
	inErrors      = "Error Handling"
	inOccurrence  = "Event Occurrences"
	inPoll        = "Poll-Based Delivery"
	inPush        = "Push-Based Delivery"
	inCursor      = "Cursor Lifecycle"
	inSubscribe   = "Webhook: Subscribing"
	inTTL         = "Webhook: Subscription TTL"
	inIdentity    = "Webhook: Subscription identity"
	inDelivery    = "Webhook: event delivery"
	inBodies      = "Webhook: Non-event bodies"
	inSecurity    = "Webhook security"
	inUnsubscribe = "Unsubscribing"
	inTermination = "Subscription Termination"
)

var (
	ruleAdvertised = rule("capability", must, inCapability, "server/discover has the extension with an object of settings")
	ruleUnoffered  = rule("capability-absent", must, inCapability, "without the extension, the answer to events/* is error -32601")
	ruleComplete   = rule("result-type", must, inConventions, "every result has resultType complete")

	ruleList    = rule("list", must, inList, "events/list has event types, and its pages end")
	ruleNames   = rule("list-names", must, inList, "every event type has a unique name")
	ruleModes   = rule("list-delivery", must, inList, "delivery is a non-empty subset of poll, push and webhook")
	ruleSchemas = rule("list-schemas", must, inList, "inputSchema and payloadSchema are JSON Schemas")

	ruleUnknownEvent = rule("error-unknown-event", must, inErrors, "an unknown event type results in NotFound")
	ruleBadArguments = rule("error-arguments", must, inErrors, "arguments that do not match inputSchema result in InvalidParams")
	ruleWrongMode    = rule("error-mode", must, inErrors, "a delivery mode that the event type does not offer results in Unsupported")
	ruleProfile      = rule("profile", should, inErrors, "error numbers, webhook-id and unknown subscriptions follow one profile, released or final")

	rulePollNull    = rule("poll-null", must, inPoll, "a poll with cursor null returns no events")
	rulePollAbsent  = rule("poll-absent", must, inCursor, "an absent cursor means the same as null")
	rulePollMembers = rule("poll-members", must, inPoll, "a result has events, hasMore and nextPollMs")
	rulePollEvent   = rule("poll-event", must, inPoll, "a poll from the cursor before an event returns the event")
	rulePollReplay  = rule("poll-replay", should, inCursor, "a poll from the same cursor returns the same event with the same eventId")
	rulePollMax     = rule("poll-max", must, inPoll, "maxEvents limits the events of a result, and hasMore is then true")

	ruleOccurrence = rule("occurrence", must, inOccurrence, "an event has eventId, name, timestamp and an object as data")
	rulePayload    = rule("occurrence-payload", must, inOccurrence, "data conforms to payloadSchema")
	ruleSameID     = rule("occurrence-id", must, inOccurrence, "an event has the same eventId in every mode")

	rulePushActive    = rule("push-active", must, inPush, "the first message of a stream is notifications/events/active")
	rulePushID        = rule("push-subscription-id", must, inPush, "every notification has the id of the request as subscriptionId")
	rulePushEvent     = rule("push-event", must, inPush, "an open stream sends an event")
	rulePushResume    = rule("push-resume", must, inCursor, "a stream from a cursor sends the events after it")
	rulePushParallel  = rule("push-parallel", must, inPush, "a client may have several streams open")
	rulePushRefusal   = rule("push-refusal", must, inPush, "an invalid subscription results in an error and no stream")
	rulePushHeartbeat = rule("push-heartbeat", must, inPush, "a quiet stream sends heartbeats")
	rulePushEvery     = rule("push-heartbeat-30s", should, inPush, "there is a heartbeat at least every 30 seconds")

	ruleAuthenticated = rule("webhook-principal", must, inIdentity, "events/subscribe without a principal is refused")
	ruleSubscribe     = rule("webhook-subscribe", must, inSubscribe, "the result of events/subscribe has id and refreshBefore")
	ruleHTTPS         = rule("webhook-https", must, inSecurity, "a URL without https results in InvalidParams")
	ruleBadURL        = rule("webhook-url", must, inErrors, "a malformed URL results in InvalidParams")
	rulePrivate       = rule("webhook-private", should, inSecurity, "a URL whose address is not globally routable is refused")
	ruleSecret        = rule("webhook-secret", must, inSubscribe, "a secret other than whsec_ and 24 to 64 bytes in base64 results in InvalidParams")
	ruleChallenge     = rule("webhook-challenge", must, inSecurity, "an endpoint is verified before the first delivery")
	ruleChallengeFail = rule("webhook-challenge-failed", must, inSecurity, "an endpoint that does not echo the challenge results in CallbackEndpointError with challenge_failed")
	ruleUnreachable   = rule("webhook-endpoint-error", must, inSecurity, "a failing endpoint results in CallbackEndpointError with a category and without the text of its response")
	ruleEnvelope      = rule("webhook-envelope", must, inBodies, "a challenge is signed, and its webhook-id is msg_verification_…")
	ruleTTL           = rule("webhook-ttl", should, inTTL, "the lifetime is not longer than requested")
	ruleTTLNull       = rule("webhook-ttl-null", must, inTTL, "refreshBefore is null only if the request has ttlMs null")
	ruleExpiry        = rule("webhook-expiry", must, inTTL, "deliveries stop after refreshBefore")
	ruleSameKey       = rule("webhook-key", must, inIdentity, "the same principal, url, name and arguments refer to the same subscription")
	ruleOtherKey      = rule("webhook-key-url", must, inIdentity, "another url refers to another subscription")
	ruleDelivery      = rule("webhook-delivery", must, inDelivery, "an event is sent as a POST with JSON")
	ruleHeaders       = rule("webhook-headers", must, inSecurity, "every delivery has the headers of Standard Webhooks and X-MCP-Subscription-Id")
	ruleSignature     = rule("webhook-signature", must, inSecurity, "every delivery is signed with the client's secret and the time of the attempt")
	ruleWebhookID     = rule("webhook-id", should, inSecurity, "webhook-id is the eventId or, in the final profile, the id of the message, msg_…")
	ruleSize          = rule("webhook-size", should, inSecurity, "a delivery is at most 256 KiB")
	ruleReplay        = rule("webhook-replay", should, inSubscribe, "a new subscription with a cursor receives the events after it")
	ruleRetry         = rule("webhook-retry", must, inDelivery, "a failed delivery is retried with a new timestamp and signature")
	ruleGone          = rule("webhook-410", must, inDelivery, "a delivery answered with 410 is not retried")
	ruleTooLarge      = rule("webhook-413", must, inSecurity, "a delivery answered with 413 is not retried")
	ruleRedirect      = rule("webhook-redirect", must, inSecurity, "redirects are not followed")
	ruleStatus        = rule("webhook-status", must, inDelivery, "lastError of deliveryStatus is a category")
	ruleRotation      = rule("webhook-rotation", must, inIdentity, "after a refresh with a new secret, the new secret signs deliveries")
	ruleDual          = rule("webhook-dual", should, inSecurity, "after a rotation, the old secret also signs for a while")
	ruleUnsubscribe   = rule("webhook-unsubscribe", must, inUnsubscribe, "events/unsubscribe stops deliveries")
	ruleUnsubUnknown  = rule("webhook-unsubscribe-unknown", should, inErrors, "events/unsubscribe of an unknown subscription results in NotFound or, in the released profile, in an empty result")

	ruleTerminated = rule("terminated", must, inTermination, "the server tells the client when a subscription ends because of lost access or a removed event type")
)

// codes has the JSON-RPC codes of each error by the error's name. If an error has two codes, the first is from the final version of MCP
// Events, and the second from the draft that released clients implement.
var codes = map[string][]int{
	"InvalidParams":         {-32602},
	"NotFound":              {-32023, -32011},
	"Forbidden":             {-32024, -32012},
	"Unsupported":           {-32026, -32014},
	"CallbackEndpointError": {-32027, -32015},
}

// judgeRefusal checks that an answer is the error with the given name. The parameter what describes the refused request in the report. If
// the code of the error shows which version of MCP Events the server follows, judgeRefusal records the version.
func (r *results) judgeRefusal(rule *Rule, a *answer, name, what string) {
	if i := slices.Index(codes[name], a.code()); i >= 0 {
		r.pass(rule)
		if len(codes[name]) > 1 {
			r.noteProfile([]spec.Profile{spec.Final, spec.Released}[i], "error numbers")
		}
		return
	}
	r.fail(rule, "%s: got %s, want %s (%d)", what, a, name, codes[name][0])
}

// categories has the values that the specification allows for deliveryStatus.lastError, and for data.reason in the error for an endpoint
// that fails.
var categories = []string{"connection_refused", "timeout", "tls_error", "http_4xx", "http_5xx", "challenge_failed"}

type occurrence struct {
	EventID   string          `json:"eventId"`
	Name      string          `json:"name"`
	Timestamp string          `json:"timestamp"`
	Data      json.RawMessage `json:"data"`
	Cursor    *string         `json:"cursor"`
}

func (r *results) judgeEvent(raw json.RawMessage, t eventType, mode string) occurrence {
	var o occurrence
	err := json.Unmarshal(raw, &o)
	_, bad := time.Parse(time.RFC3339Nano, o.Timestamp)
	r.judge(ruleOccurrence, err == nil && o.EventID != "" && o.Name == t.Name && bad == nil && isObject(o.Data), "%s: %s", mode, clip(raw))
	if schema, err := compile(t.PayloadSchema); err == nil {
		data, _ := jsonschema.UnmarshalJSON(bytes.NewReader(o.Data))
		err := schema.Validate(data)
		r.judge(rulePayload, err == nil, "%s: %v", mode, err)
	}
	return o
}

// compile compiles a JSON schema. A missing schema allows any value. References to other documents are not loaded.
func compile(raw json.RawMessage) (*jsonschema.Schema, error) {
	if len(raw) == 0 {
		raw = json.RawMessage("true")
	} else if !isObject(raw) && string(raw) != "true" {
		return nil, fmt.Errorf("%s is not the schema of an object", clip(raw))
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(jsonschema.SchemeURLLoader{})
	if err := compiler.AddResource("schema.json", v); err != nil {
		return nil, err
	}
	return compiler.Compile("schema.json")
}

func isObject(raw json.RawMessage) bool {
	var members map[string]json.RawMessage
	return json.Unmarshal(raw, &members) == nil && members != nil
}

func clip(raw []byte) string {
	const most = 200
	if len(raw) > most {
		return fmt.Sprintf("%q…", raw[:most])
	}
	return fmt.Sprintf("%q", raw)
}

const unknownEvent = "mcp-events-check.no-such-event"

type refusalCheck struct{ *checker }

func (c *refusalCheck) run(ctx context.Context) {
	if method, t, ok := c.chooseCheapest(); ok { // if all event types offer only webhooks, webhookCheck calls sendUnfit instead
		c.sendUnfit(t, func(params map[string]any) *answer { return c.ask(ctx, method, params) })
	}
	c.checkWrongMode(ctx)
}

// sendUnfit checks that the server refuses an unknown event type, and invalid arguments for the event type t. The function ask sends a
// request with the given params.
func (r *results) sendUnfit(t eventType, ask func(params map[string]any) *answer) {
	a := ask(map[string]any{"name": unknownEvent, "arguments": map[string]any{}})
	r.judgeRefusal(ruleUnknownEvent, a, "NotFound", "an unknown event type")
	bad := makeMisfit(t.InputSchema)
	if bad == nil {
		r.skip("inputSchema allows all arguments that the check can construct", ruleBadArguments)
		return
	}
	a = ask(map[string]any{"name": t.Name, "arguments": bad})
	r.judgeRefusal(ruleBadArguments, a, "InvalidParams", "the arguments "+string(bad))
}

// chooseCheapest returns the method and the event type for requests that the server must refuse. If possible, it chooses polls, and
// otherwise streams. A server that wrongly accepts a poll or a stream keeps no subscription.
func (c *refusalCheck) chooseCheapest() (string, eventType, bool) {
	if t, ok := c.pick(spec.ModePoll); ok && slices.Contains(t.Delivery, spec.ModePoll) {
		return spec.MethodEventsPoll, t, true
	}
	t, ok := c.pick(spec.ModePush)
	return spec.MethodEventsStream, t, ok
}

func (c *refusalCheck) ask(ctx context.Context, method string, params map[string]any) *answer {
	if method != spec.MethodEventsStream {
		return need(c.conn.call(ctx, method, params))
	}
	return need(c.conn.openRefused(ctx, params, c.Wait))
}

// checkWrongMode checks that the server refuses a subscription in a mode that the event type does not offer.
func (c *refusalCheck) checkWrongMode(ctx context.Context) {
	for mode, method := range map[string]string{spec.ModePoll: spec.MethodEventsPoll, spec.ModePush: spec.MethodEventsStream} {
		i := slices.IndexFunc(c.types, func(t eventType) bool { return !slices.Contains(t.Delivery, mode) && accepts(t.InputSchema, "{}") })
		if _, offered := c.pick(mode); i < 0 || !offered { // if no event type offers the mode, the server may lack its method
			continue
		}
		a := c.ask(ctx, method, map[string]any{"name": c.types[i].Name, "arguments": map[string]any{}})
		c.judgeRefusal(ruleWrongMode, a, "Unsupported", method+" of "+c.types[i].Name)
		return
	}
	c.skip("all event types offer the same modes without webhooks, or need arguments", ruleWrongMode)
}

func accepts(schema json.RawMessage, arguments string) bool {
	s, err := compile(schema)
	if err != nil {
		return false
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader([]byte(arguments)))
	return err == nil && s.Validate(v) == nil
}

// makeMisfit returns arguments that do not match a JSON schema, or nil if it cannot find such arguments.
func makeMisfit(schema json.RawMessage) json.RawMessage {
	var members struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	_ = json.Unmarshal(schema, &members)
	candidates := []string{`{"mcp-events-check-unknown":true}`, `{}`}
	for name := range members.Properties {
		key, _ := json.Marshal(name)
		for _, value := range []string{"true", "12.5", "null", "{}", `""`} {
			candidates = append(candidates, "{"+string(key)+":"+value+"}")
		}
	}
	if _, err := compile(schema); err != nil {
		return nil
	}
	for _, arguments := range candidates {
		if !accepts(schema, arguments) {
			return json.RawMessage(arguments)
		}
	}
	return nil
}
