package standalone

import (
	"net/http"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/inprocess"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// upstreamName is the name of the backend [Options.Upstream] in logs, metrics and the admin API.
const upstreamName = "upstream"

// ownBackends returns a list with the backend [Options.Upstream], or an empty list if the program has no MCP server of its own.
func (s *Server) ownBackends() []api.Backend {
	if s.upstream == nil {
		return nil
	}
	return []api.Backend{{
		Name: upstreamName, URL: inprocess.URL, Workspace: auth.DefaultWorkspace, ProtocolVersion: api.AutoVersion,
	}}
}

// backendClient returns the HTTP client for requests to backends. Requests to [Options.Upstream] and to commands do not use the network.
func (s *Server) backendClient() *http.Client {
	client := upstream.NewHTTP()
	if s.upstream != nil {
		client.Transport.(*http.Transport).RegisterProtocol(inprocess.Scheme, s.upstream)
	}
	client.Transport.(*http.Transport).RegisterProtocol(api.CommandScheme, s.commands)
	return client
}

// checkNames returns an error if a backend in the configuration has the same name as the backend [Options.Upstream].
func (s *Server) checkNames(c *config.Config) error {
	for _, own := range s.ownBackends() {
		for _, b := range c.Backends {
			if b.Name == own.Name && b.Workspace == own.Workspace {
				return fault.New(fault.Invalid, "backend %s: the program's own server has this name in workspace %s", b.Name, b.Workspace)
			}
		}
	}
	return nil
}
