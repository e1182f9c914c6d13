package mcp

import (
	"context"
	"encoding/json"

	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
)

// resourceCapability is capabilities.resources, with the members of SEP-1803.
type resourceCapability struct {
	Events       bool     `json:"events,omitempty"`
	Subscribe    bool     `json:"subscribe,omitempty"`
	ListChanged  bool     `json:"listChanged,omitempty"`
	Subscription []string `json:"subscription,omitempty"`
}

// extensionSettings repeat them for clients whose libraries drop unknown members
// of capabilities.resources.
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
	// Events is where the design sketch of the MCP Events extension, and ChatGPT
	// with it, look for what is now in extensions.
	Events *listCapability `json:"events,omitempty"`
	// ConversationEvents is of the conversation events proposal.
	ConversationEvents *conversation.Offers `json:"conversationEvents,omitempty"`
}

// offers is what is served to one caller and perhaps not to another.
type offers struct {
	backends     gateway.Offers
	conversation conversation.Offers
}

// offersTo finds out what there is for a caller beside what there is for all.
func (e *Endpoint) offersTo(ctx context.Context, c *call) (o offers) {
	if backends := e.gateway(ctx); backends != nil {
		o.backends = backends.Offers(ctx, c.client())
	}
	if e.options.Conversation != nil {
		o.conversation = e.options.Conversation.Offers(ctx, c.principal)
	}
	return o
}

// personal reports whether callers may be served different things.
func (e *Endpoint) personal(ctx context.Context) bool {
	return e.gateway(ctx) != nil || e.options.Conversation != nil && e.options.Conversation.Enabled(ctx)
}

// capabilities are what is served to a caller, and nothing else.
func (e *Endpoint) capabilities(modern bool, to offers) capabilities {
	c := capabilities{Extensions: map[string]any{}}
	inBand := e.has(mcpspec.MethodListen)
	if !modern {
		inBand = e.has(mcpspec.MethodSubscribe)
	}
	var ways []string
	if inBand {
		ways = append(ways, "notification")
	}
	if e.has(mcpspec.MethodRegister) {
		ways = append(ways, "webhook")
	}
	if e.has(mcpspec.MethodResources) {
		c.Resources = &resourceCapability{Events: true, Subscribe: inBand, ListChanged: inBand, Subscription: ways}
	}
	if to.backends.Tools {
		c.Tools = &listCapability{ListChanged: inBand}
	}
	if to.backends.Prompts {
		c.Prompts = &listCapability{ListChanged: inBand}
	}
	if e.has(mcpspec.MethodComplete) {
		c.Completions = &struct{}{}
	}
	if modern && to.backends.Logging || !modern && e.has(mcpspec.MethodSetLevel) {
		c.Logging = &struct{}{}
	}
	if len(ways) > 0 {
		c.Extensions[Extension] = extensionSettings{Events: e.has(mcpspec.MethodResources), Subscription: ways}
		if !modern {
			c.Experimental = map[string]any{Extension: c.Extensions[Extension]}
		}
	}
	if e.has(mcpspec.MethodEvents) {
		c.Events = &listCapability{ListChanged: inBand}
		c.Extensions[mcpspec.EventsExtension] = c.Events
	}
	if to.conversation.Any() {
		c.ConversationEvents = &to.conversation
		c.Extensions[ConversationExtension] = c.ConversationEvents
		if !modern {
			if c.Experimental == nil {
				c.Experimental = map[string]any{}
			}
			c.Experimental[ConversationExtension] = c.ConversationEvents
		}
	}
	return c
}

// describe encodes what does not change while the endpoint lives.
func (e *Endpoint) describe() {
	server := mustJSON(e.options.Server)
	e.serverMeta = append([]byte(`"`+mcpspec.MetaServer+`":`), server...)
	e.initialize = e.describeInitialize(offers{})
	e.discover = e.describeDiscover(offers{})
}

// describeInitialize is the result of initialize behind the version.
func (e *Endpoint) describeInitialize(to offers) []byte {
	b := append([]byte(`,"capabilities":`), mustJSON(e.capabilities(false, to))...)
	b = append(b, `,"serverInfo":`...)
	return e.appendInstructions(append(b, mustJSON(e.options.Server)...))
}

// describeDiscover is the result of server/discover.
func (e *Endpoint) describeDiscover(to offers) []byte {
	b := append([]byte(`"supportedVersions":`), mustJSON(e.supported())...)
	b = append(b, `,"capabilities":`...)
	return e.appendInstructions(append(b, mustJSON(e.capabilities(true, to))...))
}

func (e *Endpoint) appendInstructions(b []byte) []byte {
	if e.options.Instructions == "" {
		return b
	}
	return jsonrpc.AppendString(append(b, `,"instructions":`...), e.options.Instructions)
}

// supported lists the revisions that a client may choose, newest first.
func (e *Endpoint) supported() []mcpspec.Version {
	if e.sessions == nil {
		return []mcpspec.Version{mcpspec.V20260728}
	}
	return mcpspec.Versions
}

// discoverTTL is how long, in milliseconds, a client may keep what
// server/discover said: it changes only with a deployment.
const discoverTTL = 60_000

func (e *Endpoint) answerDiscover(ctx context.Context, c *call) (result, error) {
	if !e.personal(ctx) {
		return result{members: [][]byte{e.discover}, cache: &caching{discoverTTL, public}}, nil
	}
	about := e.describeDiscover(e.offersTo(ctx, c))
	return result{members: [][]byte{about}, cache: &caching{discoverTTL, private}}, nil
}

// mustJSON encodes values that were made here, of types that always encode.
func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
