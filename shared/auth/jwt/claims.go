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

// claims are those of a token whose signature was verified.
type claims struct {
	josejwt.Claims
	all map[string]json.RawMessage

	issuer *keySet
	keys   *issuerKeys // one of these verified the token
}

// validate says why a token with a good signature is not good here, or "".
// The issuer is the one whose key it is signed with.
func (a *Authenticator) validate(c *claims) string {
	if c.Expiry == nil {
		return "it never expires"
	}
	if use := c.text("token_use"); use != "" && use != "access" {
		return "it is no access token"
	}
	if !slices.ContainsFunc(c.audiences(), a.audience) {
		return "it is for another audience"
	}
	if err := c.ValidateWithLeeway(josejwt.Expected{Time: a.options.Now()}, a.options.Leeway); err != nil {
		return err.Error()
	}
	return ""
}

// audiences are the claim aud or, if the token has none, client_id. Access tokens of Amazon Cognito name the client that
// requested them and no audience.
func (c *claims) audiences() []string {
	if id := c.text("client_id"); len(c.Audience) == 0 && id != "" {
		return []string{id}
	}
	return c.Audience
}

// audience reports whether the value names this server.
func (a *Authenticator) audience(value string) bool {
	return slices.ContainsFunc(a.options.Audience, func(own string) bool {
		return value == own || sameResource(value, own)
	})
}

// sameResource compares two URLs as MCP's authorization chapter asks for: the
// case of scheme and host does not matter, nor does a slash that is all of the path.
func sameResource(a, b string) bool {
	x, errX := url.Parse(a)
	y, errY := url.Parse(b)
	if errX != nil || errY != nil || x.Host == "" {
		return false
	}
	return canonical(x) == canonical(y)
}

func canonical(u *url.URL) string {
	c := *u
	c.Scheme, c.Host = strings.ToLower(c.Scheme), strings.ToLower(c.Host)
	if c.Path == "/" {
		c.Path = ""
	}
	return c.String()
}

// principal is who the token was issued for.
func (a *Authenticator) principal(ctx context.Context, c *claims) (auth.Principal, error) {
	subject := c.text(a.options.PrincipalClaim)
	if subject == "" {
		return auth.Principal{}, a.refused(ctx, "it does not say for whom it is")
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

// PrincipalID names the holder of a token within its workspace: "jwt:" and the
// base64url SHA-256 of issuer, claim and value, each with its length before it. A
// value is only unique at its issuer, so the issuer is part of the name; and it may be an
// address or of any length, so it is not the name itself.
func PrincipalID(issuer, claim, value string) string {
	var b []byte
	for _, part := range []string{issuer, claim, value} {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	sum := sha256.Sum256(b)
	return "jwt:" + base64.RawURLEncoding.EncodeToString(sum[:])
}

// text is the value of a claim that is one string; else "".
func (c *claims) text(name string) string {
	s, _ := jsonrpc.String(c.all[name])
	return s
}

// scopes are those of scope (RFC 9068, section 2.2.3) and of scp, which some
// servers write instead; either may be a string with spaces or an array. It returns the scopes that begin with the
// prefix, and removes the prefix.
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

// texts are the claims that an access rule can speak of: a string, a number, or an
// array of these.
func (c *claims) texts() map[string][]string {
	out := make(map[string][]string, len(c.all))
	for name, raw := range c.all {
		if v := values(raw); v != nil {
			out[name] = v
		}
	}
	return out
}

// values are the texts of a string, of a number as it is written, or of an array of
// these; nil for anything else.
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
