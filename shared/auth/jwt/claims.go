package jwt

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"net/url"
	"slices"
	"strings"

	josejwt "github.com/go-jose/go-jose/v4/jwt"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// claims are the claims of a token whose signature was verified.
type claims struct {
	josejwt.Claims
	all map[string]json.RawMessage

	issuer *keySet
	keys   *issuerKeys // the keys with which the token was verified
}

// validate returns why this server does not accept a token with a valid signature, or "". The issuer need not be checked again, because
// the token was verified with its key.
func (a *Authenticator) validate(c *claims) string {
	if c.Expiry == nil {
		return "it never expires"
	}
	if use := c.text("token_use"); use != "" && use != "access" {
		return "it is not an access token"
	}
	if !slices.ContainsFunc(c.audiences(), a.isAudience) {
		return "it is for another audience"
	}
	if err := c.ValidateWithLeeway(josejwt.Expected{Time: a.options.Now()}, a.options.Leeway); err != nil {
		return err.Error()
	}
	return ""
}

// audiences returns the claim aud or, without one, client_id. Access tokens of Amazon Cognito have no audience but name the client that
// requested them.
func (c *claims) audiences() []string {
	if id := c.text("client_id"); len(c.Audience) == 0 && id != "" {
		return []string{id}
	}
	return c.Audience
}

// isAudience reports whether an audience is this server.
func (a *Authenticator) isAudience(value string) bool {
	return slices.ContainsFunc(a.options.Audience, func(own string) bool {
		return value == own || sameResource(value, own)
	})
}

// sameResource reports whether two URLs are the same resource by MCP's authorization chapter. It ignores the case of scheme and host, and
// a path that is only a slash.
func sameResource(a, b string) bool {
	x, errX := url.Parse(a)
	y, errY := url.Parse(b)
	if errX != nil || errY != nil || x.Host == "" {
		return false
	}
	return canonicalURL(x) == canonicalURL(y)
}

func canonicalURL(u *url.URL) string {
	c := *u
	c.Scheme, c.Host = strings.ToLower(c.Scheme), strings.ToLower(c.Host)
	if c.Path == "/" {
		c.Path = ""
	}
	return c.String()
}

// principal returns the principal for whom the token was issued.
func (a *Authenticator) principal(ctx context.Context, c *claims) (auth.Principal, error) {
	subject := c.text(a.options.PrincipalClaim)
	if subject == "" {
		return auth.Principal{}, a.refuse(ctx, "it names no principal")
	}
	workspace := auth.DefaultWorkspace
	if name := a.options.WorkspaceClaim; name != "" {
		if workspace = c.text(name); !auth.ValidWorkspace(workspace) {
			return auth.Principal{}, fault.New(fault.Forbidden, "the token names no workspace")
		}
	}
	return auth.Principal{
		ID:        PrincipalID(c.Issuer, a.options.PrincipalClaim, subject),
		Workspace: workspace,
		Scopes:    c.scopes(a.options.ScopePrefix),
		Claims:    c.texts(),
		Expires:   c.Expiry.Time().Add(a.options.Leeway),
	}, nil
}

// PrincipalID returns the id of a token's holder: "jwt:" and the base64url SHA-256 of issuer, claim and value, each preceded by its
// length. The issuer is included because values are only unique per issuer. The value is hashed because it may be of any length and may be
// personal, such as an email address.
func PrincipalID(issuer, claim, value string) string {
	var b []byte
	for _, part := range []string{issuer, claim, value} {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	sum := sha256.Sum256(b)
	return "jwt:" + base64.RawURLEncoding.EncodeToString(sum[:])
}

// text returns the value of a claim that is a string, or "".
func (c *claims) text(name string) string {
	s, _ := jsonrpc.String(c.all[name])
	return s
}

// scopes returns the scopes that begin with the prefix, and removes the prefix. They are in the claim scope (RFC 9068, section 2.2.3), or
// in scp, which some servers use instead. Each is an array or a space-separated string.
func (c *claims) scopes(prefix string) []string {
	var scopes []string
	for _, name := range []string{"scope", "scp"} {
		for _, text := range values(c.all[name]) {
			for s := range strings.FieldsSeq(text) {
				s, ours := strings.CutPrefix(s, prefix)
				if ours && !slices.Contains(scopes, s) {
					scopes = append(scopes, s)
				}
			}
		}
	}
	return scopes
}

// texts returns the claims that access rules can use: strings, numbers and arrays of them.
func (c *claims) texts() map[string][]string {
	out := make(map[string][]string, len(c.all))
	for name, raw := range c.all {
		if v := values(raw); v != nil {
			out[name] = v
		}
	}
	return out
}

// values returns the text of a string or number, or the texts of an array of them. It ignores other values.
func values(raw json.RawMessage) (out []string) {
	if len(raw) == 0 {
		return nil
	}
	claim := jsonrpc.Value(raw)
	items, ok := claim.([]any)
	if !ok {
		items = []any{claim}
	}
	for _, item := range items {
		switch v := item.(type) {
		case string:
			out = append(out, v)
		case json.Number:
			out = append(out, v.String())
		}
	}
	return out
}
