package config

import (
	"cmp"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
)

// MaxQuotas is the largest number of quotas in a configuration.
const MaxQuotas = 10_000

// Most is the limit that the settings have under the name of a quota; 0 is none.
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

// Most is how much a principal may have: by a quota of its own, one of its workspace, or the settings.
func (c *Config) Most(name, workspace, principal string, l Limits) float64 {
	for _, who := range []place{{workspace, principal}, {workspace, ""}} {
		if most, ok := c.quotas[who][name]; ok {
			return most
		}
	}
	return l.Most(name)
}

func (p *parser) quotas(n *strictyaml.Node, _ string) {
	given := places{}
	p.config.quotas = map[place]map[string]float64{}
	for _, it := range p.items(n, `"quotas"`, "quotas", MaxQuotas) {
		who, most := p.quota(it)
		if line := given[who]; line > 0 {
			p.file.Add(it.Line, "a quota: %s of workspace %s already has one in line %d", strictyaml.Clip(cmp.Or(who.name, "each principal")), strictyaml.Clip(who.workspace), line)
		}
		given[who] = it.Line
		p.config.quotas[who] = most
	}
}

func (p *parser) quota(n *strictyaml.Node) (who place, most map[string]float64) {
	who, most = place{workspace: auth.DefaultWorkspace}, map[string]float64{}
	known := []field{
		{"workspace", into(&who.workspace, p.workspace)},
		{"principal", func(n *strictyaml.Node, what string) {
			if who.name = p.file.String(n, what); who.name == "" {
				p.file.Add(n.Line, "principal: must not be empty; leave it out for each principal of the workspace")
			}
		}},
	}
	for _, name := range quota.Names() {
		known = append(known, field{name, func(n *strictyaml.Node, what string) { most[name] = p.most(n, name) }})
	}
	p.fields(n, "a quota", plain, known...)
	if _, sum := most[quota.WorkspaceSubscriptions]; sum && who.name != "" {
		p.file.Add(n.Line, "a quota: %s is of a workspace, not of a principal", quota.WorkspaceSubscriptions)
	}
	if len(most) == 0 {
		p.file.Add(n.Line, "a quota: it has none of %s", strings.Join(quota.Names(), ", "))
	}
	return who, most
}

// most reads a number, or a rate, of which 0 is no limit.
func (p *parser) most(n *strictyaml.Node, name string) float64 {
	if !strings.HasSuffix(name, "Rate") {
		return float64(p.file.Int(n, name, 1, 1_000_000_000))
	}
	var x float64
	if err := n.Decode(&x); err != nil || !(x >= 0) || x > 1e9 {
		p.file.Add(n.Line, "%s must be a number a second from 0, which is no limit", name)
	}
	return x
}
