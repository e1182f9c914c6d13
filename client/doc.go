// Package client has what a program needs to receive the events of an MCP server, and to publish them.
//
//	c, err := client.Connect(ctx, "https://events.example.com/mcp", client.Options{Key: key, Store: client.Dir("cursors")})
//	…
//	err = c.Subscribe(ctx, client.Subscription{
//		Name:      "order.shipped",
//		Arguments: map[string]any{"carrier": "DHL"},
//		Event:     func(ctx context.Context, e client.Event) error { return ship(ctx, e.ID, e.Data) },
//	})
//
// # Receiving
//
// [Connect] finds out which revision of MCP a server speaks. [Client.Subscribe] receives the events of one event type
// (MCP Events, SEP-3415) until its context ends, and may be called many times at once. It chooses the mode: a webhook,
// if [Options] has a [Handler]; else an open stream; else polls. Whatever the mode, the same holds:
//
//   - Event acknowledges an event by returning nil. Only then the cursor moves in the [Store]; a program that is killed
//     goes on after the last event that it acknowledged.
//   - An event comes at least once. A repetition that is still remembered is dropped. After a kill it is not: make
//     effects idempotent by [Event.ID].
//   - Disconnects, restarts of the server, and sessions that end are handled: it is tried again at growing intervals.
//   - What was lost is a [Gap], and what the server ended a [Terminated].
//
// Works with servers that are not ours, too: those that have no cursors lose what comes while nothing is connected.
//
// # Webhooks
//
// A [Handler] is an http.Handler that the program serves at a public URL. It verifies signatures, answers the
// server's challenge, and keeps the secrets, which are new in each process and replaced while it runs.
//
// # The rest
//
// [Publisher] publishes; that needs no MCP. [Stream] and [Registration] receive by URIs instead of event types, from an
// open stream and by webhooks of SEP-1803; [Receiver] and [Hold] are for the latter. [Server.Consent] says who gets what
// is said in conversations. [Client.Call] makes any other request.
//
// Errors have the kinds of package fault; those that [Again] reports may be tried again.
package client
