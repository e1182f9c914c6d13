// Package config parses the operator's configuration. It has two parts: the file config.yaml, with API keys, backends, sources,
// conversation, quotas and principals ([Config]), and the settings from flags and environment variables ([Limits]). Package config reads
// the environment only through functions that callers pass.
package config

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation/rules"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// maxSource is the maximum size of a configuration file, in bytes.
const maxSource = 1 << 20

// Config is the content of config.yaml. It is immutable, and the zero value is the content of an empty file.
type Config struct {
	// Keys are the API keys that the server accepts with --auth keys. Keys is nil if the file has no section "keys".
	Keys     []auth.Key
	Backends []api.Backend
	// Sources turn the webhooks of providers, and the messages of AWS services such as EventBridge, into events.
	Sources []source.Source
	// Conversation says which messages of conversations go to which context providers.
	Conversation rules.Conversation

	// quotas has the limits that the file sets for each principal, by the name of the quota. They replace the limits from the settings.
	// An identity with a workspace but no name stands for all principals of the workspace that have no limit of their own. A limit of 0
	// means unlimited.
	quotas map[identity]map[string]float64
	// profiles has the MCP Events profile that the file sets for each principal. An identity without a name stands for all other
	// principals of the workspace, as in quotas.
	profiles map[identity]spec.Profile
	file     string // the name of the file, for messages
	source   []byte
}

// Parse parses a configuration file. An empty file is an empty configuration. Parse reports all faults together: the error is of kind
// fault.Invalid and has a line for each fault, for example "config.yaml:3: backend a: url is missing".
func Parse(src []byte) (*Config, error) { return ParseFile("config.yaml", src) }

// ParseFile does the same as [Parse]. In error messages it uses the given file name instead of config.yaml.
func ParseFile(name string, src []byte) (*Config, error) { return parse(name, src, false) }

func parse(name string, src []byte, stored bool) (*Config, error) {
	if isBlank(src) {
		return &Config{file: name, source: src}, nil
	}
	f, root := strictyaml.Parse(name, src, maxSource)
	p := parser{file: f, stored: stored, config: &Config{file: name, source: slices.Clone(src)}}
	if root != nil {
		f.Fields(root, nameMembers("the configuration"),
			strictyaml.Func("keys", p.readKeys),
			strictyaml.Func("backends", p.readBackends),
			strictyaml.Func("sources", p.readSources),
			strictyaml.Func("conversation", p.readConversation), // after the backends, because context providers refer to backends
			strictyaml.Func("quotas", p.readQuotas),
			strictyaml.Func("principals", p.readPrincipals),
		)
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	return p.config, nil
}

// Locate adds the name of the configuration file to the beginning of each line of an error.
func (c *Config) Locate(err error) error {
	if err == nil {
		return nil
	}
	before := cmp.Or(c.file, "the configuration") + ": "
	return &fault.Error{Kind: fault.KindOf(err), Message: before + strings.ReplaceAll(err.Error(), "\n", "\n"+before)}
}

// Empty reports whether the file has no text at all, not even comments.
func (c *Config) Empty() bool { return len(bytes.TrimSpace(c.source)) == 0 }

// isBlank reports whether a file has only comments and blank lines.
func isBlank(src []byte) bool {
	for line := range strings.Lines(string(src)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			return false
		}
	}
	return true
}

// fingerprint returns a hash of a workspace's backends and their settings. The hash changes if a backend, a setting or the order of the
// backends changes. It is empty for a workspace without backends.
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

func findChangedWorkspaces(before, after *Config) []string {
	var all []string
	for _, b := range slices.Concat(before.Backends, after.Backends) {
		all = append(all, b.Workspace)
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(workspace string) bool {
		return before.fingerprint(workspace) == after.fingerprint(workspace)
	})
}

// These limits apply to the values in the section "conversation".
const (
	maxProviders = 20
	// minBudget and maxBudget limit the time within which context providers must answer.
	minBudget, maxBudget = 10 * time.Millisecond, 10 * time.Second
	// minContext and maxContext limit the setting "maxContext", which is how many bytes of context all providers together may add to a
	// message. An item of the store has at most 400 KB. Even the largest context fits if JSON writes each of its bytes as six, such as
	// \u0000.
	minContext, maxContext = 256, 48 << 10
	maxPriority            = 1000
)

func (p *parser) readConversation(n *strictyaml.Node, what string) {
	c := &p.config.Conversation
	*c = rules.Conversation{Budget: 500 * time.Millisecond, MaxContext: 32 << 10, Events: rules.Events{Workspace: auth.DefaultWorkspace}}
	p.file.Fields(n, nameWithin(what),
		strictyaml.Var("userMessages", &c.UserMessages, p.file.Bool),
		strictyaml.Var("assistantResponses", &c.AssistantResponses, p.file.Bool),
		strictyaml.Var("budget", &c.Budget, p.readDuration(minBudget, maxBudget)),
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
	// Use package sort here. slices.SortStableFunc would make the binary of functions/register 3 KB larger, and the size of that binary
	// is limited.
	sort.SliceStable(c.Providers, func(i, j int) bool { return c.Providers[i].Priority > c.Providers[j].Priority })
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
		strictyaml.Var("title", &v.Title, p.readLine(200)),
		strictyaml.Var("description", &v.Description, p.readLine(2000)),
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

// parser fills a configuration from the sections of a file. Most of its methods whose names begin with "read" can be passed to
// [strictyaml.Var] or [strictyaml.Func].
type parser struct {
	file   *strictyaml.File
	config *Config
	stored bool // the text was stored by this or an earlier version, whose checks it passed
}

// nameMembers returns a function that names the members of a mapping in error messages, for [strictyaml.File.Fields]. A member is called
// by its own name, for example "principal". The mapping itself is called by the text in the parameter thing, for example "a key".
func nameMembers(thing string) func(member string) string {
	return func(member string) string { return cmp.Or(member, thing) }
}

// nameWithin does the same as [nameMembers], but begins each name with the name of the mapping, for example "conversation: budget".
func nameWithin(mapping string) func(member string) string {
	return func(member string) string {
		if member == "" {
			return mapping
		}
		return mapping + ": " + member
	}
}

// nameAfter does the same as [nameWithin] for an element of a list. Error messages begin with the name of the element, for example
// "backend github: url". Until this name has been read, they begin with "a backend".
//
// The parameter name points to the variable that receives the element's name.
func nameAfter(thing string, name *string) func(member string) string {
	return func(member string) string {
		if *name == "" || member == "name" {
			return nameWithin("a " + thing)(member)
		}
		return nameWithin(thing + " " + strictyaml.Clip(*name))(member)
	}
}

type identity struct{ workspace, name string }

// checkUnique adds a fault if an earlier element of a list has the same workspace and name. The parameter lines has the line numbers of
// the earlier elements. The parameter thing says what the element is, for example a "backend".
func (p *parser) checkUnique(lines map[identity]int, id identity, n *strictyaml.Node, thing string) {
	if line := lines[id]; line > 0 && id.name != "" {
		p.file.Add(n.Line, "%s %s was already given in line %d", thing, strictyaml.Clip(id.name), line)
	}
	lines[id] = n.Line
}

// readPrincipal reads the name of a principal. It refuses an empty name, because an entry without a name applies to all principals of the
// workspace.
func (p *parser) readPrincipal(n *strictyaml.Node, what string) string {
	s, ok := p.file.Text(n, what)
	if ok && s == "" {
		p.file.Add(n.Line, "%s: must not be empty; leave it out for each principal of the workspace", what)
	}
	return s
}

func (p *parser) readWorkspace(n *strictyaml.Node, what string) string {
	s, ok := p.file.Text(n, what)
	if ok && !auth.ValidWorkspace(s) {
		p.file.Add(n.Line, "%s: %q is not the name of a workspace", what, strictyaml.Clip(s))
	}
	return s
}

func (p *parser) readScopes(n *strictyaml.Node, what string) []string {
	scopes := p.file.Strings(n, what)
	for _, s := range scopes {
		if s == "" || strings.ContainsAny(s, " \t\"\\") {
			p.file.Add(n.Line, "%s: %q is not an OAuth scope", what, strictyaml.Clip(s))
		}
	}
	return scopes
}

// readTime reads a time, or a date, which means midnight UTC. For any other value, it adds a fault and returns the zero time. The
// parameter what is the name of the setting for the fault's message.
func (p *parser) readTime(n *strictyaml.Node, what string) time.Time {
	s, ok := p.file.Text(n, what)
	if !ok {
		return time.Time{}
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			return t
		}
	}
	p.file.Add(n.Line, "%s: %q is not a time such as 2027-01-31T00:00:00Z or date such as 2027-01-31 (UTC)", what, strictyaml.Clip(s))
	return time.Time{}
}

// readDuration returns a function that reads a duration between the parameters least and most.
func (p *parser) readDuration(least, most time.Duration) func(n *strictyaml.Node, what string) time.Duration {
	return func(n *strictyaml.Node, what string) time.Duration {
		s, ok := p.file.Text(n, what)
		d, err := time.ParseDuration(s)
		if ok && (err != nil || d < least || d > most) {
			p.file.Add(n.Line, "%s: %q is not a duration from %v to %v, such as 500ms", what, strictyaml.Clip(s), least, most)
		}
		return d
	}
}

var controls = regexp.MustCompile(`[\x00-\x1f\x7f-\x9f\x{2028}\x{2029}]`)

// readLine returns a function that reads a text of a single line with at most limit bytes.
func (p *parser) readLine(limit int) func(n *strictyaml.Node, what string) string {
	return func(n *strictyaml.Node, what string) string {
		s := strings.TrimSpace(p.file.String(n, what))
		switch {
		case len(s) > limit:
			p.file.Add(n.Line, "%s is longer than %d bytes", what, limit)
		case controls.MatchString(s):
			p.file.Add(n.Line, "%s must be one line without control characters", what)
		}
		return s
	}
}

func (p *parser) readURL(n *strictyaml.Node, what string) string {
	s, ok := p.file.Text(n, what)
	if !ok {
		return ""
	}
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || len(s) > 2048:
		p.file.Add(n.Line, "%s: %q is not an http or https URL", what, strictyaml.Clip(withoutSecrets(s)))
	case u.User != nil:
		p.file.Add(n.Line, "%s must not hold a password; use headers", what)
	case u.Fragment != "":
		p.file.Add(n.Line, "%s must not have a fragment", what)
	}
	return s
}

// withoutSecrets returns a URL without its user information and its query, because these may contain keys. The URL may be invalid.
func withoutSecrets(text string) string {
	text, _, _ = strings.Cut(text, "?")
	if at := strings.LastIndex(text, "@"); at >= 0 {
		return "…" + text[at:]
	}
	return text
}

// headerName matches the name of an HTTP header (field-name in RFC 9110), up to 128 characters.
var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}$")

// ownHeaders lists the HTTP headers that the gateway sets itself. The configuration of a backend must not set these headers.
var ownHeaders = []string{
	"Accept", "Connection", "Content-Length", "Content-Type", "Host", "Last-Event-Id", "Mcp-Method", "Mcp-Name",
	"Mcp-Protocol-Version", "Mcp-Session-Id", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

func (p *parser) readHeaders(n *strictyaml.Node, what string) map[string]secret.Value {
	what = strings.TrimSuffix(what, "s")
	out := map[string]secret.Value{}
	for _, m := range p.file.Members(n, what) {
		name := http.CanonicalHeaderKey(m.Key)
		_, twice := out[name]
		switch {
		case !headerName.MatchString(m.Key):
			p.file.Add(m.Line, "%s: %q is not a header name", what, strictyaml.Clip(m.Key))
			continue
		case slices.Contains(ownHeaders, name):
			p.file.Add(m.Line, "%s: %s is set by the gateway", what, name)
			continue
		case twice:
			p.file.Add(m.Line, "%s: %s is given twice", what, name)
			continue
		}
		out[name] = p.readValue(m.Value, what+" "+name, carriesCredentials(name))
	}
	return out
}

func carriesCredentials(header string) bool {
	header = strings.ToLower(header)
	return slices.ContainsFunc([]string{"auth", "cookie", "token", "secret", "key", "password", "credential", "signature"},
		func(word string) bool { return strings.Contains(header, word) })
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

// parameterName matches the name of a parameter in SSM Parameter Store.
var parameterName = regexp.MustCompile(`^(/[A-Za-z0-9_.-]+)+$`)

// maxParameter is the maximum length of a parameter's name in bytes. SSM allows 1,011 characters for the name together with the
// part of the ARN before it, for example arn:aws:ssm:eu-central-1:123456789012:parameter.
const maxParameter = 900

// readSecret reads a reference to a secret, for example env:GITHUB_TOKEN (an environment variable) or ssm:/mcp-events/github (a parameter
// in SSM).
func (p *parser) readSecret(n *strictyaml.Node, what string) secret.Value {
	return p.readValue(n, what, true)
}

// readValue reads a text, or a reference to a secret such as env:GITHUB_TOKEN. If isSecret is true, only a reference is allowed,
// so that files contain no secrets.
func (p *parser) readValue(n *strictyaml.Node, what string, isSecret bool) secret.Value {
	s := p.file.String(n, what)
	if name, ok := strings.CutPrefix(s, "env:"); ok {
		if !envName.MatchString(name) {
			p.file.Add(n.Line, "%s: %q is not the name of an environment variable", what, strictyaml.Clip(name))
		}
		return secret.Env(name)
	}
	if name, ok := strings.CutPrefix(s, "ssm:"); ok {
		if !parameterName.MatchString(name) || len(name) > maxParameter {
			p.file.Add(n.Line, "%s: %q is not the name of a parameter such as /mcp-events/name", what, strictyaml.Clip(name))
		}
		return secret.SSM(name)
	}
	switch {
	case isSecret && s != "":
		p.file.Add(n.Line, "%s: a secret must not stand in this file; refer to an environment variable as env:NAME, or on AWS to a parameter as ssm:/NAME", what)
		return secret.Value{}
	case len(s) > 8192 || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
		p.file.Add(n.Line, "%s: the text is too long or has control characters", what)
	}
	return secret.Plain(s)
}

// EnvSettings is an environment variable that holds several settings, for example "quota=50;webhook-timeout=10s". It is for settings that
// are not parameters of template.yaml.
const EnvSettings = envPrefix + "SETTINGS"

// withSettings returns a lookup function that finds environment variables, and also the settings in [EnvSettings]. If a setting in
// EnvSettings is unknown or given twice, the error is of kind fault.Invalid. The same applies to a setting that also has an environment
// variable of its own.
func withSettings(lookup func(string) (string, bool)) (func(string) (string, bool), error) {
	text, _ := lookup(EnvSettings)
	if strings.TrimSpace(text) == "" {
		return lookup, nil
	}
	known := Names()
	given := map[string]string{}
	for part := range strings.SplitSeq(text, ";") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		name, value, ok := strings.Cut(part, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if isIgnored(name) {
			continue
		}
		switch own, set := lookup(EnvName(name)); {
		case !ok || value == "":
			return nil, fault.New(fault.Invalid, "%s: %.100q is not NAME=VALUE, such as quota=50", EnvSettings, part)
		case CheckNotRemoved(name) != nil:
			return nil, fault.Wrap(fault.Invalid, CheckNotRemoved(name), "%s", EnvSettings)
		case !known[name]:
			return nil, fault.New(fault.Invalid, "%s: unknown setting %.100q", EnvSettings, name)
		case given[EnvName(name)] != "":
			return nil, fault.New(fault.Invalid, "%s: %s is given twice", EnvSettings, name)
		case set && own != "":
			return nil, fault.New(fault.Invalid, "%s: %s is also set to %.100q by its own parameter or variable", EnvSettings, name, own)
		}
		given[EnvName(name)] = value
	}
	return func(name string) (string, bool) {
		if value, ok := given[name]; ok {
			return value, true
		}
		return lookup(name)
	}, nil
}

// Names returns the names of all settings, in the spelling of their flags.
func Names() map[string]bool {
	names := map[string]bool{}
	t := reflect.TypeFor[Limits]()
	for i := range t.NumField() {
		if name := t.Field(i).Tag.Get("name"); name != "" {
			names[name] = true
		}
	}
	return names
}

// FromNames returns the limits with the given values. The keys of the map are the names of flags, for example {"quota": "50"}. Limits
// that are not in the map have their defaults. FromNames ignores the environment.
func FromNames(values map[string]string) (Limits, error) {
	known, variables := Names(), map[string]string{}
	for name, value := range values {
		switch {
		case CheckNotRemoved(name) != nil:
			return Limits{}, CheckNotRemoved(name)
		case !known[name]:
			return Limits{}, fault.New(fault.Invalid, "unknown setting %.100q", name)
		}
		variables[EnvName(name)] = value
	}
	return FromEnv(func(name string) (string, bool) { value, ok := variables[name]; return value, ok })
}
