package mcp

import (
	"context"
	"encoding/json"

	"mcpevents/shared/mcp/jsonrpc"
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

type eventsCapability struct {
	ListChanged bool `json:"listChanged"`
}

type capabilities struct {
	Experimental map[string]any      `json:"experimental,omitempty"`
	Extensions   map[string]any      `json:"extensions,omitempty"`
	Resources    *resourceCapability `json:"resources,omitempty"`
	Completions  *struct{}           `json:"completions,omitempty"`
	Logging      *struct{}           `json:"logging,omitempty"`
	// Events is where the design sketch of the MCP Events extension, and ChatGPT
	// with it, look for what is now in extensions.
	Events *eventsCapability `json:"events,omitempty"`
}

// capabilities are what the table serves and nothing else.
func (e *Endpoint) capabilities(modern bool) capabilities {
	c := capabilities{Extensions: map[string]any{}}
	inBand := e.has(methodListen)
	if !modern {
		inBand = e.has(methodSubscribe)
	}
	var ways []string
	if inBand {
		ways = append(ways, "notification")
	}
	if e.has(methodRegister) {
		ways = append(ways, "webhook")
	}
	if e.has(methodResources) {
		c.Resources = &resourceCapability{Events: true, Subscribe: inBand, ListChanged: inBand, Subscription: ways}
	}
	if e.has(methodComplete) {
		c.Completions = &struct{}{}
	}
	if !modern && e.has(methodSetLevel) {
		c.Logging = &struct{}{}
	}
	if len(ways) > 0 {
		c.Extensions[Extension] = extensionSettings{Events: e.has(methodResources), Subscription: ways}
		if !modern {
			c.Experimental = map[string]any{Extension: c.Extensions[Extension]}
		}
	}
	if e.has(methodEvents) {
		c.Events = &eventsCapability{ListChanged: inBand}
		c.Extensions[EventsExtension] = c.Events
	}
	return c
}

// describe encodes what does not change while the endpoint lives.
func (e *Endpoint) describe() {
	server := mustJSON(e.options.Server)
	e.serverMeta = append([]byte(`"`+metaServer+`":`), server...)
	instructions := []byte{}
	if e.options.Instructions != "" {
		instructions = jsonrpc.AppendString([]byte(`,"instructions":`), e.options.Instructions)
	}
	e.initialize = append(e.initialize, `,"capabilities":`...)
	e.initialize = append(e.initialize, mustJSON(e.capabilities(false))...)
	e.initialize = append(e.initialize, `,"serverInfo":`...)
	e.initialize = append(e.initialize, server...)
	e.initialize = append(e.initialize, instructions...)

	e.discover = append(e.discover, `"supportedVersions":`...)
	e.discover = append(e.discover, mustJSON(e.supported())...)
	e.discover = append(e.discover, `,"capabilities":`...)
	e.discover = append(e.discover, mustJSON(e.capabilities(true))...)
	e.discover = append(e.discover, instructions...)
}

// supported lists the revisions that a client may choose, newest first.
func (e *Endpoint) supported() []Version {
	if e.sessions == nil {
		return []Version{V20260728}
	}
	return versions
}

// discoverTTL is how long, in milliseconds, a client may keep what
// server/discover said: it changes only with a deployment.
const discoverTTL = 60_000

func (e *Endpoint) answerDiscover(context.Context, *call) (result, error) {
	return result{members: [][]byte{e.discover}, cache: &caching{discoverTTL, public}}, nil
}

// mustJSON encodes values that were made here, of types that always encode.
func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
