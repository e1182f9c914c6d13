package api

import (
	"context"
	"encoding/json"

	"github.com/mcp-events/mcpevents/shared/auth"
)

// Gateway gives clients access to the backends. Package gateway implements it.
type Gateway interface {
	// Any reports whether there are backends. The answer may change at any time.
	Any(ctx context.Context) bool
	// Backends returns the names of the backends that the principal may use.
	Backends(ctx context.Context, p auth.Principal) []string
	// Capabilities returns the union of the capabilities of the client's backends.
	Capabilities(ctx context.Context, c Client) Capabilities
	// StartCommands starts those of the client's backends that are commands and have not run yet, so that their event types become known.
	StartCommands(ctx context.Context, c Client)
	// List returns the combined list of the client's backends.
	List(ctx context.Context, c Client, kind Kind) *List
	// Has reports whether one of the client's backends has the tool, prompt, resource or template, even if the client lacks a scope for
	// it. A call then returns an error that names the scope. For [Extensions], Has reports whether the name is a method of an extension
	// that a backend declares, even if several do.
	Has(ctx context.Context, c Client, kind Kind, name string) bool

	// Call sends a request to the backend that serves the name. If Call returns an error, the client has no response yet.
	Call(ctx context.Context, c Call) error
	// Answer sends the client's answer to the backend that asked under the id.
	Answer(ctx context.Context, c Client, id string, body json.RawMessage) error
	// Progress, Cancel and Notify forward notifications of the client's session to the backends that they concern.
	Progress(ctx context.Context, c Client, body json.RawMessage) error
	Cancel(ctx context.Context, c Client, body json.RawMessage) error
	Notify(ctx context.Context, c Client, body json.RawMessage) error
	// NotifyExtension forwards a notification of an extension to the backend that declares the extension. It drops other notifications.
	NotifyExtension(ctx context.Context, c Client, method string, params json.RawMessage) error
	// SetLevel sets the client's log level at the backends with which it has a session.
	SetLevel(ctx context.Context, c Client) error
	// End ends the client's sessions with backends.
	End(ctx context.Context, c Client) error

	// WatchTasks sends the states of tasks until ctx ends. It returns the ids of the tasks of which the backends notify, and closes the
	// channel after the last state. It returns an error if the client does not declare the tasks extension.
	WatchTasks(ctx context.Context, c Client, ids []string) (watched []string, states <-chan *Task, err error)

	// Subscribable returns the backend that serves a resource and notifies of its changes, if there is one. The error is of kind
	// fault.Forbidden if the principal lacks a scope for the resource.
	Subscribable(ctx context.Context, p auth.Principal, uri string) (backend string, ok bool, err error)
	// Permits reports whether the rules of a backend, which the principal may use, allow it to receive updates of a resource.
	Permits(ctx context.Context, p auth.Principal, backend, uri string) bool
	// Subscribe records or extends a subscription, and Unsubscribe removes it.
	Subscribe(ctx context.Context, s Subscription) error
	Unsubscribe(ctx context.Context, s Subscription) error
}

// None is the [Gateway] of an endpoint that has no gateway. It has only Any, which reports that there are no backends. Callers must
// ask that, or compare the gateway to None, before they use another method, because the others panic.
type None struct{ Gateway }

func (None) Any(context.Context) bool { return false }
