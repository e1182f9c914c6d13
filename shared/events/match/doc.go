// Package match decides which events a subscription receives.
//
// A client names events by URI (SEP-1803) or by the name of an event type with arguments (MCP Events). [Resolve] and [Select] turn
// either into a [Pattern]: a concrete URI, a template with open variables, or a parent. An event is looked up by the keys that
// it can have ([KeyUnder]), one per [Shape] that is in use, so its cost does not grow with the number of patterns. What the pattern lets
// through, a [Filter] can narrow by the event's payload.
//
// The package stores nothing. Continue in shared/events/subscription, which keeps subscriptions under their patterns.
package match
