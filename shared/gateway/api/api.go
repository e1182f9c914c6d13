// Package api has the data that the MCP endpoint and the gateway hand each other: who calls, what
// backends have, a call, a subscription, a notification.
//
// It is for shared/mcp, shared/conversation and shared/gateway/relay, so that none of them knows
// the gateway itself. Nothing here reaches a backend or the store. How lists are gathered and calls
// made is in shared/gateway.
package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Client is who calls: what a backend gets of it, and where its answers belong.
type Client struct {
	Principal auth.Principal
	// Session is the key of its session in the session-based revisions; empty in 2026-07-28.
	Session string
	Version spec.Version
	// Capabilities and Info are as the client sent them.
	Capabilities, Info json.RawMessage
	// Level is the least severity of log messages that its session asked for; empty for none.
	Level string
	// Token is its Authorization header, for backends that get the caller's own.
	Token string
}

// Capabilities are what a backend, or all of a principal's, serve.
type Capabilities struct {
	Tools, Prompts, Resources, Completions, Logging bool
	// Of what it sends notifications.
	ToolsChanged, PromptsChanged, ResourcesChanged, Subscribe bool
	// Which messages of conversations it asks for.
	UserMessages, AssistantResponses bool
}

// Notifies reports whether the backend notifies of any change.
func (c Capabilities) Notifies() bool {
	return c.ToolsChanged || c.PromptsChanged || c.ResourcesChanged || c.Subscribe
}

// Has reports whether there are lists of a kind.
func (c Capabilities) Has(kind Kind) bool {
	switch kind {
	case Tools:
		return c.Tools
	case Prompts:
		return c.Prompts
	}
	return c.Resources
}

// Call is a request of a client that a backend answers.
type Call struct {
	Client
	Kind Kind
	// Name is what is called, as the client names it; Member of params holds it.
	Name, Member string
	Method       string
	ID, Params   json.RawMessage
	// Header are the mirrored headers of revision 2026-07-28.
	Header http.Header
	// ResponseOnly is set for a client that takes no event stream. It cannot be asked
	// anything within the call, and whoever tries gets an error at once.
	ResponseOnly bool
	// Send takes each message for the client, the response last. An error means that
	// the client is gone.
	Send func(message json.RawMessage, response bool) error
}

// Place distinguishes backends. The same name may stand for another in
// another workspace.
type Place struct{ Workspace, Backend string }

// String is for keys of the store: neither part has a '#'.
func (p Place) String() string { return p.Workspace + "#" + p.Backend }

// Subscription says that a session or a stream is subscribed to a resource of a backend.
// The relay subscribes there while anyone is.
type Subscription struct {
	Place
	URI string
	// Principal is the holder's. It counts against its quota and gets its turn when the relay subscribes.
	Principal string
	// Holder is the session or stream, Until when it is over at the latest.
	Holder string
	Until  time.Time
}

// Covers reports whether a subscription to a resource includes the updates of another one: of itself, and of the resources below
// it. For example, file:///dir covers file:///dir/a.txt and x://1 covers x://1?page=2.
//
// The schema says of an update that it "might be a sub-resource of the one that the client actually subscribed to". Only the server
// knows which these are; a URI below the other one is the case that every scheme with paths has.
func Covers(subscribed, uri string) bool {
	rest, ok := strings.CutPrefix(uri, subscribed)
	return ok && subscribed != "" && (rest == "" || strings.HasSuffix(subscribed, "/") || strings.ContainsRune("/?#", rune(rest[0])))
}

// Notice is what the log holds of a backend's notification, for all streams.
type Notice struct {
	Method string          `json:"m"`
	Params json.RawMessage `json:"p,omitempty"`
}

// What handing a backend a message of a conversation can come to.
var (
	// ErrIncapable is of a backend that did not declare to want such messages.
	ErrIncapable = errors.New("gateway: the backend does not ask for messages of conversations")
	// ErrRefused is of one that answered with an error.
	ErrRefused = errors.New("gateway: the backend refused a message of a conversation")
)
