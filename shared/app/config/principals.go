package config

import (
	"cmp"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// MaxPrincipals is the largest number of entries about principals in a configuration.
const MaxPrincipals = 10_000

// Profile returns the profile of the MCP Events extension of a principal, or else of its workspace. It is empty if the
// configuration sets no profile for them.
func (c *Config) Profile(workspace, principal string) spec.Profile {
	return cmp.Or(c.profiles[place{workspace, principal}], c.profiles[place{workspace, ""}])
}

func (p *parser) principals(n *strictyaml.Node, _ string) {
	given := places{}
	p.config.profiles = map[place]spec.Profile{}
	for _, it := range p.items(n, `"principals"`, "principals", MaxPrincipals) {
		who, profile := place{workspace: auth.DefaultWorkspace}, ""
		p.fields(it, "a principal", plain,
			field{"workspace", into(&who.workspace, p.workspace)},
			field{"principal", func(n *strictyaml.Node, what string) {
				if who.name = p.file.String(n, what); who.name == "" {
					p.file.Add(n.Line, "principal: must not be empty; leave it out for each principal of the workspace")
				}
			}},
			field{"profile", into(&profile, p.file.String)},
		)
		if !slices.Contains(spec.Profiles(), profile) {
			p.file.Add(it.Line, "a principal: profile %q is not allowed (allowed: %s)", strictyaml.Clip(profile), strings.Join(spec.Profiles(), ", "))
		}
		if line := given[who]; line > 0 {
			p.file.Add(it.Line, "a principal: %s of workspace %s was already given in line %d", strictyaml.Clip(cmp.Or(who.name, "each principal")), strictyaml.Clip(who.workspace), line)
		}
		given[who] = it.Line
		p.config.profiles[who] = spec.Profile(profile)
	}
}
