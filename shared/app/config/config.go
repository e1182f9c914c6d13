// Package config reads the operator's configuration: the file config.yaml with keys, backends, sources, conversation and quotas, and
// the limits that are flags and environment variables.
//
// The file is read as strictly as the catalog. Parse reports all faults together, each with its line. The package reads the environment
// only through the functions that callers pass, and it creates no clients.
package config

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation/rules"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// maxSource is the largest configuration file in bytes.
const maxSource = 1 << 20

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
	f, root := strictyaml.Parse(name, src, maxSource)
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

// fingerprint returns a hash of a workspace's backends with their settings, in their order. The hash is
// empty for a workspace without backends.
func (c *Config) fingerprint(workspace string) string {
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
		return before.fingerprint(workspace) == after.fingerprint(workspace)
	})
}

// Limits of the section "conversation".
const (
	// maxProviders is the largest number of context providers.
	maxProviders = 20
	// minBudget and maxBudget limit the time within which providers must answer.
	minBudget, maxBudget = 10 * time.Millisecond, 10 * time.Second
	// minContext and maxContext limit the merged context in bytes. The largest one fits into an item of the store even if JSON
	// escapes every byte.
	minContext, maxContext = 256, 48 << 10
	// maxPriority is the highest priority of a provider, and its negative the lowest.
	maxPriority = 1000
)

func (p *parser) readConversation(n *strictyaml.Node, what string) {
	c := &p.config.Conversation
	*c = rules.Conversation{Budget: 500 * time.Millisecond, MaxContext: 32 << 10, Events: rules.Events{Workspace: auth.DefaultWorkspace}}
	p.file.Fields(n, nameWithin(what),
		strictyaml.Var("userMessages", &c.UserMessages, p.file.Bool),
		strictyaml.Var("assistantResponses", &c.AssistantResponses, p.file.Bool),
		strictyaml.Var("budget", &c.Budget, p.duration(minBudget, maxBudget)),
		strictyaml.Var("maxContext", &c.MaxContext, p.file.Int(minContext, maxContext)),
		strictyaml.Func("providers", p.readProviders),
		strictyaml.Func("events", func(n *strictyaml.Node, what string) {
			p.file.Fields(n, nameWithin(what),
				strictyaml.Var("userMessage", &c.Events.UserMessage, p.file.Bool),
				strictyaml.Var("assistantResponse", &c.Events.AssistantResponse, p.file.Bool),
				strictyaml.Var("workspace", &c.Events.Workspace, p.readWorkspace),
			)
		}),
	)
	if c.Events.UserMessage && !c.UserMessages {
		p.file.Add(n.Line, "%s: events of user messages need userMessages: true", what)
	}
	if c.Events.AssistantResponse && !c.AssistantResponses {
		p.file.Add(n.Line, "%s: events of assistant responses need assistantResponses: true", what)
	}
	slices.SortStableFunc(c.Providers, func(a, b rules.Provider) int { return cmp.Compare(b.Priority, a.Priority) })
}

func (p *parser) readProviders(n *strictyaml.Node, what string) {
	lines := map[identity]int{}
	for _, it := range p.file.Items(n, what, maxProviders) {
		v := p.readProvider(it)
		p.checkUnique(lines, identity{v.Workspace, v.Name}, it, "provider")
		p.config.Conversation.Providers = append(p.config.Conversation.Providers, v)
	}
}

func (p *parser) readProvider(n *strictyaml.Node) rules.Provider {
	v := rules.Provider{Workspace: auth.DefaultWorkspace}
	say := nameAfter("provider", &v.Name)
	given := p.file.Fields(n, say,
		strictyaml.Func("name", func(n *strictyaml.Node, what string) {
			if v.Name = p.file.Matching(backendName)(n, what); v.Name == rules.EventsProvider {
				p.file.Add(n.Line, "no provider can have the name %s, which stands for the events of conversations", rules.EventsProvider)
			}
		}),
		strictyaml.Var("title", &v.Title, p.line(200)),
		strictyaml.Var("description", &v.Description, p.line(2000)),
		strictyaml.Var("url", &v.URL, p.readURL),
		strictyaml.Var("headers", &v.Headers, p.readHeaders),
		strictyaml.Var("backend", &v.Backend, p.file.String),
		strictyaml.Var("workspace", &v.Workspace, p.readWorkspace),
		strictyaml.Var("priority", &v.Priority, p.file.Int(-maxPriority, maxPriority)),
		strictyaml.Var("principal", &v.Principal, p.file.Bool),
	)
	if given == nil {
		return v
	}
	backend := slices.IndexFunc(p.config.Backends, func(b api.Backend) bool { return b.Name == v.Backend && b.Workspace == v.Workspace })
	if backend >= 0 {
		v.BackendURL = p.config.Backends[backend].URL
	}
	_, setsPrincipal := v.Headers[rules.PrincipalHeader]
	if !given["name"] {
		p.file.Add(n.Line, "a provider has no name")
	}
	switch {
	case given["url"] == given["backend"]:
		p.file.Add(n.Line, "%s", say("either url or backend is needed"))
	case given["backend"] && given["headers"]:
		p.file.Add(n.Line, "%s", say("headers are those of the backend"))
	case given["backend"] && backend < 0:
		p.file.Add(n.Line, "%s %s does not belong to the workspace %s", say("backend"), strictyaml.Clip(v.Backend), strictyaml.Clip(v.Workspace))
	case setsPrincipal:
		p.file.Add(n.Line, "%s", say("header "+rules.PrincipalHeader+" is set by the gateway"))
	}
	return v
}
