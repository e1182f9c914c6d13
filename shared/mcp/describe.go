package mcp

import (
	"context"
	"encoding/json"

	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
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
	backends     api.Capabilities
	conversation conversation.Offers
}

// description is what the endpoint says of itself.
type description struct {
	server       Implementation
	instructions string
	methods      methodTable
	sessions     *session.Store
	backends     Gateway
	conversation Conversation

	// Encoded once: what initialize and server/discover say where all callers are served the same.
	initialize, discover []byte
}

// offersTo finds out what there is for a caller beside what there is for all.
func (d *description) offersTo(ctx context.Context, c *call) (o offers) {
	if d.backends.Any(ctx) {
		o.backends = d.backends.Capabilities(ctx, c.client())
	}
	if d.conversation != nil {
		o.conversation = d.conversation.Offers(ctx, c.principal)
	}
	return o
}

// personal reports whether callers may be served different things.
func (d *description) personal(ctx context.Context) bool {
	return d.backends.Any(ctx) || d.conversation != nil && d.conversation.Enabled(ctx)
}

// capabilities are what is served to a caller, and nothing else.
func (d *description) capabilities(stateless bool, to offers) capabilities {
	c := capabilities{Extensions: map[string]any{}}
	inBand := d.methods.has(mcpspec.MethodListen)
	if !stateless {
		inBand = d.methods.has(mcpspec.MethodSubscribe)
	}
	var ways []string
	if inBand {
		ways = append(ways, "notification")
	}
	if d.methods.has(mcpspec.MethodRegister) {
		ways = append(ways, "webhook")
	}
	if d.methods.has(mcpspec.MethodResources) {
		c.Resources = &resourceCapability{Events: true, Subscribe: inBand, ListChanged: inBand, Subscription: ways}
	}
	if to.backends.Tools {
		c.Tools = &listCapability{ListChanged: inBand}
	}
	if to.backends.Prompts {
		c.Prompts = &listCapability{ListChanged: inBand}
	}
	if d.methods.has(mcpspec.MethodComplete) {
		c.Completions = &struct{}{}
	}
	if stateless && to.backends.Logging || !stateless && d.methods.has(mcpspec.MethodSetLevel) {
		c.Logging = &struct{}{}
	}
	if len(ways) > 0 {
		c.Extensions[Extension] = extensionSettings{Events: d.methods.has(mcpspec.MethodResources), Subscription: ways}
		if !stateless {
			c.Experimental = map[string]any{Extension: c.Extensions[Extension]}
		}
	}
	if d.methods.has(mcpspec.MethodEvents) {
		c.Events = &listCapability{ListChanged: inBand}
		c.Extensions[mcpspec.EventsExtension] = c.Events
	}
	if to.conversation.Any() {
		c.ConversationEvents = &to.conversation
		c.Extensions[ConversationExtension] = c.ConversationEvents
		if !stateless {
			if c.Experimental == nil {
				c.Experimental = map[string]any{}
			}
			c.Experimental[ConversationExtension] = c.ConversationEvents
		}
	}
	return c
}

// describe encodes what does not change while the endpoint lives.
func (d *description) describe() {
	d.initialize = d.describeInitialize(offers{})
	d.discover = d.describeDiscover(offers{})
}

// describeInitialize is the result of initialize behind the version.
func (d *description) describeInitialize(to offers) []byte {
	b := append([]byte(`,"capabilities":`), mustJSON(d.capabilities(false, to))...)
	b = append(b, `,"serverInfo":`...)
	return d.appendInstructions(append(b, mustJSON(d.server)...))
}

// describeDiscover is the result of server/discover.
func (d *description) describeDiscover(to offers) []byte {
	b := append([]byte(`"supportedVersions":`), mustJSON(d.supported())...)
	b = append(b, `,"capabilities":`...)
	return d.appendInstructions(append(b, mustJSON(d.capabilities(true, to))...))
}

func (d *description) appendInstructions(b []byte) []byte {
	if d.instructions == "" {
		return b
	}
	return jsonrpc.AppendString(append(b, `,"instructions":`...), d.instructions)
}

// supported lists the revisions that a client may choose, newest first.
func (d *description) supported() []mcpspec.Version {
	if d.sessions == nil {
		return []mcpspec.Version{mcpspec.V20260728}
	}
	return mcpspec.Versions
}

// discoverTTL is how long, in milliseconds, a client may keep what
// server/discover said: it changes only with a deployment.
const discoverTTL = 60_000

func (d *description) answerDiscover(ctx context.Context, c *call) (result, error) {
	if !d.personal(ctx) {
		return result{members: [][]byte{d.discover}, cache: &caching{discoverTTL, public}}, nil
	}
	about := d.describeDiscover(d.offersTo(ctx, c))
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
