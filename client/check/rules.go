package check

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Text is which text the rules are of.
const Text = "SEP-3415, seps/0000-events-extension.md at commit 5eb6862 of modelcontextprotocol/modelcontextprotocol"

// The levels of rules.
const (
	must   = "MUST"
	should = "SHOULD"
)

// Rule is something that the specification says of servers.
type Rule struct {
	ID      string `json:"rule"`
	Level   string `json:"level"`
	Section string `json:"section"`
	Text    string `json:"text"`
}

// rules are all, in the order of the report. What the text says without one of its words for requirements counts as MUST
// if a client cannot do without.
var rules []*Rule

func rule(id, level, section, text string) *Rule {
	r := &Rule{id, level, section, text}
	rules = append(rules, r)
	return r
}

// ofMode are the rules of a mode, which their ids begin with.
func ofMode(mode string) []*Rule {
	return slices.DeleteFunc(slices.Clone(rules), func(r *Rule) bool { return !strings.HasPrefix(r.ID, mode+"-") })
}

// The sections.
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
	ruleUnoffered  = rule("capability-absent", must, inCapability, "without the extension, events/* is answered with -32601")
	ruleComplete   = rule("result-type", must, inConventions, "every result has resultType complete")

	ruleList    = rule("list", must, inList, "events/list has event types, and its pages end")
	ruleNames   = rule("list-names", must, inList, "every event type has a name of its own")
	ruleModes   = rule("list-delivery", must, inList, "delivery is a subset of poll, push and webhook that is not empty")
	ruleSchemas = rule("list-schemas", must, inList, "inputSchema and payloadSchema are JSON Schemas")

	ruleUnknownEvent = rule("error-unknown-event", must, inErrors, "an unknown event type is NotFound")
	ruleBadArguments = rule("error-arguments", must, inErrors, "arguments that do not fit inputSchema are InvalidParams")
	ruleWrongMode    = rule("error-mode", must, inErrors, "a delivery mode that the event type lacks is Unsupported")
	ruleProfile      = rule("profile", should, inErrors, "error numbers, webhook-id and unknown subscriptions follow one profile, released or final")

	rulePollNull    = rule("poll-null", must, inPoll, "a poll without a position has no events")
	rulePollAbsent  = rule("poll-absent", must, inCursor, "an absent cursor is the same as null")
	rulePollMembers = rule("poll-members", must, inPoll, "a result has events, hasMore and nextPollMs")
	rulePollEvent   = rule("poll-event", must, inPoll, "an event comes with the poll from the position before it")
	rulePollReplay  = rule("poll-replay", should, inCursor, "the same position has the same event again, with its eventId")
	rulePollMax     = rule("poll-max", must, inPoll, "maxEvents caps a batch, and hasMore says that there is more")

	ruleOccurrence = rule("occurrence", must, inOccurrence, "an event has eventId, name, timestamp and an object as data")
	rulePayload    = rule("occurrence-payload", must, inOccurrence, "data conforms to payloadSchema")
	ruleSameID     = rule("occurrence-id", must, inOccurrence, "an event has the same eventId in every mode")

	rulePushActive    = rule("push-active", must, inPush, "a stream begins with notifications/events/active")
	rulePushID        = rule("push-subscription-id", must, inPush, "every notification has the request's id as subscriptionId")
	rulePushEvent     = rule("push-event", must, inPush, "an event comes on the open stream")
	rulePushResume    = rule("push-resume", must, inCursor, "a stream goes on from a position with what came after it")
	rulePushParallel  = rule("push-parallel", must, inPush, "a client may have several streams open")
	rulePushRefusal   = rule("push-refusal", must, inPush, "an invalid subscription is an error, and no stream")
	rulePushHeartbeat = rule("push-heartbeat", must, inPush, "a quiet stream has heartbeats")
	rulePushEvery     = rule("push-heartbeat-30s", should, inPush, "heartbeats come at least every 30 seconds")

	ruleAuthenticated = rule("webhook-principal", must, inIdentity, "events/subscribe without a principal is refused")
	ruleSubscribe     = rule("webhook-subscribe", must, inSubscribe, "events/subscribe is answered with id and refreshBefore")
	ruleHTTPS         = rule("webhook-https", must, inSecurity, "a URL that is not https is InvalidParams")
	ruleBadURL        = rule("webhook-url", must, inErrors, "a URL that is malformed is InvalidParams")
	rulePrivate       = rule("webhook-private", should, inSecurity, "a URL at an address that is not globally routable is refused")
	ruleSecret        = rule("webhook-secret", must, inSubscribe, "a secret that is not whsec_ and 24 to 64 bytes in base64 is InvalidParams")
	ruleChallenge     = rule("webhook-challenge", must, inSecurity, "an endpoint is verified before anything is delivered")
	ruleChallengeFail = rule("webhook-challenge-failed", must, inSecurity, "an endpoint that does not echo fails as CallbackEndpointError, challenge_failed")
	ruleUnreachable   = rule("webhook-endpoint-error", must, inSecurity, "an endpoint that fails is CallbackEndpointError with a category, and nothing that it said")
	ruleEnvelope      = rule("webhook-envelope", must, inBodies, "a challenge is signed, and its webhook-id is msg_verification_…")
	ruleTTL           = rule("webhook-ttl", should, inTTL, "a grant is not longer than what was asked for")
	ruleTTLNull       = rule("webhook-ttl-null", must, inTTL, "refreshBefore is null only for who asks for ttlMs null")
	ruleExpiry        = rule("webhook-expiry", must, inTTL, "nothing is delivered after refreshBefore")
	ruleSameKey       = rule("webhook-key", must, inIdentity, "the same principal, url, name and arguments are the same subscription")
	ruleOtherKey      = rule("webhook-key-url", must, inIdentity, "another url is another subscription")
	ruleDelivery      = rule("webhook-delivery", must, inDelivery, "an event is POSTed, as JSON")
	ruleHeaders       = rule("webhook-headers", must, inSecurity, "every delivery has the headers of Standard Webhooks and X-MCP-Subscription-Id")
	ruleSignature     = rule("webhook-signature", must, inSecurity, "every delivery is signed with the client's secret, with the time of the attempt")
	ruleWebhookID     = rule("webhook-id", should, inSecurity, "webhook-id is the eventId, or in the final profile an id of the message, msg_…")
	ruleSize          = rule("webhook-size", should, inSecurity, "a delivery is at most 256 KiB")
	ruleReplay        = rule("webhook-replay", should, inSubscribe, "a new subscription with a cursor gets what came after it")
	ruleRetry         = rule("webhook-retry", must, inDelivery, "a delivery that failed is tried again, with a new timestamp and signature")
	ruleGone          = rule("webhook-410", must, inDelivery, "410 is not tried again")
	ruleTooLarge      = rule("webhook-413", must, inSecurity, "413 is not tried again")
	ruleRedirect      = rule("webhook-redirect", must, inSecurity, "redirects are not followed")
	ruleStatus        = rule("webhook-status", must, inDelivery, "lastError of deliveryStatus is a category")
	ruleRotation      = rule("webhook-rotation", must, inIdentity, "a new secret at a refresh signs what comes after it")
	ruleDual          = rule("webhook-dual", should, inSecurity, "for a while the old secret signs, too")
	ruleUnsubscribe   = rule("webhook-unsubscribe", must, inUnsubscribe, "events/unsubscribe stops deliveries")
	ruleUnsubUnknown  = rule("webhook-unsubscribe-unknown", should, inErrors, "events/unsubscribe of an unknown subscription is NotFound, or in the released profile an empty result")

	ruleTerminated = rule("terminated", must, inTermination, "a subscription that loses its access or its event type is ended with a signal")
)

// codes are the numbers of the named errors in the final and in the released profile.
var codes = map[string][]int{
	"InvalidParams":         {-32602},
	"NotFound":              {-32023, -32011},
	"Forbidden":             {-32024, -32012},
	"Unsupported":           {-32026, -32014},
	"CallbackEndpointError": {-32027, -32015},
}

// refused judges an answer that must be an error of a name.
func (r *results) refused(rule *Rule, a *answer, name, what string) {
	if i := slices.Index(codes[name], a.code()); i >= 0 {
		r.pass(rule)
		if len(codes[name]) > 1 {
			r.shows([]spec.Profile{spec.Final, spec.Released}[i], "error numbers")
		}
		return
	}
	r.fail(rule, "%s is answered with %s, not with %s (%d)", what, a, name, codes[name][0])
}

// categories are those of lastError and of data.reason.
var categories = []string{"connection_refused", "timeout", "tls_error", "http_4xx", "http_5xx", "challenge_failed"}

// occurrence is an event as all modes show it.
type occurrence struct {
	EventID   string          `json:"eventId"`
	Name      string          `json:"name"`
	Timestamp string          `json:"timestamp"`
	Data      json.RawMessage `json:"data"`
	Cursor    *string         `json:"cursor"`
}

// event judges an event of a type, and returns its id.
func (r *results) event(raw json.RawMessage, t eventType, mode string) occurrence {
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

// compile reads a schema, which may be absent: anything fits. Nothing is fetched for it.
func compile(raw json.RawMessage) (*jsonschema.Schema, error) {
	if len(raw) == 0 {
		raw = json.RawMessage("true")
	} else if !isObject(raw) && string(raw) != "true" {
		return nil, fmt.Errorf("%s is no schema of an object", clip(raw))
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

// clip is what is shown of what a server sent.
func clip(raw []byte) string {
	const most = 200
	if len(raw) > most {
		return fmt.Sprintf("%q…", raw[:most])
	}
	return fmt.Sprintf("%q", raw)
}
