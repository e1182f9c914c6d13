// Package tokens makes the authenticator of --auth jwt from the operator's
// settings, for the embedded server and the functions. It is apart from package
// app because every function authenticates, and few need what else is put together there.
package tokens

import (
	"log/slog"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth/jwt"
)

// leeway is how far the clock of an issuer may be off.
const leeway = 30 * time.Second

// Authenticator takes the access tokens that the settings describe. Settings that
// are missing or out of range are of kind fault.Invalid.
func Authenticator(l config.Limits, log *slog.Logger) (*jwt.Authenticator, error) {
	return jwt.New(jwt.Options{
		Issuers: l.JWTIssuers, JWKS: l.JWTKeys, Audience: l.JWTAudience, Algorithms: l.JWTAlgorithms,
		PrincipalClaim: l.JWTPrincipal, WorkspaceClaim: l.JWTWorkspace, ScopePrefix: l.JWTScopePrefix, Leeway: leeway, Log: log,
	})
}
