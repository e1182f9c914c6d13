// Package rules defines the section "conversation" of the configuration: which context providers receive messages of
// conversations, and which messages are published as events.
package rules

import (
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/secret"
)

// EventsProvider is the reserved name of the built-in provider that publishes messages as events. Callers who consent to this provider
// allow that their messages are published.
const EventsProvider = "events"

// PrincipalHeader is the HTTP header in which a provider with a URL receives the caller's principal id or pseudonym.
const PrincipalHeader = "X-Mcp-Principal"

// Conversation is the section "conversation". It says which messages of conversations clients are asked to send, and to which providers
// the messages go.
type Conversation struct {
	UserMessages, AssistantResponses bool
	Budget                           time.Duration // how long one message waits for the contexts of all providers; 500 ms by default
	MaxContext                       int           // bytes of the merged context; 32 KiB by default
	Providers                        []Provider    // the most important one first
	Events                           Events
}

// Enabled reports whether clients are asked to send any messages.
func (c Conversation) Enabled() bool { return c.UserMessages || c.AssistantResponses }

// Provider configures a context provider, which receives messages and may answer with context for the model. It is either at a URL or a
// backend of the gateway.
type Provider struct {
	// Name identifies the provider in its workspace. It has up to 64 letters, digits, - and _.
	Name string
	// Title and Description describe the provider to people before they consent.
	Title, Description string
	// URL is the address to which the server sends a POST with each message. It is empty for a backend.
	URL     string
	Headers map[string]secret.Value
	// Backend is the name of a backend of the same workspace, and BackendURL is the backend's endpoint. Both are empty for a provider at
	// a URL.
	Backend, BackendURL string
	// Workspace is the workspace whose conversations the provider receives; by default the workspace "default".
	Workspace string
	// Priority orders the providers, with the highest priority first. Providers with the same priority keep the order of the file.
	Priority int
	// Principal says that the provider receives the caller's principal id. Otherwise it receives a pseudonym that is different for each
	// provider.
	Principal bool
}

// Events says which messages of users and assistants are published as events, and in which workspace.
type Events struct {
	UserMessage, AssistantResponse bool
	Workspace                      string
}

// Any reports whether any messages are published as events.
func (e Events) Any() bool { return e.UserMessage || e.AssistantResponse }
