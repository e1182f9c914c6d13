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
	// Capabilities has the client's capabilities, and Info its name and version, both as the JSON that the client sent.
	Capabilities, Info json.RawMessage
	// Level is the lowest severity of log messages that the client wants in its session, or empty if the client has not set it.
	Level string
	// Token is the client's Authorization header. If a backend is configured to act for its callers, the gateway forwards or exchanges
	// the token.
	Token string
}

// Capabilities has the abilities of a backend, or of all backends of a principal together.
type Capabilities struct {
	Tools, Prompts, Resources, Completions, Logging bool
	// ToolsChanged, PromptsChanged and ResourcesChanged are true if the backend notifies clients when its list of tools, prompts or
	// resources changes. Subscribe is true if clients can subscribe to updates of single resources.
	ToolsChanged, PromptsChanged, ResourcesChanged, Subscribe bool
	// Events is true if the backend has event types, and EventsChanged if it notifies clients when its list of event types changes.
	Events, EventsChanged bool
	// UserMessages and AssistantResponses are true if the backend wants to receive a conversation's user messages or assistant responses.
	UserMessages, AssistantResponses bool
	Tasks                            bool // the backend declares the tasks extension (2026-07-28)
	// Instructions tell a model how to use the backend. If they combine several backends, they say which part is about which backend.
	Instructions string
	// Extensions has the settings of each extension that the backend declares, by the extension's identifier. It leaves out the
	// extensions that the gateway does not pass on to clients.
	Extensions map[string]json.RawMessage
}

// Notifies reports whether the backend notifies clients of any changes.
func (c Capabilities) Notifies() bool {
	return c.ToolsChanged || c.PromptsChanged || c.ResourcesChanged || c.Subscribe || c.EventsChanged
}

// Has reports whether the backend has a list of the given kind, for example a list of tools.
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
	// Name is the name or URI of the tool, prompt or resource as the client knows it, so a name includes the backend's prefix. Member is
	// the member of Params that contains Name, for example "name" or "uri".
	Name, Member string
	Method       string
	ID, Params   json.RawMessage
	Header       http.Header // repeats parts of the request in 2026-07-28, e.g. Mcp-Name
	// ResponseOnly is set if the client does not accept an event stream. Then the backend cannot ask the client anything during the call.
	ResponseOnly bool
	// Send sends a message to the client, and fails if the client has disconnected. The parameter response is true for the last message.
	Send func(message json.RawMessage, response bool) error
	// Answered, if set, is called as soon as the client has the backend's response or question. The endpoint can then end its HTTP
	// response while the gateway still records the call.
	Answered func()
}

// Task is the current state of a task that a backend runs.
type Task struct {
	Backend string // the backend's name
	// Params are the params of a notifications/tasks message that reports the state. They contain the task id that the client knows.
	Params json.RawMessage
}

// Place identifies a backend by its workspace and name, because two workspaces may have backends with the same name.
type Place struct{ Workspace, Backend string }

// String returns the place in the form that keys of the store contain. The form is unambiguous because the names do not contain '#'.
func (p Place) String() string { return p.Workspace + "#" + p.Backend }

// Subscription is a client's subscription to a resource of a backend. While a resource has at least one Subscription, package relay is
// itself subscribed to the resource at the backend.
type Subscription struct {
	Place
	URI string
	// Principal is the owner of the session or stream. The subscription counts against this principal's quota.
	Principal string
	// Holder identifies the session or stream. Until is when the subscription expires.
	Holder string
	Until  time.Time
}

// Covers reports whether a subscription to one resource (subscribed) includes the updates of another one (uri). It does if the two URIs
// are equal, or if the second one is below the first. For example, file:///dir covers file:///dir/a.txt, and x://1 covers x://1?page=2.
//
// According to the schema, an updated resource "might be a sub-resource of the one that the client actually subscribed to". Only the
// server knows its sub-resources, so Covers assumes that they are the resources whose URIs are below the subscribed one.
func Covers(subscribed, uri string) bool {
	rest, ok := strings.CutPrefix(uri, subscribed)
	return ok && subscribed != "" && (rest == "" || strings.HasSuffix(subscribed, "/") || strings.ContainsRune("/?#", rune(rest[0])))
}

// Notice is a notification from a backend. Package relay writes it to the event log, from which the streams of all clients read it.
type Notice struct {
	Method string          `json:"m"`
	Params json.RawMessage `json:"p,omitempty"`
}

// ReadNotice decodes an encoded [Notice]. It avoids encoding/json, which is slower, because each stream decodes each notice.
func ReadNotice(encoded []byte) Notice {
	method, _ := jsonrpc.String(jsonrpc.Member(encoded, "m"))
	return Notice{method, jsonrpc.Member(encoded, "p")}
}

// Reasons why a backend did not get or accept a message of a conversation.
var (
	// ErrIncapable means that the backend did not declare that it wants messages of conversations.
	ErrIncapable = errors.New("gateway: the backend does not ask for messages of conversations")
	// ErrRefused means that the backend answered the message with an error.
	ErrRefused = errors.New("gateway: the backend refused a message of a conversation")
	// ErrNoSession means that the backend's capabilities are not known, or that the client's session with the backend could not begin.
	ErrNoSession = errors.New("gateway: the client has no session with the backend")
)
