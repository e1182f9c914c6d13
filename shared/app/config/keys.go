package config

import (
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
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
