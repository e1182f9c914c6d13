// Package config reads the operator's configuration: the file config.yaml (keys,
// backends, sources, conversation) and the limits that are flags and environment variables.
//
// The file is read as strictly as the catalog: every fault has its line, all are
// found at once. Nothing here reads the environment unless it is
// asked to, or makes a client; main.go and cmd/ do, and pass on what they read.
package config

import (
	"bytes"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation/rules"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// MaxSource is the largest configuration file in bytes.
const MaxSource = 1 << 20

// MaxBackends is the largest number of backends.
const MaxBackends = 100

// Config is the content of config.yaml. The zero value is an empty file. It must
// not be changed.
type Config struct {
	// Keys are the static keys of --auth keys.
	Keys []auth.Key
	// Backends are the MCP servers behind the gateway.
	Backends []api.Backend
	// Sources are where events come from, beside who publishes them.
	Sources []source.Source
	// Conversation is who gets what is said in conversations; the zero value is no one.
	Conversation rules.Conversation

	// quotas are limits of a principal of a workspace or, without a name, of each of them that has none of its own. They
	// take the place of the settings. A rate of 0 is no limit.
	quotas map[place]map[string]float64
	// profiles has the profiles of principals and, without a name, of workspaces.
	profiles map[place]spec.Profile
	source   []byte
}

// Parse reads a configuration file. Every fault is found in one go: the error is
// of kind fault.Invalid with a line for each ("config.yaml:3: …"). An empty file is
// an empty configuration.
func Parse(src []byte) (*Config, error) { return ParseFile("config.yaml", src) }

// ParseFile is [Parse] with the name that messages give the file.
func ParseFile(name string, src []byte) (*Config, error) {
	if blank(src) {
		return &Config{source: src}, nil
	}
	f, root := strictyaml.Parse(name, src, MaxSource)
	p := parser{reader: reader{f}, config: &Config{source: slices.Clone(src)}}
	if root != nil {
		var talk *strictyaml.Node
		p.fields(root, "the configuration", plain,
			field{"keys", p.keys},
			field{"backends", p.backends},
			field{"sources", p.sources},
			field{"conversation", func(n *strictyaml.Node, _ string) { talk = n }},
			field{"quotas", p.quotas},
			field{"principals", p.principals},
		)
		if talk != nil { // which may name backends
			p.conversation(talk)
		}
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	return p.config, nil
}

// Empty reports whether the file of the configuration has no text at all, not even comments.
func (c *Config) Empty() bool { return len(bytes.TrimSpace(c.source)) == 0 }

// blank reports whether a file holds nothing but comments.
func blank(src []byte) bool {
	for line := range strings.Lines(string(src)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			return false
		}
	}
	return true
}

// parser fills a configuration from the parts of a file.
type parser struct {
	reader
	config *Config
}

func (p *parser) keys(n *strictyaml.Node, _ string) {
	seen := map[string]int{}
	for _, it := range p.items(n, `"keys"`, "keys", auth.MaxKeys) {
		k := p.key(it)
		hash := strings.ToLower(k.SHA256)
		if line := seen[hash]; line > 0 {
			p.file.Add(it.Line, "a key: the same sha256 was already given in line %d", line)
		}
		seen[hash] = it.Line
		p.config.Keys = append(p.config.Keys, k)
	}
}

func (p *parser) key(n *strictyaml.Node) auth.Key {
	k := auth.Key{Workspace: auth.DefaultWorkspace}
	before := p.file.Count()
	p.fields(n, "a key", plain,
		field{"principal", into(&k.Principal, p.file.String)},
		field{"workspace", into(&k.Workspace, p.file.String)},
		field{"scopes", func(n *strictyaml.Node, what string) {
			k.Scopes = p.scopes(n, what)
			p.misspelt(n, k.Scopes)
		}},
		field{"sha256", into(&k.SHA256, p.file.String)},
		field{"expires", into(&k.Expires, p.time)},
		field{"path", into(&k.Path, p.file.Bool)},
		field{"claims", func(n *strictyaml.Node, what string) {
			k.Claims = map[string]string{}
			for _, c := range p.file.Members(n, what) {
				k.Claims[c.Key] = p.file.String(c.Value, "claim "+strictyaml.Clip(c.Key))
			}
		}},
	)
	if p.file.Count() == before {
		if err := k.Check(); err != nil {
			p.file.Add(n.Line, "a key: %v", err)
		}
	}
	return k
}

// misspelt finds scopes of a key that are meant to be ones of ours. All others are for the catalog
// and the backends to ask for.
func (p *parser) misspelt(n *strictyaml.Node, scopes []string) {
	known := append(auth.Scopes(), auth.ScopeManage, auth.ScopeOperate)
	for _, s := range scopes {
		if slices.Contains(known, s) {
			continue
		}
		ours := strings.HasPrefix(strings.ToLower(s), "events:")
		if ours || slices.ContainsFunc(known, func(k string) bool { return distance(strings.ToLower(s), k) <= maxMisspelt }) {
			p.file.Add(n.Line, "scopes: %q is not known (known: %s, and what event types and backends ask for)", strictyaml.Clip(s), strings.Join(known, ", "))
		}
	}
}

// maxMisspelt is how many edits away from a scope of ours a text is taken for it.
const maxMisspelt = 2

// distance is the number of letters to insert, remove or replace between two texts (Levenshtein).
func distance(a, b string) int {
	if d := len(a) - len(b); d > maxMisspelt || -d > maxMisspelt { // far enough, and a may be long
		return maxMisspelt + 1
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			above := row[j+1]
			if a[i] == b[j] {
				row[j+1] = diagonal
			} else {
				row[j+1] = 1 + min(diagonal, above, row[j])
			}
			diagonal = above
		}
	}
	return row[len(b)]
}

func (r reader) time(n *strictyaml.Node, what string) time.Time {
	s := r.file.String(n, what)
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			return t
		}
	}
	if s != "" {
		r.file.Add(n.Line, "%s: %q is not a time such as 2027-01-31T00:00:00Z or date such as 2027-01-31 (UTC)", what, strictyaml.Clip(s))
	}
	return time.Time{}
}

func (p *parser) backends(n *strictyaml.Node, _ string) {
	given := places{}
	for _, it := range p.items(n, `"backends"`, "backends", MaxBackends) {
		b := p.backend(it)
		p.once(given, place{b.Workspace, b.Name}, it, "backend")
		p.config.Backends = append(p.config.Backends, b)
	}
}

// headerName is field-name of RFC 9110.
var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}$")

// ownHeaders are set by the gateway itself.
var ownHeaders = []string{
	"Accept", "Connection", "Content-Length", "Content-Type", "Host", "Last-Event-Id", "Mcp-Method", "Mcp-Name",
	"Mcp-Protocol-Version", "Mcp-Session-Id", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

func (r reader) headers(n *strictyaml.Node, what string) map[string]secret.Value {
	what = strings.TrimSuffix(what, "s")
	out := map[string]secret.Value{}
	for _, m := range r.file.Members(n, what) {
		name := http.CanonicalHeaderKey(m.Key)
		_, twice := out[name]
		switch {
		case !headerName.MatchString(m.Key):
			r.file.Add(m.Line, "%s: %q is not a header name", what, strictyaml.Clip(m.Key))
			continue
		case slices.Contains(ownHeaders, name):
			r.file.Add(m.Line, "%s: %s is set by the gateway", what, name)
			continue
		case twice:
			r.file.Add(m.Line, "%s: %s is given twice", what, name)
			continue
		}
		out[name] = r.value(m.Value, what+" "+name, secretHeader(name))
	}
	return out
}

// secretHeader reports whether a header carries credentials, by its name.
func secretHeader(name string) bool {
	name = strings.ToLower(name)
	for _, s := range []string{"auth", "cookie", "token", "secret", "key", "password", "credential", "signature"} {
		if strings.Contains(name, s) {
			return true
		}
	}
	return false
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

// parameterName is what SSM allows, without a version.
var parameterName = regexp.MustCompile(`^(/[A-Za-z0-9_.-]+)+$`)

// maxParameter is the length of a name that SSM allows, its ARN's beginning counted.
const maxParameter = 900

// secret reads a reference.
func (r reader) secret(n *strictyaml.Node, what string) secret.Value { return r.value(n, what, true) }

// value reads a text or a reference; a secret must be a reference.
func (r reader) value(n *strictyaml.Node, what string, mustRefer bool) secret.Value {
	s := r.file.String(n, what)
	if name, ok := strings.CutPrefix(s, "env:"); ok {
		if !envName.MatchString(name) {
			r.file.Add(n.Line, "%s: %q is not the name of an environment variable", what, strictyaml.Clip(name))
		}
		return secret.Env(name)
	}
	if name, ok := strings.CutPrefix(s, "ssm:"); ok {
		if !parameterName.MatchString(name) || len(name) > maxParameter {
			r.file.Add(n.Line, "%s: %q is not the name of a parameter such as /mcp-events/name", what, strictyaml.Clip(name))
		}
		return secret.SSM(name)
	}
	switch {
	case mustRefer && s != "":
		r.file.Add(n.Line, "%s: a secret must not stand in this file; refer to an environment variable as env:NAME, or on AWS to a parameter as ssm:/NAME", what)
		return secret.Value{}
	case len(s) > 8192 || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
		r.file.Add(n.Line, "%s: the text is too long or has control characters", what)
	}
	return secret.Plain(s)
}
