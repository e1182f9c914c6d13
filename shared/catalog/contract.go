package catalog

import "slices"

// The parts of an event type that a subscriber relies on, as SEP-3415 names
// them in the error that ends a subscription.
const (
	FeatureInput   = "inputSchema"
	FeaturePayload = "payloadSchema"
)

// Broken names the part of an event type that changed so that what a subscription was
// made for no longer holds, by the rules of [Diff]; "" if nothing did but additions.
// Delivery modes and access are not of it: they are looked at by themselves.
func Broken(before, after *Entry) (feature string) {
	var input, payload differ
	if before.Pattern() != after.Pattern() {
		return FeatureInput
	}
	input.filters(before.Filters, after.Filters)
	input.schema("params", before.ParamsSchema, after.ParamsSchema)
	payload.schema("payload", before.PayloadSchema, after.PayloadSchema)
	payload.list("redacted member", before.Redact, after.Redact, len(before.Redact) > 0)
	switch {
	case input.breaks(), len(before.Redact) > 0 && len(after.Redact) == 0: // the argument is gone
		return FeatureInput
	case payload.breaks():
		return FeaturePayload
	}
	return ""
}

func (d *differ) breaks() bool {
	return slices.ContainsFunc(d.changes, func(c Change) bool { return c.Breaking })
}
