package catalog

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"slices"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// The parts of an event type that a subscriber relies on, as SEP-3415 names
// them in the error that ends a subscription.
const (
	FeatureInput   = "inputSchema"
	FeaturePayload = "payloadSchema"
)

// Broken names the part of an event type that changed so that what a subscription was
// made for no longer holds, by the rules of [Diff]; "" if nothing did but additions.
// Delivery modes and access are not of it: they are looked at by themselves. An entry
// of [ParseContract] will do for either.
func Broken(before, after *Entry) (feature string) {
	var input, payload differ
	if before.Pattern() != after.Pattern() {
		return FeatureInput
	}
	input.filters(before.Filters, after.Filters)
	input.schema("params", before.ParamsSchema, after.ParamsSchema)
	payload.schema("payload", before.PayloadSchema, after.PayloadSchema)
	payload.redact(before.Redact, after.Redact, len(before.Redact) > 0)
	switch {
	case input.breaks(), len(before.Redact) > 0 && len(after.Redact) == 0: // the argument is gone
		return FeatureInput
	case payload.breaks():
		return FeaturePayload
	}
	return ""
}

// Ends lists the event types whose webhook subscriptions a changed catalog ends, all of them or
// those of some principals, and why. Either catalog may be nil.
func Ends(before, after *Catalog) []Change {
	var d differ
	for _, old := range before.Entries() {
		d.name = old.Name
		e := after.ByName(old.Name)
		switch {
		case !old.WebhookAllowed():
		case e == nil:
			d.add(true, "it is removed")
		case Broken(old, e) != "":
			d.add(true, "its %s changes incompatibly", Broken(old, e))
		case !e.WebhookAllowed():
			d.add(true, "it is not delivered by webhook any more")
		default:
			access := differ{}
			if access.access(old.Access, e.Access); access.breaks() {
				d.add(true, "its access needs more, which not every subscriber may have")
			}
		}
	}
	return d.changes
}

func (d *differ) breaks() bool {
	return slices.ContainsFunc(d.changes, func(c Change) bool { return c.Breaking })
}

// contract is the text of what [Broken] compares.
type contract struct {
	URI         string            `json:"uri,omitempty"`
	URITemplate string            `json:"uriTemplate,omitempty"`
	Filters     map[string]string `json:"filters,omitempty"`
	Redact      []string          `json:"redact,omitempty"`
	Params      json.RawMessage   `json:"params,omitempty"`
	Payload     json.RawMessage   `json:"payload,omitempty"`
}

// Contract is what [Broken] looks at as a text, to be kept with what relies on it;
// [ParseContract] reads it. It is at most a little larger than two schemas ([MaxSchema]).
func (e *Entry) Contract() []byte {
	text, _ := json.Marshal(contract{e.URI, e.URITemplate, e.Filters, e.Redact, e.ParamsSchema, e.PayloadSchema}) // JSON that was compiled
	return text
}

// ContractID identifies [Entry.Contract]: equal ones have equal ids of 22 characters.
func (e *Entry) ContractID() string { return e.contractID() }

// Terms identify, for each event type by its name, all that decides whether a webhook
// subscription to it may go on: its contract, its access rule, and whether it is delivered
// by webhook.
func (c *Catalog) Terms() map[string]string {
	out := make(map[string]string, len(c.entries))
	for _, e := range c.entries {
		out[e.Name] = e.terms()
	}
	return out
}

func (e *Entry) terms() string {
	text, _ := json.Marshal(struct {
		Contract string
		Webhook  bool
		Access   *Access
	}{e.ContractID(), e.WebhookAllowed(), e.Access}) // texts
	return digest(text)
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

// ParseContract makes an entry of a contract's text that is good for [Broken] alone.
func ParseContract(text []byte) (*Entry, error) {
	var c contract
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, fault.Wrap(fault.Internal, err, "decode a contract")
	}
	return &Entry{
		URI: c.URI, URITemplate: c.URITemplate, Filters: c.Filters, Redact: c.Redact,
		ParamsSchema: c.Params, PayloadSchema: c.Payload,
	}, nil
}
