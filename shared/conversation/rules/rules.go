// Package rules defines the section "conversation" of the configuration: which context providers receive messages of
// conversations, and which messages are published as events.
package rules

import (
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/secret"
)

// EventsProvider is a reserved provider name. Callers who consent to it allow that their messages are published as events.
const EventsProvider = "events"

// PrincipalHeader is the HTTP header in which a provider with a URL receives the caller's principal id or pseudonym.
const PrincipalHeader = "X-Mcp-Principal"

// Conversation says which messages of conversations clients are asked to send, and to which providers they go.
type Conversation struct {
	UserMessages, AssistantResponses bool
	Budget                           time.Duration // how long one message waits for the contexts of all providers; 500 ms by default
	MaxContext                       int           // bytes of the merged context; 32 KiB by default
	Providers                        []Provider    // the most important one first
	Events                           Events
}

// Enabled reports whether clients are asked to send any messages.
func (c Conversation) Enabled() bool { return c.UserMessages || c.AssistantResponses }

// Provider configures a context provider: an endpoint that receives messages and may answer with context for the model. It is
// either a URL or a backend of the gateway.
type Provider struct {
	// Name is unique in the workspace: letters, digits, - and _, at most 64.
	Name string
	// Title and Description describe the provider to people before they consent.
	Title, Description string
	// URL receives a POST of each message. It is empty for a backend.
	URL     string
	Headers map[string]secret.Value
	// Backend is the name of a backend of the same workspace, and BackendURL its endpoint.
	Backend, BackendURL string
	// Workspace is the workspace whose conversations the provider receives; by default the workspace "default".
	Workspace string
	// Priority sorts the providers, the highest first. Providers with the same priority keep the order of the file.
	Priority int
	// Principal, if true, sends the caller's principal id to the provider. Otherwise the provider receives a pseudonym that is
	// different for each provider.
	Principal bool
}

// Events says which messages of users and assistants are published as events, and in which workspace.
type Events struct {
	UserMessage, AssistantResponse bool
	Workspace                      string
}

// Any reports whether any messages are published as events.
func (e Events) Any() bool { return e.UserMessage || e.AssistantResponse }
