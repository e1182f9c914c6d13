package config

import (
	"regexp"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
)

// reader reads values of a file, and adds their faults to it.
type reader struct{ file *strictyaml.File }

// field is a member that a mapping may have, and what reads its value. What names the member in messages.
type field struct {
	name string
	read func(n *strictyaml.Node, what string)
}

// into has a value read into a variable.
func into[T any](to *T, read func(n *strictyaml.Node, what string) T) func(*strictyaml.Node, string) {
	return func(n *strictyaml.Node, what string) { *to = read(n, what) }
}

// fields reads the members of a mapping in the order of the file, and says which there are; nil if it is no mapping. Say
// names a member in messages.
func (r reader) fields(n *strictyaml.Node, what string, say func(member string) string, known ...field) (given map[string]bool) {
	members := r.file.Members(n, what)
	if members == nil {
		return nil
	}
	given = make(map[string]bool, len(members))
	for _, m := range members {
		i := slices.IndexFunc(known, func(f field) bool { return f.name == m.Key })
		if i < 0 {
			names := make([]string, len(known))
			for i, f := range known {
				names[i] = f.name
			}
			r.file.Unknown(m, what, names...)
			continue
		}
		given[m.Key] = true
		known[i].read(m.Value, say(m.Key))
	}
	return given
}

// plain names a member by its name alone.
func plain(member string) string { return member }

// within names a member as one of something.
func within(what string) func(member string) string {
	return func(member string) string { return what + ": " + member }
}

// named names a member as one of a thing, by the thing's name once that has been read.
func named(thing string, name *string) func(member string) string {
	return func(member string) string {
		if *name == "" || member == "name" {
			return "a " + thing + ": " + member
		}
		return thing + " " + strictyaml.Clip(*name) + ": " + member
	}
}

// items are those of a list of at most so many things.
func (r reader) items(n *strictyaml.Node, what, things string, most int) []*strictyaml.Node {
	items := r.file.Items(n, what)
	if len(items) > most {
		r.file.Add(n.Line, "there are more than %d %s", most, things)
		return nil
	}
	return items
}

// places are the lines in which a name of a workspace was given.
type places map[place]int

type place struct{ workspace, name string }

// once refuses a second thing of the same name in a workspace.
func (r reader) once(given places, at place, n *strictyaml.Node, what string) {
	if line := given[at]; line > 0 && at.name != "" {
		r.file.Add(n.Line, "%s %s was already given in line %d", what, strictyaml.Clip(at.name), line)
	}
	given[at] = n.Line
}

// matching reads a text of a pattern.
func (r reader) matching(pattern *regexp.Regexp) func(n *strictyaml.Node, what string) string {
	return func(n *strictyaml.Node, what string) string {
		before := r.file.Count()
		s := r.file.String(n, what)
		if r.file.Count() == before && !pattern.MatchString(s) {
			r.file.Add(n.Line, "%s: %q does not match %s", what, strictyaml.Clip(s), pattern)
		}
		return s
	}
}

func (r reader) workspace(n *strictyaml.Node, what string) string {
	before := r.file.Count()
	s := r.file.String(n, what)
	if r.file.Count() == before && !auth.ValidWorkspace(s) {
		r.file.Add(n.Line, "%s: %q is not the name of a workspace", what, strictyaml.Clip(s))
	}
	return s
}

func (r reader) scopes(n *strictyaml.Node, what string) []string {
	scopes := r.file.Strings(n, what)
	for _, s := range scopes {
		if s == "" || strings.ContainsAny(s, " \t\"\\") {
			r.file.Add(n.Line, "%s: %q is not an OAuth scope", what, strictyaml.Clip(s))
		}
	}
	return scopes
}
