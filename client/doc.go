// Package client receives the events of an MCP server in a Go program, and publishes events.
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
// # Receiving
//
// [Connect] negotiates a revision of MCP with the server. [Client.Subscribe] subscribes to an event type (MCP Events,
// SEP-3415) or to the URIs of events, and returns a [Subscription] as soon as the server has accepted it. It chooses the
// mode: a webhook if [Options] has a [Handler], otherwise an open stream, otherwise polls. In every mode:
//
//   - The function for events acknowledges an event by returning nil. Only then does the cursor in the [Store] move, so
//     a program that is killed continues after the last acknowledged event.
//   - An event arrives at least once. The client drops repetitions that it remembers. After a kill some events arrive
//     again, so make effects idempotent by [Event.ID] and [Event.URI].
//   - The client reconnects after interruptions and restarts of the server, with growing pauses.
//   - Lost events are reported as a [Gap]. A subscription that the server ends has the error [Terminated].
//
// This works with all servers of MCP Events. Servers without cursors lose events while the client is not connected.
//
// # Webhooks
//
// A [Handler] is an [net/http.Handler] that the program serves at a public URL. It verifies signatures, answers the
// server's challenge, and creates and rotates the secrets.
//
// # Publishing
//
// A [Publisher] publishes over HTTP and needs no MCP client.
//
// # Errors
//
// Use [errors.Is] with the errors of this package, for example [ErrForbidden]. [Retryable] reports whether the same call
// may succeed later.
package client
