package mcp

import (
	"context"
	"strings"

	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// resourceCapability is the member "resources" of the server's capabilities. SEP-1803 adds the members "events" and "subscription" to it.
type resourceCapability struct {
	Events       bool     `json:"events,omitempty"`
	Subscribe    bool     `json:"subscribe,omitempty"`
	ListChanged  bool     `json:"listChanged,omitempty"`
	Subscription []string `json:"subscription,omitempty"`
}

// extensionSettings are the settings of our extension [spec.OwnExtension] in the server's capabilities. They repeat the members "events"
// and "subscription" of [resourceCapability], because some client libraries drop unknown members of capabilities.resources.
type extensionSettings struct {
	Events       bool     `json:"events"`
	Subscription []string `json:"subscription"`
}

type listCapability struct {
	ListChanged bool `json:"listChanged"`
}

type capabilities struct {
	Experimental map[string]any      `json:"experimental,omitempty"`
	Extensions   map[string]any      `json:"extensions,omitempty"`
	Resources    *resourceCapability `json:"resources,omitempty"`
	Tools        *listCapability     `json:"tools,omitempty"`
	Prompts      *listCapability     `json:"prompts,omitempty"`
	Completions  *struct{}           `json:"completions,omitempty"`
	Logging      *struct{}           `json:"logging,omitempty"`
	// Events repeats the settings of the MCP Events extension. The extension's first draft had the settings in this member, and ChatGPT
	// still reads them here.
	Events *listCapability `json:"events,omitempty"`
	// ConversationEvents tells the caller which messages of its conversations it should send to this server (conversation events
	// proposal).
	ConversationEvents *conversation.Offers `json:"conversationEvents,omitempty"`
}

// offers contains the capabilities of the server that differ between callers: the capabilities of the caller's backends, and the kinds of
// conversation messages that the caller may send.
type offers struct {
	backends     api.Capabilities
	conversation conversation.Offers
}

func (e *Endpoint) offersTo(ctx context.Context, c *method.Call) (o offers) {
	if e.backends.Any(ctx) {
		o.backends = e.backends.Capabilities(ctx, c.Client())
	}
	if e.options.Conversation != nil {
		o.conversation = e.options.Conversation.Offers(ctx, c.Principal)
	}
	return o
}

// capabilities returns the server's capabilities for a caller. Some of them depend on whether the call's protocol revision is stateless
// or has sessions.
func (e *Endpoint) capabilities(stateless bool, to offers) capabilities {
	c := capabilities{Extensions: map[string]any{}}
	inBand := e.methods.Has(spec.MethodListen)
	if !stateless {
		inBand = e.methods.Has(spec.MethodSubscribe)
	}
	var ways []string
	if inBand {
		ways = append(ways, "notification")
	}
	if e.methods.Has(spec.MethodRegister) {
		ways = append(ways, "webhook")
	}
	if e.methods.Has(spec.MethodResources) {
		c.Resources = &resourceCapability{Events: true, Subscribe: inBand, ListChanged: inBand, Subscription: ways}
	}
	if to.backends.Tools || e.instructions != "" {
		c.Tools = &listCapability{ListChanged: inBand && to.backends.Tools}
	}
	if to.backends.Prompts {
		c.Prompts = &listCapability{ListChanged: inBand}
	}
	if e.methods.Has(spec.MethodComplete) {
		c.Completions = &struct{}{}
	}
	if stateless && to.backends.Logging || !stateless && e.methods.Has(spec.MethodSetLevel) {
		c.Logging = &struct{}{}
	}
	if len(ways) > 0 {
		c.Extensions[spec.OwnExtension] = extensionSettings{Events: e.methods.Has(spec.MethodResources), Subscription: ways}
		if !stateless {
			c.Experimental = map[string]any{spec.OwnExtension: c.Extensions[spec.OwnExtension]}
		}
	}
	if e.methods.Has(spec.MethodEvents) {
		c.Events = &listCapability{ListChanged: inBand}
		c.Extensions[spec.EventsExtension] = c.Events
	}
	if stateless && to.backends.Tasks {
		c.Extensions[spec.TasksExtension] = struct{}{}
	}
	for id, settings := range to.backends.Extensions {
		c.Extensions[id] = settings
	}
	if to.conversation.Any() {
		c.ConversationEvents = &to.conversation
		c.Extensions[spec.ConversationExtension] = c.ConversationEvents
		if !stateless {
			if c.Experimental == nil {
				c.Experimental = map[string]any{}
			}
			c.Experimental[spec.ConversationExtension] = c.ConversationEvents
		}
	}
	return c
}

// describeInitialize returns the members of an initialize result except for protocolVersion, as JSON without braces.
func (e *Endpoint) describeInitialize(to offers) []byte {
	return method.WithoutBraces(jsonrpc.Encode(struct {
		Capabilities capabilities   `json:"capabilities"`
		Server       Implementation `json:"serverInfo"`
		Instructions string         `json:"instructions,omitempty"`
	}{e.capabilities(false, to), e.options.Server, e.instructionsFor(to)}))
}

func (e *Endpoint) describeDiscover(to offers) []byte {
	return method.WithoutBraces(jsonrpc.Encode(struct {
		Versions     []spec.Version `json:"supportedVersions"`
		Capabilities capabilities   `json:"capabilities"`
		Instructions string         `json:"instructions,omitempty"`
	}{e.supportedVersions(), e.capabilities(true, to), e.instructionsFor(to)}))
}

func (e *Endpoint) instructionsFor(to offers) string {
	return strings.TrimSpace(e.instructions + "\n\n" + to.backends.Instructions)
}

func (e *Endpoint) supportedVersions() []spec.Version {
	if e.sessions == nil {
		return []spec.Version{spec.V20260728}
	}
	return spec.Versions
}

// discoverTTL is how long, in milliseconds, a client may cache the result of server/discover. The result changes only when the server is
// deployed again or when the caller's backends change.
const discoverTTL = 60_000

func (e *Endpoint) answerDiscover(ctx context.Context, c *method.Call) (method.Result, error) {
	scope := method.Public
	if e.backends.Any(ctx) || e.options.Conversation != nil && e.options.Conversation.Enabled(ctx) { // the capabilities depend on the caller
		scope = method.Private
	}
	return method.Result{Members: [][]byte{e.describeDiscover(e.offersTo(ctx, c))}, Cache: &method.Caching{TTL: discoverTTL, Scope: scope}}, nil
}
