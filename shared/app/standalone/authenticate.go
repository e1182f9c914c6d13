package standalone

import (
	"net/http"

	"github.com/mcp-events/mcpevents/shared/app/tokens"
	"github.com/mcp-events/mcpevents/shared/auth"
)

// authenticate chooses who may call, unless keys of the configuration tell. Mount, if not nil, adds where clients learn how to get a token.
func (s *Server) authenticate(o Options) (mount func(*http.ServeMux), err error) {
	switch o.Auth {
	case auth.ModeNone:
		s.core.Auth = auth.None()
	case auth.ModeJWT:
		access, err := tokens.Authenticator(o.Limits, s.core.Log)
		if err != nil {
			return nil, err
		}
		s.core.Auth, s.core.ResourceMetadata = access, access.MetadataURL()
		return access.Mount, nil
	}
	return nil, nil
}
