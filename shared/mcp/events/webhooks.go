package events

import (
	"context"
	"encoding/json"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// registration is the member "subscription" of the answer to resources/subscriptions/register (SEP-1803).
type registration struct {
	URI           string        `json:"uri"`
	EventURIs     []string      `json:"eventUris"`
	TargetURI     string        `json:"targetUri"`
	WebhookSecret webhookSecret `json:"webhookSecret"`
}

// webhookSecret is SEP-1803's WebhookSecret. A Standard Webhooks secret is in Key, and a raw secret is in Value. Both are empty
// if there is no secret.
type webhookSecret struct {
	Type  subscription.SecretType `json:"type"`
	Key   string                  `json:"key,omitempty"`
	Value string                  `json:"value,omitempty"`
}

// Webhooks serves the methods that make and end webhook subscriptions.
type Webhooks struct {
	Registrar   Registrar
	Deregistrar Deregistrar
	Anonymous   bool // set in development: the anonymous principal of --auth none may use events/subscribe
}

// Register serves resources/subscriptions/register.
func (h *Webhooks) Register(ctx context.Context, c *method.Call) (method.Result, error) {
	var r subscription.RegisterRequest
	raw := c.Param("uris")
	if raw == nil || json.Unmarshal(raw, &r.URIs) != nil {
		return method.Result{}, method.InvalidParams("uris must be an array of strings")
	}
	var err error
	if r.Target, err = c.RequiredString("targetUri"); err != nil {
		return method.Result{}, err
	}
	if key := jsonrpc.Member(c.Meta, spec.MetaIdempotency); key != nil {
		var ok bool
		if r.IdempotencyKey, ok = jsonrpc.String(key); !ok || r.IdempotencyKey == "" {
			return method.Result{}, method.InvalidParams("%s must be a string", spec.MetaIdempotency)
		}
	}
	made, err := h.Registrar.Register(ctx, c.Principal, r)
	if err != nil {
		return method.Result{}, err
	}
	secret := webhookSecret{Type: made.SecretType}
	switch made.SecretType {
	case subscription.Standard:
		secret.Key = made.Secret
	case subscription.Raw:
		secret.Value = made.Secret
	}
	text := jsonrpc.Encode(registration{
		URI: subscription.URI(made.Subscription.ID), EventURIs: made.Subscription.EventURIs,
		TargetURI: made.Subscription.Target.URL, WebhookSecret: secret,
	})
	return method.Result{Members: [][]byte{[]byte(`"subscription":`), text}}, nil
}

// Deregister serves resources/subscriptions/deregister. It gives the same answer for unknown URIs, malformed URIs, and URIs of other
// principals.
func (h *Webhooks) Deregister(ctx context.Context, c *method.Call) (method.Result, error) {
	uri, err := c.RequiredString("uri")
	if err != nil {
		return method.Result{}, err
	}
	err = h.Deregistrar.Deregister(ctx, c.Principal, uri)
	if fault.Is(err, fault.NotFound) {
		err = method.NotFound(uri)
	}
	return method.Result{}, err
}

func readDelivery(c *method.Call) (url, secret string, err error) {
	raw := c.Param("delivery")
	if len(raw) == 0 || raw[0] != '{' {
		return "", "", method.InvalidParams("delivery must be an object")
	}
	text := map[string]string{}
	if c.Msg.Method == spec.MethodEventsUnsub {
		text["mode"] = spec.ModeWebhook // optional there, because only webhook subscriptions can be ended by a request
	}
	for _, name := range []string{"url", "secret", "mode"} {
		if v := jsonrpc.Member(raw, name); v != nil {
			var ok bool
			if text[name], ok = jsonrpc.String(v); !ok {
				return "", "", method.InvalidParams("delivery.%s must be a string", name)
			}
		}
	}
	switch {
	case text["url"] == "":
		return "", "", method.InvalidParams("delivery.url is missing")
	case text["mode"] == "":
		return "", "", method.InvalidParams(`delivery.mode is missing; it must be "%s"`, spec.ModeWebhook)
	case text["mode"] != spec.ModeWebhook:
		return "", "", fault.New(fault.Unsupported, "events/subscribe delivers by webhook only").
			With(map[string]any{"feature": "deliveryMode", "value": method.Clip(text["mode"])})
	}
	return text["url"], text["secret"], nil
}

type subscribedEvents struct {
	ID            string  `json:"id"`
	RefreshBefore *string `json:"refreshBefore"`
	Cursor        *string `json:"cursor"`
	Truncated     bool    `json:"truncated"`
	// DeliveryStatus is set if an existing subscription was refreshed.
	DeliveryStatus *deliveryStatus `json:"deliveryStatus,omitempty"`
}

// EventsSubscribe serves events/subscribe (SEP-3415).
func (h *Webhooks) EventsSubscribe(ctx context.Context, c *method.Call) (method.Result, error) {
	r, err := h.readParams(c)
	if err != nil {
		return method.Result{}, err
	}
	if r.Secret == "" {
		return method.Result{}, method.InvalidParams("delivery.secret is missing")
	}
	if r.Cursor, _, err = c.OptionalString("cursor"); err != nil {
		return method.Result{}, err
	}
	if r.MaxAge, err = readMaxAge(c); err != nil {
		return method.Result{}, err
	}
	if r.TTL, err = readTTL(c); err != nil {
		return method.Result{}, err
	}
	if plain := jsonrpc.Member(c.Meta, spec.MetaPlain); plain != nil {
		if err := json.Unmarshal(plain, &r.Plain); err != nil {
			return method.Result{}, method.InvalidParams("%s must be a boolean", spec.MetaPlain)
		}
	}
	r.Profile = c.Profile
	made, err := h.Registrar.Subscribe(c.WithToken(ctx), c.Principal, r)
	if err != nil {
		return method.Result{}, err
	}
	out := subscribedEvents{ID: made.ID, Truncated: made.Truncated}
	if !made.RefreshBefore.IsZero() {
		until := made.RefreshBefore.UTC().Format(time.RFC3339)
		out.RefreshBefore = &until
	}
	if made.Cursor != "" {
		out.Cursor = &made.Cursor
	}
	if made.Refreshed {
		out.DeliveryStatus = newDeliveryStatus(!made.Resumed, made.Status)
	}
	return method.Result{Members: [][]byte{method.WithoutBraces(jsonrpc.Encode(out))}}, nil
}

// EventsUnsubscribe serves events/unsubscribe (SEP-3415).
func (h *Webhooks) EventsUnsubscribe(ctx context.Context, c *method.Call) (method.Result, error) {
	r, err := h.readParams(c)
	if err != nil {
		return method.Result{}, err
	}
	err = h.Deregistrar.Unsubscribe(ctx, c.Principal, r.Name, r.Arguments, r.URL)
	if c.Profile == spec.Released && fault.Is(err, fault.NotFound) {
		err = nil // released clients expect success for an unknown subscription
	}
	return method.Result{}, err
}

// readParams reads the params that events/subscribe and events/unsubscribe share. It refuses callers without authentication: they are
// all the same principal, so each of them could end or take over the subscription of another one by guessing its parameters.
func (h *Webhooks) readParams(c *method.Call) (r subscription.SubscribeRequest, err error) {
	if c.Principal.Anonymous && !h.Anonymous {
		return r, subscription.NeedsPrincipal()
	}
	if r.Name, err = c.RequiredString("name"); err != nil {
		return r, err
	}
	if r.Arguments, err = c.Arguments(); err != nil {
		return r, err
	}
	r.URL, r.Secret, err = readDelivery(c)
	return r, err
}

// readTTL reads the param ttlMs, which is the lifetime that a client asks for. Without ttlMs, the subscription gets the default lifetime.
// With null, the client asks for a subscription that does not expire.
func readTTL(c *method.Call) (subscription.TTL, error) {
	for key, value := range jsonrpc.Members(c.Msg.Params) {
		if string(key) == "ttlMs" && string(value) == "null" {
			return subscription.TTL{Asked: true, Forever: true}, nil
		}
	}
	d, given, err := c.Milliseconds("ttlMs")
	return subscription.TTL{Asked: given, For: d}, err
}

// readMaxAge returns the parameter maxAgeMs of a call, which is the maximum age of past events that the client wants to receive. It
// returns 0 if the client sets no limit.
func readMaxAge(c *method.Call) (time.Duration, error) {
	d, given, err := c.Milliseconds("maxAgeMs")
	if given && d == 0 {
		d = 1 // a limit of 0 ms excludes all past events; return the shortest limit, because 0 would mean no limit
	}
	return d, err
}

// Registrar makes webhook subscriptions.
type Registrar interface {
	Register(ctx context.Context, p auth.Principal, r subscription.RegisterRequest) (*subscription.Registered, error)
	Subscribe(ctx context.Context, p auth.Principal, r subscription.SubscribeRequest) (*subscription.SubscribeResult, error)
}

// Deregistrar ends webhook subscriptions.
type Deregistrar interface {
	Deregister(ctx context.Context, p auth.Principal, uri string) error
	Unsubscribe(ctx context.Context, p auth.Principal, name string, arguments json.RawMessage, url string) error
}
