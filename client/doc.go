// Package client subscribes a Go program to events and publishes events. It subscribes to the event types of any server that supports MCP
// Events (SEP-3415), and to the URIs of any MCP server that sends resource updates or webhooks (SEP-1803) for them.
//
//	c, err := client.Connect(ctx, "https://events.example.com/mcp", client.Options{Key: key, Store: client.Dir("cursors")})
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//	sub, err := c.Subscribe(ctx, client.SubscribeOptions{
//		Name:      "order.shipped",
//		Arguments: map[string]any{"carrier": "DHL"},
//		Event:     func(ctx context.Context, e client.Event) error { return ship(ctx, e.ID, e.Data) },
//	})
//	if err != nil {
//		return err
//	}
//	<-sub.Done()
//	return sub.Err()
//
// # Receiving events
//
// [Connect] negotiates a revision of MCP with the server. [Client.Subscribe] subscribes to an event type, or to the URIs of events,
// and returns a [Subscription] as soon as the server has accepted it. [Subscription.Close] ends it.
//
// Events arrive in one of three modes. Unless you choose one, Subscribe uses a webhook if [Options] has a [Handler], otherwise an
// open stream, otherwise polls. In every mode:
//
//   - Your function acknowledges an event by returning nil. Only then does the client save the event's cursor in the [Store], so
//     that a restarted program continues after the last acknowledged event.
//   - An event arrives at least once. The client drops the repetitions that it recognizes, but after a crash some events arrive
//     again. Make effects idempotent by [Event.ID] and [Event.URI].
//   - The client reconnects after interruptions and restarts of the server, with growing pauses.
//   - Lost events are reported as a [Gap]. If the server ends the subscription, its error is a [Terminated].
//
// A server that has no cursors loses the events that occur while the client is not connected.
//
// # Webhooks
//
// A [Handler] is an [net/http.Handler] that your program serves at a public URL. It verifies signatures, answers the server's
// challenge, and creates and rotates the secrets.
//
// # Publishing events
//
// A [Publisher] publishes events with POST /events. It needs no [Client].
//
// # Errors
//
// Test for the errors of this package with [errors.Is], for example errors.Is(err, client.ErrForbidden). [Retryable] reports whether
// the same call may succeed later.
package client

// This overview for maintainers lists the files from the outside in:
//
//	client.go     Connect, sessions, Call, the list of event types, one JSON-RPC request and its answer
//	subscribe.go  Subscribe and its options, the choice of the mode
//	flow.go       calls the program's function for each event, acknowledges events, decides which cursor to save
//	inband.go     polls and streams of event types
//	webhook.go    webhook subscriptions of event types, and their refresh
//	uris.go       webhooks (SEP-1803) and streams of URIs
//	handler.go    the HTTP handler that receives webhooks
//	cursor.go     saves cursors in the background
//	store.go      where cursors are kept
//	publish.go    the publisher, which shares only the errors with the other files
//
// Single HTTP requests are sent by shared/protocol/httpcall. The folders below are commands of mcpevents that use this package: listen
// prints events, run runs a command for each event, tools serves events as MCP tools, and check tests another server.
