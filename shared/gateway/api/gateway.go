package api

import (
	"context"
	"encoding/json"

	"github.com/mcp-events/mcpevents/shared/auth"
)

// Gateway reaches the backends; that of shared/gateway does.
type Gateway interface {
	// Any reports whether there are backends at all, which may change at any time.
	Any(ctx context.Context) bool

	// What backends have and serve.

	Capabilities(ctx context.Context, c Client) Capabilities
	List(ctx context.Context, c Client, kind Kind) *List
	Has(ctx context.Context, c Client, kind Kind, name string) bool

	// What a client sends: requests, and within its session answers and notifications.

	Call(ctx context.Context, c Call) error
	Answer(ctx context.Context, c Client, id string, body json.RawMessage) error
	Progress(ctx context.Context, c Client, body json.RawMessage) error
	Cancel(ctx context.Context, c Client, body json.RawMessage) error
	Notify(ctx context.Context, c Client, body json.RawMessage) error
	SetLevel(ctx context.Context, c Client) error
	End(ctx context.Context, c Client) error

	// Resources that are followed for clients.

	// Backends names those that a principal may use, Subscribable the one that serves a URI
	// and notifies of its changes.
	Backends(ctx context.Context, p auth.Principal) []string
	Subscribable(ctx context.Context, p auth.Principal, uri string) (backend string, ok bool)
	Subscribe(ctx context.Context, s Subscription) error
	Unsubscribe(ctx context.Context, s Subscription) error
}

// None stands for the one of [Options] where there is none: an endpoint without backends is what it is without a
// gateway.
type None struct{ Gateway }

func (None) Any(context.Context) bool { return false }
