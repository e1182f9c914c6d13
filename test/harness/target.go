//go:build unix

package harness

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// Target is a running system, whichever way it runs.
type Target struct {
	// Name is "stand-alone" or "local AWS".
	Name string
	// MCP and Events are the URLs of the MCP endpoint and of POST /events.
	MCP, Events string
	// Admin is the URL of the admin API, with a slash at its end.
	Admin string
	// Keys are the bearer tokens by principal; nil with --auth none.
	Keys map[string]string
}

// Caller is someone with a name and rights in a workspace.
type Caller struct {
	Principal, Workspace string
	Scopes               []string
	Claims               map[string]string
	// Expires is a date on which the key ends; empty is never.
	Expires string
	// Path lets the key be part of a URL.
	Path bool
	key  string
}

// All are the scopes of the system.
var All = []string{"events:read", "events:subscribe", "events:publish"}

// Callers returns the callers that tests use. alice and bob have all scopes of clients, reader may only read, and publisher
// may only publish. chatgpt has its key in the URL. auditor may receive the events of conversations, steward manages
// consents, and monitor is an operator. foreign has all scopes of clients in another workspace.
func Callers() []Caller {
	return []Caller{
		{Principal: "alice", Scopes: All, Claims: map[string]string{"team": "red"}},
		{Principal: "bob", Scopes: All, Claims: map[string]string{"team": "blue"}},
		{Principal: "chatgpt", Scopes: []string{"events:read", "events:subscribe"}, Path: true},
		{Principal: "reader", Scopes: []string{"events:read"}},
		{Principal: "publisher", Scopes: []string{"events:publish"}},
		{Principal: "auditor", Scopes: []string{"events:read", "events:subscribe", "conversation"}},
		{Principal: "steward", Scopes: []string{"events:read", "consent:manage"}},
		{Principal: "monitor", Scopes: []string{"events:operate"}}, // reads the metrics
		{Principal: "foreign", Workspace: "elsewhere", Scopes: All},
		{Principal: "operator", Workspace: "live", Scopes: All}, // a workspace whose catalog changes during the tests
		{Principal: "leaver", Workspace: "ending", Scopes: All}, // another such workspace
		{Principal: "shopper", Workspace: "shops", Scopes: All},
		{Principal: "victim", Workspace: "tenants", Scopes: All, Claims: map[string]string{"org": "acme"}},
		{Principal: "rival", Workspace: "tenants", Scopes: All, Claims: map[string]string{"org": "evil"}},
		{Principal: "chief", Workspace: "operated", Scopes: []string{"events:operate"}},
		{Principal: "owner", Workspace: "operated", Scopes: All},
		{Principal: "neighbour", Workspace: "operated", Scopes: All},
		{Principal: "onlooker", Workspace: "operated", Scopes: []string{"events:read", "events:publish"}},
		{Principal: "stranger", Workspace: "beside", Scopes: append([]string{"events:operate"}, All...)},
		{Principal: "outsider", Workspace: "outside", Scopes: All},
		{Principal: "mute", Workspace: "tenants", Scopes: []string{"profile"}, Claims: map[string]string{"org": "acme"}},
		{Principal: "late", Workspace: "tenants", Scopes: All, Claims: map[string]string{"org": "acme"}, Expires: "2020-01-01"},
	}
}

// SHA256 returns the hash of a key in the format of config.yaml.
func SHA256(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// keysConfig makes a key for each caller, and the section of config.yaml that
// lets them in.
func keysConfig(callers []Caller) (yaml string, keys map[string]string) {
	var b strings.Builder
	keys = map[string]string{}
	if len(callers) > 0 {
		b.WriteString("keys:\n")
	}
	for _, c := range callers {
		key := c.key
		if key == "" {
			key = "key_" + rand.Text()
		}
		keys[c.Principal] = key
		workspace := c.Workspace
		if workspace == "" {
			workspace = "default"
		}
		fmt.Fprintf(&b, "  - principal: %s\n    workspace: %s\n    scopes: [%s]\n    sha256: %s\n",
			c.Principal, workspace, strings.Join(c.Scopes, ", "), SHA256(key))
		if c.Path {
			b.WriteString("    path: true\n")
		}
		if c.Expires != "" {
			fmt.Fprintf(&b, "    expires: %q\n", c.Expires)
		}
		if len(c.Claims) > 0 {
			b.WriteString("    claims:\n")
			for k, v := range c.Claims {
				fmt.Fprintf(&b, "      %s: %s\n", k, v)
			}
		}
	}
	return b.String(), keys
}

// SameKeys are [Callers] with the keys that a server before was started with, for
// another one on its data.
func SameKeys(s *Server) []Caller {
	callers := Callers()
	for i := range callers {
		callers[i].key = s.Keys[callers[i].Principal]
	}
	return callers
}
