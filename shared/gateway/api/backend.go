package api

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/gateway/rules"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
)

// Backend is the configuration of an MCP server behind the gateway.
type Backend struct {
	// Name is unique in the workspace. It has up to 64 letters, digits, - and _.
	Name string
	// URL is the http or https URL of the backend's MCP endpoint. For a backend with a Command, it is the internal address from
	// [Command.URL].
	URL string
	// Command is the program to run for the backend, or nil if the backend has an HTTP endpoint.
	Command *Command
	// Prefix goes before the names of the backend's tools and prompts, for example "gh_". It may be empty.
	Prefix    string
	Workspace string // by default the workspace "default"
	// Scopes lists the scopes that a caller needs to see the backend, in addition to the scopes that the MCP methods need.
	Scopes []string
	// Tools, Prompts and Resources are rules that say which tools, prompts and resources callers may use. The rules contain URIs, or the
	// backend's own names without the prefix. The rules for resources also apply to the text of resource templates, such as
	// file:///{path}.
	Tools, Prompts, Resources rules.Rules
	// Extensions has rules that say which of the backend's extensions callers may use. The rules contain the extensions' identifiers.
	Extensions      rules.Rules
	ProtocolVersion string // a revision of MCP, or [AutoVersion]
	// Headers are sent with each request to the backend. If the backend acts for callers (see [Backend.ActsForCallers]), requests on
	// behalf of a caller leave out the Authorization header among them.
	Headers map[string]secret.Value
	OAuth   *OAuth // may be nil
	// ForwardToken makes the gateway send the caller's own token with calls. It is off by default, because a backend that has the token
	// can act as the caller. If the configuration has no OAuth and no Authorization header, requests for the backend's lists also carry
	// the token.
	ForwardToken bool
	// Exchange makes the gateway exchange the caller's token for another one at an authorization server, and send that one to the
	// backend. It may be nil.
	Exchange *Exchange
}

// ActsForCallers reports whether calls to the backend carry credentials of the caller: the caller's token, or a token that was issued in
// exchange for it.
func (b *Backend) ActsForCallers() bool { return b.ForwardToken || b.Exchange != nil }

// EventTypes returns the prefix and the scopes of the backend's event types, and whether the backend acts for its callers.
func (b *Backend) EventTypes() catalog.BackendTypes {
	return catalog.BackendTypes{Prefix: b.Prefix, Scopes: b.Scopes, PerCaller: b.ActsForCallers()}
}

// OAuth configures the client credentials grant of a backend (RFC 6749, section 4.4).
type OAuth struct {
	TokenURL     string
	ClientID     string
	ClientSecret secret.Value
	Scopes       []string
}

// Exchange configures the token exchange of a backend (RFC 8693).
type Exchange struct {
	OAuth
	// Audience and Resource tell the authorization server for which backend the gateway requests a token. One of them may be empty.
	Audience, Resource string
	// SecretInBody makes the gateway send the client secret in the request body (client_secret_post) instead of a header
	// (client_secret_basic).
	SecretInBody bool
	// ClientKey is a private key, as PEM or JWK. The gateway authenticates itself to the authorization server with this key instead of a
	// secret (private_key_jwt). KeyID is the key's id at that server, by default the one in the JWK, and Issuer identifies the server.
	ClientKey     secret.Value
	KeyID, Issuer string
}

// Signs reports whether the gateway authenticates itself with ClientKey.
func (x *Exchange) Signs() bool { return x.ClientKey.IsReference() }

// Rules returns the backend's rules by their names in the configuration, for example "tools". It leaves out rules that permit everything.
func (b Backend) Rules() map[string]rules.Rules {
	all := map[string]rules.Rules{"tools": b.Tools, "prompts": b.Prompts, "resources": b.Resources, "extensions": b.Extensions}
	maps.DeleteFunc(all, func(_ string, r rules.Rules) bool { return r.Empty() })
	return all
}

// AutoVersion is the value of [Backend.ProtocolVersion] for a backend that the gateway asks for its MCP revision.
const AutoVersion = "auto"

// ProtocolVersions lists the MCP revisions that the configuration may set for a backend.
func ProtocolVersions() []string {
	return []string{"2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"}
}

// Command is the program of a backend that speaks MCP over standard input and output. Only a stand-alone server runs commands.
type Command struct {
	// Args has the program and its arguments. Other processes of the machine can see them, so secrets belong in Env.
	Args []string
	// Env has the command's environment variables. From the server's own environment, the command inherits only PATH and HOME.
	Env map[string]secret.Value
	Dir string // the working directory; empty means the server's
	// MemoryMiB limits the memory of each process of the command (RLIMIT_DATA); 0 means [DefaultMemoryMiB].
	MemoryMiB int
	// Idle is how long a process of the command may be unused before the server stops it; 0 means [DefaultIdle].
	Idle time.Duration
}

// Default values for fields of [Command].
const (
	DefaultMemoryMiB = 2048
	DefaultIdle      = 10 * time.Minute
)

// CommandScheme is the scheme of [Command.URL]. The configuration accepts only http and https, so no configured URL has it.
const CommandScheme = "stdio"

// URL returns the address that the gateway uses internally for a command. It contains a hash of the command's settings, so that
// the gateway treats a changed command as another server.
func (c *Command) URL(workspace, name string) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %q %q %d %s", workspace, name, c.Args, c.Dir, c.MemoryMiB, c.Idle)
	for _, variable := range slices.Sorted(maps.Keys(c.Env)) {
		fmt.Fprintf(h, " %q %s", variable, c.Env[variable].Fingerprint())
	}
	return CommandScheme + "://" + name + "/" + base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:12])
}
