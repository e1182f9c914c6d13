package config

import (
	"cmp"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
)

// parser fills a configuration from the sections of a file. Its methods named read… are readers in the sense of [strictyaml.Var].
type parser struct {
	file   *strictyaml.File
	config *Config
}

// nameMembers returns a function for [strictyaml.File.Fields] that uses only the names of the members.
func nameMembers(thing string) func(member string) string {
	return func(member string) string { return cmp.Or(member, thing) }
}

// nameWithin returns a function that prefixes each member with the name of the mapping, for example "conversation: budget".
func nameWithin(mapping string) func(member string) string {
	return func(member string) string {
		if member == "" {
			return mapping
		}
		return mapping + ": " + member
	}
}

// nameAfter does the same as [nameWithin] for a list element that has a name, for example "backend github: url". While the name
// is unknown, the prefix is "a backend: url".
func nameAfter(thing string, name *string) func(member string) string {
	return func(member string) string {
		if *name == "" || member == "name" {
			return nameWithin("a " + thing)(member)
		}
		return nameWithin(thing + " " + strictyaml.Clip(*name))(member)
	}
}

// identity is the name of a thing in a workspace.
type identity struct{ workspace, name string }

// checkUnique adds a fault if an earlier element of a list has the same identity. The map has their lines.
func (p *parser) checkUnique(lines map[identity]int, id identity, n *strictyaml.Node, thing string) {
	if line := lines[id]; line > 0 && id.name != "" {
		p.file.Add(n.Line, "%s %s was already given in line %d", thing, strictyaml.Clip(id.name), line)
	}
	lines[id] = n.Line
}

// readPrincipal reads the principal of an entry, which applies to the whole workspace without one.
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

// readTime reads a time or a date in UTC.
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

// duration returns a reader of durations from least to most.
func (p *parser) duration(least, most time.Duration) func(n *strictyaml.Node, what string) time.Duration {
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

// line returns a reader of texts of a single line and at most limit bytes.
func (p *parser) line(limit int) func(n *strictyaml.Node, what string) string {
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

// withoutSecrets returns a URL for an error, without its user information and query, which may contain keys. The URL may be invalid.
func withoutSecrets(text string) string {
	text, _, _ = strings.Cut(text, "?")
	if at := strings.LastIndex(text, "@"); at >= 0 {
		return "…" + text[at:]
	}
	return text
}

// headerName is field-name of RFC 9110.
var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}$")

// ownHeaders are the headers that the gateway sets itself.
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

// carriesCredentials reports whether a header carries credentials, judging by its name.
func carriesCredentials(header string) bool {
	header = strings.ToLower(header)
	return slices.ContainsFunc([]string{"auth", "cookie", "token", "secret", "key", "password", "credential", "signature"},
		func(word string) bool { return strings.Contains(header, word) })
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

// parameterName is the name of a parameter in SSM, without a version.
var parameterName = regexp.MustCompile(`^(/[A-Za-z0-9_.-]+)+$`)

// maxParameter is the length that SSM leaves for a name, because it counts the beginning of the ARN too.
const maxParameter = 900

// readSecret reads a reference to a secret, such as env:GITHUB_TOKEN or ssm:/mcp-events/github.
func (p *parser) readSecret(n *strictyaml.Node, what string) secret.Value {
	return p.readValue(n, what, true)
}

// readValue reads a text or a reference. It refuses a text if the value is a secret, so that files contain no secrets.
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

// EnvSettings is the environment variable with the settings for which the template has no parameter, for example
// "quota=50;webhook-timeout=10s".
const EnvSettings = envPrefix + "SETTINGS"

// withSettings returns a lookup that also finds the settings in [EnvSettings]. The error is of kind fault.Invalid if a setting is
// unknown or has two values, either in EnvSettings or there and in its own variable.
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
		if fixed[name] != "" {
			continue // see LogFixed
		}
		switch own, set := lookup(EnvName(name)); {
		case !ok || value == "":
			return nil, fault.New(fault.Invalid, "%s: %.100q is not NAME=VALUE, such as quota=50", EnvSettings, part)
		case Removed(name) != nil:
			return nil, fault.Wrap(fault.Invalid, Removed(name), "%s", EnvSettings)
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

// Names returns the names of all settings, spelled like flags.
func Names() map[string]bool {
	names := map[string]bool{}
	t := reflect.TypeFor[Limits]()
	for i := range t.NumField() {
		names[t.Field(i).Tag.Get("name")] = true
	}
	return names
}

// FromNames returns limits with values by the names of their flags. All others have their defaults. It ignores the environment.
func FromNames(values map[string]string) (Limits, error) {
	known, variables := Names(), map[string]string{}
	for name, value := range values {
		switch {
		case Removed(name) != nil:
			return Limits{}, Removed(name)
		case !known[name]:
			return Limits{}, fault.New(fault.Invalid, "unknown setting %.100q", name)
		}
		variables[EnvName(name)] = value
	}
	return FromEnv(func(name string) (string, bool) { value, ok := variables[name]; return value, ok })
}
