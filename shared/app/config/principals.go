package config

import (
	"cmp"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

func (p *parser) readKeys(n *strictyaml.Node, what string) {
	lines := map[string]int{}
	for _, it := range p.file.Items(n, what, auth.MaxKeys) {
		k := p.readKey(it)
		hash := strings.ToLower(k.SHA256)
		if line := lines[hash]; line > 0 {
			p.file.Add(it.Line, "a key: the same sha256 was already given in line %d", line)
		}
		lines[hash] = it.Line
		p.config.Keys = append(p.config.Keys, k)
	}
}

func (p *parser) readKey(n *strictyaml.Node) auth.Key {
	k := auth.Key{Workspace: auth.DefaultWorkspace}
	before := p.file.Count()
	p.file.Fields(n, nameMembers("a key"),
		strictyaml.Var("principal", &k.Principal, p.file.String),
		strictyaml.Var("workspace", &k.Workspace, p.file.String),
		strictyaml.Func("scopes", func(n *strictyaml.Node, what string) {
			k.Scopes = p.readScopes(n, what)
			p.checkSpelling(n, k.Scopes)
		}),
		strictyaml.Var("sha256", &k.SHA256, p.file.String),
		strictyaml.Var("expires", &k.Expires, p.readTime),
		strictyaml.Var("path", &k.Path, p.file.Bool),
		strictyaml.Func("claims", func(n *strictyaml.Node, what string) {
			k.Claims = map[string]string{}
			for _, c := range p.file.Members(n, what) {
				k.Claims[c.Key] = p.file.String(c.Value, "claim "+strictyaml.Clip(c.Key))
			}
		}),
	)
	if p.file.Count() == before {
		if err := k.Check(); err != nil {
			p.file.Add(n.Line, "a key: %v", err)
		}
	}
	return k
}

// checkSpelling adds a fault for each unknown scope that looks like a misspelled known one, for example events:raed. An event type or
// a backend may require any other scope.
func (p *parser) checkSpelling(n *strictyaml.Node, scopes []string) {
	known := append(auth.Scopes(), auth.ScopeManage, auth.ScopeOperate)
	for _, s := range scopes {
		if slices.Contains(known, s) {
			continue
		}
		lower := strings.ToLower(s)
		if strings.HasPrefix(lower, "events:") || slices.ContainsFunc(known, func(k string) bool { return editDistance(lower, k) <= maxTypos }) {
			p.file.Add(n.Line, "scopes: %q is not known (known: %s, and those that event types and backends require)", strictyaml.Clip(s), strings.Join(known, ", "))
		}
	}
}

// maxTypos is the number of typing errors up to which a scope counts as a misspelled known one.
const maxTypos = 2

// editDistance returns the number of letters to insert, remove or replace to get from one text to the other (Levenshtein distance).
// Beyond maxTypos it may return less than that, because texts of any length are compared.
func editDistance(a, b string) int {
	if d := len(a) - len(b); d > maxTypos || -d > maxTypos {
		return maxTypos + 1
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

const (
	// maxQuotas is the largest number of entries in the section "quotas".
	maxQuotas = 10_000
	// maxPrincipals is the largest number of entries in the section "principals".
	maxPrincipals = 10_000
)

// Most returns the limit that the settings define for a quota, or 0 for no limit.
func (l Limits) Most(name string) float64 {
	switch name {
	case quota.Subscriptions:
		return float64(l.Quota)
	case quota.Streams:
		return float64(l.Streams)
	case quota.Calls:
		return quota.DefaultCalls
	case quota.Sessions:
		return quota.DefaultSessions
	case quota.PublishRate:
		return l.PublishRate
	case quota.RegistrationRate:
		return l.RegistrationRate
	case quota.ConversationRate:
		return quota.DefaultConversationRate
	case quota.Verifications:
		return quota.DefaultVerifications
	}
	return 0
}

// Most returns the limit of a quota for a principal: the principal's own limit, otherwise the workspace's,
// otherwise the limit from the settings.
func (c *Config) Most(name, workspace, principal string, l Limits) float64 {
	for _, who := range []identity{{workspace, principal}, {workspace, ""}} {
		if most, ok := c.quotas[who][name]; ok {
			return most
		}
	}
	return l.Most(name)
}

// Profile returns the profile of the MCP Events extension that the configuration sets for a principal, or otherwise for its
// workspace. It is empty if the configuration sets no profile for them.
func (c *Config) Profile(workspace, principal string) spec.Profile {
	return cmp.Or(c.profiles[identity{workspace, principal}], c.profiles[identity{workspace, ""}])
}

func (p *parser) readQuotas(n *strictyaml.Node, what string) {
	lines := map[identity]int{}
	p.config.quotas = map[identity]map[string]float64{}
	for _, it := range p.file.Items(n, what, maxQuotas) {
		id, limits := p.readQuota(it)
		if line := lines[id]; line > 0 {
			p.file.Add(it.Line, "a quota: %s of workspace %s already has one in line %d", strictyaml.Clip(cmp.Or(id.name, "each principal")), strictyaml.Clip(id.workspace), line)
		}
		lines[id] = it.Line
		p.config.quotas[id] = limits
	}
}

func (p *parser) readQuota(n *strictyaml.Node) (id identity, limits map[string]float64) {
	id, limits = identity{workspace: auth.DefaultWorkspace}, map[string]float64{}
	fields := []strictyaml.Field{
		strictyaml.Var("workspace", &id.workspace, p.readWorkspace),
		strictyaml.Var("principal", &id.name, p.readPrincipal),
	}
	for _, name := range quota.Names() {
		fields = append(fields, strictyaml.Func(name, func(n *strictyaml.Node, what string) { limits[name] = p.readLimit(n, what) }))
	}
	p.file.Fields(n, nameMembers("a quota"), fields...)
	if _, ok := limits[quota.WorkspaceSubscriptions]; ok && id.name != "" {
		p.file.Add(n.Line, "a quota: %s is of a workspace, not of a principal", quota.WorkspaceSubscriptions)
	}
	if len(limits) == 0 {
		p.file.Add(n.Line, "a quota: it has none of %s", strings.Join(quota.Names(), ", "))
	}
	return id, limits
}

// readLimit reads the value of a quota: a number, or a rate per second where 0 is unlimited.
func (p *parser) readLimit(n *strictyaml.Node, name string) float64 {
	if !strings.HasSuffix(name, "Rate") {
		return float64(p.file.Int(1, 1_000_000_000)(n, name))
	}
	var rate float64
	if err := n.Decode(&rate); err != nil || !(rate >= 0) || rate > 1e9 {
		p.file.Add(n.Line, "%s must be a number per second from 0, which means no limit", name)
	}
	return rate
}

func (p *parser) readPrincipals(n *strictyaml.Node, what string) {
	lines := map[identity]int{}
	p.config.profiles = map[identity]spec.Profile{}
	for _, it := range p.file.Items(n, what, maxPrincipals) {
		id, profile := identity{workspace: auth.DefaultWorkspace}, ""
		p.file.Fields(it, nameMembers("a principal"),
			strictyaml.Var("workspace", &id.workspace, p.readWorkspace),
			strictyaml.Var("principal", &id.name, p.readPrincipal),
			strictyaml.Var("profile", &profile, p.file.String),
		)
		if !slices.Contains(spec.Profiles(), profile) {
			p.file.Add(it.Line, "a principal: profile %q is not allowed (allowed: %s)", strictyaml.Clip(profile), strings.Join(spec.Profiles(), ", "))
		}
		if line := lines[id]; line > 0 {
			p.file.Add(it.Line, "a principal: %s of workspace %s was already given in line %d", strictyaml.Clip(cmp.Or(id.name, "each principal")), strictyaml.Clip(id.workspace), line)
		}
		lines[id] = it.Line
		p.config.profiles[id] = spec.Profile(profile)
	}
}
