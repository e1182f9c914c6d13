// Package api has the types that the MCP endpoint and the gateway exchange: clients, backends, calls, subscriptions and notifications.
package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Client describes the MCP client that sends a request, and the principal for which the client acts.
type Client struct {
	Principal auth.Principal
	Session   string // empty in revision 2026-07-28, which has no sessions
	Version   spec.Version
	// Capabilities and Info are the client's capabilities and its name and version, in the JSON that the client sent.
	Capabilities, Info json.RawMessage
	// Level is the lowest severity of log messages that the session asked for, or empty if it asked for none.
	Level string
	// Token is the client's Authorization header, for backends that receive the caller's token.
	Token string
}

// Capabilities describes what a backend, or all backends of a principal together, can do.
type Capabilities struct {
	Tools, Prompts, Resources, Completions, Logging bool
	// ToolsChanged, PromptsChanged and ResourcesChanged are true if the backend notifies clients when the list of this kind changes.
	// Subscribe is true if clients can subscribe to updates of single resources.
	ToolsChanged, PromptsChanged, ResourcesChanged, Subscribe bool
	// Events is true if the backend has event types, and EventsChanged if it notifies clients when they change.
	Events, EventsChanged bool
	// UserMessages and AssistantResponses are true if the backend wants these messages of conversations.
	UserMessages, AssistantResponses bool
	Tasks                            bool // the backend declares the tasks extension (2026-07-28)
	// Instructions tell a model how to use the backend. For several backends, they say which part is about which backend.
	Instructions string
	// Extensions has the settings of the extensions that the backend declares, by identifier, except the extensions of the gateway itself.
	Extensions map[string]json.RawMessage
}

// Notifies reports whether the backend sends notifications about changes of any kind.
func (c Capabilities) Notifies() bool {
	return c.ToolsChanged || c.PromptsChanged || c.ResourcesChanged || c.Subscribe || c.EventsChanged
}

// Has reports whether the backend has lists of a kind.
func (c Capabilities) Has(kind Kind) bool {
	switch kind {
	case Tools:
		return c.Tools
	case Prompts:
		return c.Prompts
	case Events:
		return c.Events
	}
	return c.Resources
}

// Call is a request of a client to a backend.
type Call struct {
	Client
	Kind Kind
	// Name is the name or URI of the tool, prompt or resource as the client knows it, i.e. with the backend's prefix. Member is
	// the member of Params that contains the name, e.g. "name" or "uri".
	Name, Member string
	Method       string
	ID, Params   json.RawMessage
	Header       http.Header // repeats parts of the request in 2026-07-28, e.g. Mcp-Name
	// ResponseOnly is set if the client does not accept an event stream, so that a backend cannot ask it anything within the call.
	ResponseOnly bool
	// Send sends a message to the client. response is true for the last message. Send fails if the client has disconnected.
	Send func(message json.RawMessage, response bool) error
	// Answered, if set, is called as soon as the client has the backend's response or question. So the endpoint can end its
	// response before the gateway has recorded the call.
	Answered func()
}

// Task is a backend's task in its current state.
type Task struct {
	Backend string // the backend's name
	// Params are the params of a notifications/tasks message with the task's state. They have the task id that the client knows.
	Params json.RawMessage
}

// Place identifies a backend by its workspace and name, because two workspaces may have backends with the same name.
type Place struct{ Workspace, Backend string }

// String formats the place for keys of the store. It is unambiguous because the parts do not contain a '#'.
func (p Place) String() string { return p.Workspace + "#" + p.Backend }

// Subscription is a subscription of a session or stream to a backend's resource. While a resource has at least one Subscription, package
// relay is subscribed to the resource at the backend.
type Subscription struct {
	Place
	URI string
	// Principal is the owner of the session or stream. The subscription counts against this principal's quota.
	Principal string
	// Holder identifies the session or stream. Until is when the subscription expires.
	Holder string
	Until  time.Time
}

// Covers reports whether the subscribers of one resource also receive the updates of another one. This is so if the two URIs are
// equal, or if the second one is below the first. For example, file:///dir covers file:///dir/a.txt, and x://1 covers x://1?page=2.
//
// According to the schema, an updated resource "might be a sub-resource of the one that the client actually subscribed to". Only
// the server knows its sub-resources, so Covers assumes that they are the resources whose URIs are below the subscribed one.
func Covers(subscribed, uri string) bool {
	rest, ok := strings.CutPrefix(uri, subscribed)
	return ok && subscribed != "" && (rest == "" || strings.HasSuffix(subscribed, "/") || strings.ContainsRune("/?#", rune(rest[0])))
}

// Notice is a notification from a backend. Package relay writes it to the event log, from which the streams of all clients read it.
type Notice struct {
	Method string          `json:"m"`
	Params json.RawMessage `json:"p,omitempty"`
}

// ReadNotice decodes a [Notice]. It does not use encoding/json, which is slower, because each stream decodes each notice.
func ReadNotice(encoded []byte) Notice {
	method, _ := jsonrpc.String(jsonrpc.Member(encoded, "m"))
	return Notice{method, jsonrpc.Member(encoded, "p")}
}

// Reasons why a message of a conversation failed.
var (
	// ErrIncapable means that the backend did not declare that it wants messages of conversations.
	ErrIncapable = errors.New("gateway: the backend does not ask for messages of conversations")
	// ErrRefused means that the backend answered the message with an error.
	ErrRefused = errors.New("gateway: the backend refused a message of a conversation")
	// ErrNoSession means that the backend's capabilities are not known, or that the client's session with it could not begin.
	ErrNoSession = errors.New("gateway: the client has no session with the backend")
)
