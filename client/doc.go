// Package client has what a program needs to publish events and to receive those of an MCP server: a
// [Client] for the protocol, and the ways to receive.
//
//	[Registration]        a webhook for event URIs (SEP-1803)
//	[EventsSubscription]  a webhook for an event type (SEP-3415), refreshed in time
//	[Stream]              an open stream of URIs, resumed after a disconnect
//	[Follower]            an event type without a webhook, by polls or an open stream
//
// A [Publisher] sends events; that needs no MCP. [Hold] keeps a webhook subscription alive as long as a
// program runs, and [Server.Consent] says who gets what is said in conversations.
//
// A [Receiver] is the endpoint of webhooks: it answers challenges and verifies signatures. Whatever
// the way, what arrives is an [Event]. The commands publish, listen,
// consent and demo are callers of this package.
//
// Errors have the kinds of package fault; those that [Again] reports may be tried again.
package client
