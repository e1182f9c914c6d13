package catalog

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"slices"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// The parts of an event type that subscribers rely on. SEP-3415 uses these names in the error that ends a subscription.
const (
	FeatureInput   = "inputSchema"
	FeaturePayload = "payloadSchema"
)

// Broken returns the part of an event type that changed incompatibly for existing subscriptions, by the rules of [Diff]. It returns ""
// if there are only additions. It ignores delivery modes and access, which callers check separately, and therefore also accepts entries
// from [ParseContract].
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
	case input.breaks(), len(before.Redact) > 0 && len(after.Redact) == 0: // the argument "redact" no longer exists
		return FeatureInput
	case payload.breaks():
		return FeaturePayload
	}
	return ""
}

// Ends returns the event types for which a changed catalog ends webhook subscriptions, with the reason. Either catalog may be nil.
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

// contract has the parts of an event type that [Broken] compares.
type contract struct {
	URI         string            `json:"uri,omitempty"`
	URITemplate string            `json:"uriTemplate,omitempty"`
	Filters     map[string]string `json:"filters,omitempty"`
	Redact      []string          `json:"redact,omitempty"`
	Params      json.RawMessage   `json:"params,omitempty"`
	Payload     json.RawMessage   `json:"payload,omitempty"`
}

// Contract returns the contract of the event type: the parts that [Broken] compares, as JSON. It is stored with a subscription, so that
// a later catalog can be compared with the event type to which the client subscribed. Most of it are the schemas, so it is a little
// larger than twice [MaxSchema] at most.
func (e *Entry) Contract() []byte {
	text, _ := json.Marshal(contract{e.URI, e.URITemplate, e.Filters, e.Redact, e.ParamsSchema, e.PayloadSchema}) // the schemas are valid JSON
	return text
}

// ContractID returns a hash of [Entry.Contract] with 22 characters.
func (e *Entry) ContractID() string { return e.contractID() }

// Terms returns a hash for each event type, by name. It covers everything that decides whether a webhook subscription may continue: the
// contract, the access rule, and whether webhooks are a delivery mode. Subscriptions are only rechecked if it changes.
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
	}{e.ContractID(), e.WebhookAllowed(), e.Access}) // strings always marshal
	return digest(text)
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

// ParseContract returns an entry for a stored contract. It can only be used with [Broken].
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
