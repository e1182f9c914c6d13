package mcp

import (
	"context"
	"encoding/json"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/mcp/events"
	"github.com/mcp-events/mcpevents/shared/mcp/streams"
)

// Gateway gives clients access to the backends. Package gateway implements it.
type Gateway interface {
	streams.Backends
	events.Backends
	// Has reports whether one of the client's backends has the tool, prompt, resource or template, even if the client lacks a
	// scope for it. In that case, Call returns an error that names the scope. For [api.Extensions], Has reports whether the
	// name is a method of an extension that at least one backend declares.
	Has(ctx context.Context, c api.Client, kind api.Kind, name string) bool
	// Call sends a request to the backend that has the tool, prompt or other item that the request names. If Call returns an error, the
	// client has no response yet.
	Call(ctx context.Context, c api.Call) error
	// Answer sends a client's response to a backend's request, for example to an elicitation. The parameter id is the id under which the
	// client received the request.
	Answer(ctx context.Context, c api.Client, id string, body json.RawMessage) error
	// Progress, Cancel and Notify forward a notification of the client's session to the backends that the notification concerns.
	Progress(ctx context.Context, c api.Client, body json.RawMessage) error
	Cancel(ctx context.Context, c api.Client, body json.RawMessage) error
	Notify(ctx context.Context, c api.Client, body json.RawMessage) error
	// NotifyExtension forwards a client's notification to the backend that declares the notification's extension. It drops notifications
	// of extensions that no backend declares.
	NotifyExtension(ctx context.Context, c api.Client, method string, params json.RawMessage) error
	// SetLevel sends the client's log level to all backends with which the client has a session.
	SetLevel(ctx context.Context, c api.Client) error
	// End cancels the running calls of the client's session. It also ends the sessions that the gateway opened at backends for the
	// client's session.
	End(ctx context.Context, c api.Client) error
}

// noBackends is the [Gateway] of an endpoint without backends. It implements Subscribe and Unsubscribe because a stored session may still
// have subscriptions at backends that the server had before. The endpoint calls the other methods only if Any returns true, so noBackends
// does not implement them.
type noBackends struct{ Gateway }

func (noBackends) Any(context.Context) bool                            { return false }
func (noBackends) Backends(context.Context, auth.Principal) []string   { return nil }
func (noBackends) Subscribe(context.Context, api.Subscription) error   { return nil }
func (noBackends) Unsubscribe(context.Context, api.Subscription) error { return nil }
