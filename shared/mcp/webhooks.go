package mcp

import (
	"context"
	"encoding/json"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// registration is the subscription member of the answer to
// resources/subscriptions/register (SEP-1803).
type registration struct {
	URI           string        `json:"uri"`
	EventURIs     []string      `json:"eventUris"`
	TargetURI     string        `json:"targetUri"`
	WebhookSecret webhookSecret `json:"webhookSecret"`
}

// webhookSecret is SEP-1803's WebhookSecret: a key, a value, or neither.
type webhookSecret struct {
	Type  subscription.SecretType `json:"type"`
	Key   string                  `json:"key,omitempty"`
	Value string                  `json:"value,omitempty"`
}

// webhooks serves the methods that make and end webhook subscriptions.
type webhooks struct {
	registrar   Registrar
	deregistrar Deregistrar
	anonymous   bool // see [Options.AnonymousWebhooks]
}

// register serves resources/subscriptions/register.
func (h *webhooks) register(ctx context.Context, c *call) (result, error) {
	var r subscription.RegisterRequest
	raw := c.param("uris")
	if raw == nil || json.Unmarshal(raw, &r.URIs) != nil {
		return result{}, invalidParams("uris must be an array of strings")
	}
	var err error
	if r.Target, err = c.required("targetUri"); err != nil {
		return result{}, err
	}
	if key := jsonrpc.Member(c.meta, MetaIdempotency); key != nil {
		var ok bool
		if r.IdempotencyKey, ok = jsonrpc.String(key); !ok || r.IdempotencyKey == "" {
			return result{}, invalidParams("%s must be a string", MetaIdempotency)
		}
	}
	made, err := h.registrar.Register(ctx, c.principal, r)
	if err != nil {
		return result{}, err
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
	return result{members: [][]byte{[]byte(`"subscription":`), text}}, nil
}

// deregister serves resources/subscriptions/deregister. Unknown, malformed and
// other principals' URIs get the same answer.
func (h *webhooks) deregister(ctx context.Context, c *call) (result, error) {
	uri, err := c.required("uri")
	if err != nil {
		return result{}, err
	}
	err = h.deregistrar.Deregister(ctx, c.principal, uri)
	if fault.Is(err, fault.NotFound) {
		err = notFound(uri)
	}
	return result{}, err
}

// delivery is the delivery member of events/subscribe and events/unsubscribe.
func (c *call) delivery() (url, secret string, err error) {
	raw := c.param("delivery")
	if len(raw) == 0 || raw[0] != '{' {
		return "", "", invalidParams("delivery must be an object")
	}
	text := map[string]string{"mode": spec.ModeWebhook}
	for _, name := range []string{"url", "secret", "mode"} {
		if v := jsonrpc.Member(raw, name); v != nil {
			var ok bool
			if text[name], ok = jsonrpc.String(v); !ok {
				return "", "", invalidParams("delivery.%s must be a string", name)
			}
		}
	}
	switch {
	case text["url"] == "":
		return "", "", invalidParams("delivery.url is missing")
	case text["mode"] != spec.ModeWebhook:
		return "", "", fault.New(fault.Unsupported, "events/subscribe delivers by webhook only").
			With(map[string]any{"feature": "deliveryMode", "value": clip(text["mode"])})
	}
	return text["url"], text["secret"], nil
}

// subscribedEvents is the result of events/subscribe.
type subscribedEvents struct {
	ID            string  `json:"id"`
	RefreshBefore *string `json:"refreshBefore"`
	Cursor        *string `json:"cursor"`
	Truncated     bool    `json:"truncated"`
	// DeliveryStatus is there when an existing subscription was refreshed.
	DeliveryStatus *deliveryStatus `json:"deliveryStatus,omitempty"`
}

// eventsSubscribe serves events/subscribe (SEP-3415).
func (h *webhooks) eventsSubscribe(ctx context.Context, c *call) (result, error) {
	if err := h.known(c); err != nil {
		return result{}, err
	}
	var r subscription.SubscribeRequest
	var err error
	if r.Name, err = c.required("name"); err != nil {
		return result{}, err
	}
	if r.Arguments, err = c.arguments(); err != nil {
		return result{}, err
	}
	if r.URL, r.Secret, err = c.delivery(); err != nil {
		return result{}, err
	}
	if r.Secret == "" {
		return result{}, invalidParams("delivery.secret is missing")
	}
	if r.Cursor, _, err = c.text("cursor"); err != nil {
		return result{}, err
	}
	if r.MaxAge, err = c.maxAge(); err != nil {
		return result{}, err
	}
	if r.TTL, err = c.ttl(); err != nil {
		return result{}, err
	}
	if plain := jsonrpc.Member(c.meta, MetaPlain); plain != nil {
		if err := json.Unmarshal(plain, &r.Plain); err != nil {
			return result{}, invalidParams("%s must be a boolean", MetaPlain)
		}
	}
	r.Profile = c.profile
	made, err := h.registrar.Subscribe(ctx, c.principal, r)
	if err != nil {
		return result{}, err
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
		out.DeliveryStatus = newDeliveryStatus(!made.Suspended, made.Status)
	}
	return result{members: [][]byte{inner(jsonrpc.Encode(out))}}, nil
}

// eventsUnsubscribe serves events/unsubscribe (SEP-3415).
func (h *webhooks) eventsUnsubscribe(ctx context.Context, c *call) (result, error) {
	if err := h.known(c); err != nil {
		return result{}, err
	}
	name, err := c.required("name")
	if err != nil {
		return result{}, err
	}
	arguments, err := c.arguments()
	if err != nil {
		return result{}, err
	}
	url, _, err := c.delivery()
	if err != nil {
		return result{}, err
	}
	err = h.deregistrar.Unsubscribe(ctx, c.principal, name, arguments, url)
	if c.profile == spec.Released && fault.Is(err, fault.NotFound) {
		err = nil // as released clients expect
	}
	return result{}, err
}

// known refuses a caller who is not authenticated: such a caller could end or take
// over any subscription by guessing what it is made of.
func (h *webhooks) known(c *call) error {
	if c.principal.Anonymous && !h.anonymous {
		return fault.New(fault.Unauthenticated, "an authenticated principal is needed")
	}
	return nil
}

// ttl distinguishes an absent ttlMs, which asks for the default, from null, which asks
// for no expiry.
func (c *call) ttl() (subscription.TTL, error) {
	for key, value := range jsonrpc.Members(c.msg.Params) {
		if string(key) == "ttlMs" && string(value) == "null" {
			return subscription.TTL{Asked: true, Forever: true}, nil
		}
	}
	d, given, err := c.milliseconds("ttlMs")
	return subscription.TTL{Asked: given, For: d}, err
}

// maxAge is how old events after a cursor may be; 0 is no bound.
func (c *call) maxAge() (time.Duration, error) {
	d, given, err := c.milliseconds("maxAgeMs")
	if given && d == 0 {
		d = 1 // nothing old at all
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
