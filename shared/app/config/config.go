// Package config reads the operator's configuration: the file config.yaml with keys, backends, sources, conversation and quotas, and
// the limits that are flags and environment variables.
//
// The file is read as strictly as the catalog. Parse reports all faults together, each with its line. The package reads the environment
// only through the functions that callers pass, and it creates no clients.
package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash"
	"maps"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation/rules"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// MaxSource is the largest configuration file in bytes.
const MaxSource = 1 << 20

// Config is the content of config.yaml. It is immutable, and the zero value is the content of an empty file.
type Config struct {
	// Keys are the static keys of --auth keys.
	Keys []auth.Key
	// Backends are the MCP servers behind the gateway.
	Backends []api.Backend
	// Sources are the webhooks and buses from which the server receives events.
	Sources []source.Source
	// Conversation names the receivers of conversation messages. The default is an empty list.
	Conversation rules.Conversation

	// quotas has the quotas of principals and, without a name, of workspaces. They replace the limits from the settings. A rate of
	// 0 is unlimited.
	quotas map[identity]map[string]float64
	// profiles has the profiles of principals and, without a name, of workspaces.
	profiles map[identity]spec.Profile
	source   []byte
}

// Parse reads a configuration file. It reports all faults together: the error is of kind fault.Invalid and has a line for each fault,
// for example "config.yaml:3: backend a: url is missing". An empty file is an empty configuration.
func Parse(src []byte) (*Config, error) { return ParseFile("config.yaml", src) }

// ParseFile does the same as [Parse], with another file name in messages.
func ParseFile(name string, src []byte) (*Config, error) {
	if isBlank(src) {
		return &Config{source: src}, nil
	}
	f, root := strictyaml.Parse(name, src, MaxSource)
	p := parser{file: f, config: &Config{source: slices.Clone(src)}}
	if root != nil {
		f.Fields(root, nameMembers("the configuration"),
			strictyaml.Func("keys", p.readKeys),
			strictyaml.Func("backends", p.readBackends),
			strictyaml.Func("sources", p.readSources),
			strictyaml.Func("conversation", p.readConversation), // after the backends, which providers refer to
			strictyaml.Func("quotas", p.readQuotas),
			strictyaml.Func("principals", p.readPrincipals),
		)
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	return p.config, nil
}

// Empty reports whether the file of the configuration has no text at all, not even comments.
func (c *Config) Empty() bool { return len(bytes.TrimSpace(c.source)) == 0 }

// isBlank reports whether a file has only comments.
func isBlank(src []byte) bool {
	for line := range strings.Lines(string(src)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			return false
		}
	}
	return true
}

// Fingerprint returns a hash of a workspace's backends with their settings, in their order. The hash is
// empty for a workspace without backends.
func (c *Config) Fingerprint(workspace string) string {
	var h hash.Hash
	for _, b := range c.Backends {
		if b.Workspace != workspace {
			continue
		}
		if h == nil {
			h = sha256.New()
		}
		writeBackend(h, b)
	}
	if h == nil {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

func writeBackend(h hash.Hash, b api.Backend) {
	fmt.Fprintf(h, "%q %q %q %q %q %t", b.Name, b.URL, b.Prefix, b.Scopes, b.ProtocolVersion, b.ForwardToken)
	fmt.Fprintf(h, " %q %q %q %q", b.Tools, b.Prompts, b.Resources, b.Extensions)
	for _, name := range slices.Sorted(maps.Keys(b.Headers)) {
		fmt.Fprintf(h, " %q %s", name, b.Headers[name].Fingerprint())
	}
	if o := b.OAuth; o != nil {
		fmt.Fprintf(h, " oauth %q %q %q %s", o.TokenURL, o.ClientID, o.Scopes, o.ClientSecret.Fingerprint())
	}
	if x := b.Exchange; x != nil {
		fmt.Fprintf(h, " exchange %q %q %q %s %q %q %t", x.TokenURL, x.ClientID, x.Scopes, x.ClientSecret.Fingerprint(), x.Audience, x.Resource, x.SecretInBody)
		fmt.Fprintf(h, " %s %q %q", x.ClientKey.Fingerprint(), x.KeyID, x.Issuer)
	}
	fmt.Fprintln(h)
}

// changedBackends returns the workspaces whose backends differ between two configurations.
func changedBackends(before, after *Config) []string {
	var all []string
	for _, b := range slices.Concat(before.Backends, after.Backends) {
		all = append(all, b.Workspace)
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(workspace string) bool {
		return before.Fingerprint(workspace) == after.Fingerprint(workspace)
	})
}
