// Package auth says who is calling and what they may do.
//
// An [Authenticator] turns the headers of a request into a [Principal], who
// belongs to one workspace and holds scopes. The access rules of events belong to package catalog. This package knows no request
// bodies, no store and no protocol. Callers translate the kinds fault.Unauthenticated and fault.Forbidden into 401 and 403 with
// [Challenge].
package auth

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// The general scopes. Catalog entries may ask for more.
const (
	ScopeRead      = "events:read"      // list, read, listen, poll
	ScopeSubscribe = "events:subscribe" // webhooks
	ScopePublish   = "events:publish"   // publish
)

// ScopeManage lets an operator see, give and revoke the consents of other principals of
// the workspace. It is no general one: no principal has it unless it is granted.
const ScopeManage = "consent:manage"

// ScopeOperate lets an operator see and steer all of the workspace: the admin API. It is no
// general one either, so that clients do not ask for it with the others.
const ScopeOperate = "events:operate"

// Scopes lists the general scopes in a stable order.
func Scopes() []string { return []string{ScopeRead, ScopeSubscribe, ScopePublish} }

// DefaultWorkspace is where everything belongs that names no workspace.
const DefaultWorkspace = "default"

// AnonymousID is the principal of [None].
const AnonymousID = "anonymous"

// Principal is who makes a request. The zero value may do nothing.
type Principal struct {
	// ID names the principal within the workspace.
	ID string
	// Workspace is the tenant; a principal sees nothing of another one.
	Workspace string
	// Scopes are what the caller was granted.
	Scopes []string
	// Claims are the claims of the caller's token whose values are strings. The access rules of the catalog use them.
	Claims map[string][]string
	// Expires is when the caller has to authenticate again; zero is never. A stream
	// ends then.
	Expires time.Time
	// ByPath says that the key of the caller may be part of a URL; see [SecretPath].
	ByPath bool
	// Anonymous is true for the one principal of [None], which is not authenticated.
	Anonymous bool
}

// Has reports whether the principal holds all the scopes.
func (p Principal) Has(scopes ...string) bool { return len(p.missing(scopes)) == 0 }

func (p Principal) missing(scopes []string) []string {
	var out []string
	for _, s := range scopes {
		if !slices.Contains(p.Scopes, s) && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// MissingScopes is the data of a fault.Forbidden for want of scopes: all that are
// missing, so that a client asks for them once (RFC 6750, section 3.1).
type MissingScopes struct {
	Scopes []string `json:"missingScopes"`
}

// Require is nil if the principal holds all the scopes, else of kind
// fault.Forbidden with [MissingScopes].
func (p Principal) Require(scopes ...string) error {
	missing := p.missing(scopes)
	if len(missing) == 0 {
		return nil
	}
	return fault.New(fault.Forbidden, "this needs the scope %s", strings.Join(missing, " ")).
		With(MissingScopes{missing})
}

// Authenticator finds out who makes a request. An error is of kind
// fault.Unauthenticated when the caller did not say validly who it is, and of kind
// fault.Unavailable when that cannot be found out now.
type Authenticator interface {
	Authenticate(ctx context.Context, h http.Header) (Principal, error)
}

type none struct{ principal Principal }

// None authenticates no caller: everyone is the principal "anonymous" of the
// default workspace with all general scopes, and its operator. It must not listen to the
// network; see [CheckListen].
func None() Authenticator {
	return none{Principal{ID: AnonymousID, Workspace: DefaultWorkspace, Scopes: append(Scopes(), ScopeOperate), Anonymous: true}}
}

func (n none) Authenticate(context.Context, http.Header) (Principal, error) { return n.principal, nil }

// Mode is the value of --auth.
type Mode string

// The modes.
const (
	ModeNone Mode = "none"
	ModeKeys Mode = "keys"
	ModeJWT  Mode = "jwt"
)

// CheckListen refuses to serve a mode without authentication on an address that
// other machines may reach: only loopback addresses and "localhost" pass. Without
// a host, an address means all interfaces. Other modes may listen anywhere.
func CheckListen(addr string, mode Mode) error {
	if mode != ModeNone {
		return nil
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fault.New(fault.Invalid, "the address %q is not HOST:PORT", addr)
	}
	if Loopback(host) {
		return nil
	}
	return fault.New(fault.Invalid,
		"--auth none is for this machine only, and %q is not a loopback address; listen on 127.0.0.1 or use --auth keys or jwt", addr)
}

// Bearer takes the token of an Authorization header (RFC 6750, section 2.1). A
// request without one is [ErrNoToken]; one with several, or with a token of over 16 KiB, is
// refused, also with fault.Unauthenticated. Tokens are not taken from the URL, but see [SecretPath].
func Bearer(h http.Header) (string, error) {
	values := h.Values("Authorization")
	if len(values) == 0 {
		return "", ErrNoToken
	}
	if len(values) > 1 {
		return "", fault.New(fault.Unauthenticated, "more than one Authorization header was sent")
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" || strings.ContainsAny(token, " \t") || len(token) > maxToken {
		return "", ErrInvalidToken
	}
	return token, nil
}

// maxToken bounds what is hashed or parsed before anybody is known.
const maxToken = 16 << 10

// ErrNoToken says that the request carries no credentials at all, for which
// [Challenge] names no error (RFC 6750, section 3).
var ErrNoToken = fault.New(fault.Unauthenticated, "authentication is required")

// ErrInvalidToken is one error for every wrong token: unknown, expired, malformed.
var ErrInvalidToken = fault.New(fault.Unauthenticated, "the token is not valid")
