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

// upstreamName is what the backend of [Options.Upstream] is called in logs, metrics and the admin API.
const upstreamName = "upstream"

// ownBackends are those that are in no configuration.
func (s *Server) ownBackends() []api.Backend {
	if s.upstream == nil {
		return nil
	}
	return []api.Backend{{
		Name: upstreamName, URL: inprocess.URL, Workspace: auth.DefaultWorkspace, ProtocolVersion: api.AutoVersion,
	}}
}

// reachBackends is the client for backends, here and elsewhere.
func (s *Server) reachBackends() *http.Client {
	client := upstream.NewHTTP()
	if s.upstream != nil {
		client.Transport.(*http.Transport).RegisterProtocol(inprocess.Scheme, s.upstream)
	}
	return client
}

// checkNames refuses a configuration with a backend that has the name of ours.
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
