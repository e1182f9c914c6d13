package mcp

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// profileOf returns the profile of a call to a method of the MCP Events extension. A revision of the extension that the client
// declares takes precedence over the configuration. If the server does not know it, the error has the numbers of the profile
// that is returned.
func (e *Endpoint) profileOf(c *call) (spec.Profile, error) {
	profile := e.defaultProfile(c.request.Context(), c.principal)
	// Only requests of the stateless revisions, for which the extension is defined, carry the client's capabilities.
	settings := jsonrpc.Member(jsonrpc.Member(jsonrpc.Member(c.meta, spec.MetaCapabilities), "extensions"), spec.EventsExtension)
	raw := jsonrpc.Member(settings, "revision")
	if raw == nil {
		return profile, nil
	}
	revision, ok := jsonrpc.String(raw)
	if !ok {
		return profile, invalidParams("revision of %s must be a string", spec.EventsExtension)
	}
	if declared, ok := e.options.EventsRevisions[revision]; ok {
		return declared, nil
	}
	known := slices.Sorted(maps.Keys(e.options.EventsRevisions))
	text := "known: " + strings.Join(known, ", ")
	if len(known) == 0 {
		known, text = []string{}, "none is known yet; leave revision out"
	}
	return profile, fault.New(fault.Unsupported, "revision %q of %s is not known (%s)", clip(revision), spec.EventsExtension, text).
		With(map[string]any{"feature": "revision", "value": clip(revision), "supported": known})
}

func (e *Endpoint) defaultProfile(ctx context.Context, p auth.Principal) spec.Profile {
	if e.options.Profile == nil {
		return spec.Released
	}
	return e.options.Profile(ctx, p)
}
