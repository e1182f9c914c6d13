package config

import (
	"cmp"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/events/source/pattern"
	"github.com/mcp-events/mcpevents/shared/events/source/verify"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// Limits of the section "sources".
const (
	// MaxSources is the largest number of sources.
	MaxSources = 100
	// MaxMappings is the largest number of mappings of a source.
	MaxMappings = 100
	// maxMapping bounds a pattern or a payload of a mapping as JSON, in bytes.
	maxMapping = 64 << 10
)

// Source finds a source by its name; the error names those that there are.
func (c *Config) Source(name string) (source.Source, error) {
	var names []string
	for _, s := range c.Sources {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return source.Source{}, fault.New(fault.Invalid, "there is no source %q (there are: %s)", name, cmp.Or(strings.Join(names, ", "), "none"))
}

func (p *parser) sources(n *strictyaml.Node, _ string) {
	given := places{}
	for _, it := range p.items(n, `"sources"`, "sources", MaxSources) {
		s := p.source(it)
		p.once(given, place{name: s.Name}, it, "source") // its name is its path, in all workspaces
		p.config.Sources = append(p.config.Sources, s)
	}
}

func (p *parser) source(n *strictyaml.Node) source.Source {
	s := source.Source{Workspace: auth.DefaultWorkspace, Line: n.Line}
	say := named("source", &s.Name)
	before := p.file.Count()
	var events *strictyaml.Node
	given := p.fields(n, "a source", say,
		field{"name", into(&s.Name, p.matching(source.ValidName))},
		field{"workspace", into(&s.Workspace, p.workspace)},
		field{"from", into(&s.From, p.from)},
		field{"verify", func(n *strictyaml.Node, what string) { p.verify(n, what, &s) }},
		field{"events", func(n *strictyaml.Node, _ string) { events = n }},
	)
	if events != nil { // whose values depend on what the source is
		m := mapper{p.reader, s.From, p.file.Count() == before, s.Verify.Headers()}
		s.Events = m.mappings(events, say("events"))
	}
	switch {
	case given == nil:
	case !given["name"]:
		p.file.Add(n.Line, "a source has no name")
	case !given["events"]:
		p.file.Add(n.Line, "%s are missing", say("events"))
	case given["from"] && given["verify"]:
		p.file.Add(n.Line, "%s is not possible beside from: IAM says who may send to the inbox queue", say("verify"))
	case !given["from"] && !given["verify"]:
		p.file.Add(n.Line, "%s is missing: one of %s (none takes a secret path in its place)", say("verify"), strings.Join(verify.Schemes(), ", "))
	case p.file.Count() == before:
		p.unreached(s.Events, say("events"))
	}
	return s
}

// unreached finds mappings that are never reached.
func (p *parser) unreached(events []source.Mapping, what string) {
	for i, m := range events[:len(events)-1] {
		if m.Match == nil {
			p.file.Add(events[i+1].Line, "%s: this mapping and those after it are never reached: that of line %d has no match and takes all; "+
				"give it one, or write it last", what, m.Line)
			break
		}
	}
	lines := map[string]int{}
	for _, m := range events {
		if m.Match == nil {
			continue
		}
		text, _ := m.Match.MarshalJSON()
		if first, twice := lines[string(text)]; twice {
			p.file.Add(m.Line, "%s: this mapping is never reached: that of line %d has the same match; give it another, or delete it", what, first)
			continue
		}
		lines[string(text)] = m.Line
	}
}

func (p *parser) from(n *strictyaml.Node, what string) source.From {
	from := source.From(p.file.String(n, what))
	if !slices.Contains(source.Buses(), from) {
		p.file.Add(n.Line, "%s: %q is not known (%s; without from it is a source at POST /sources/{name})",
			what, strictyaml.Clip(string(from)), joined(source.Buses()))
	}
	return from
}

func joined(all []source.From) string {
	texts := make([]string, len(all))
	for i, f := range all {
		texts[i] = string(f)
	}
	return strings.Join(texts, ", ")
}

// verify reads how the sender is verified. The members beside scheme and secrets are those of the scheme hmac.
func (p *parser) verify(n *strictyaml.Node, what string, s *source.Source) {
	before := p.file.Count()
	v := &s.Verify
	if slices.Contains(verify.Schemes(), n.Value) {
		p.file.Add(n.Line, `%s must be a mapping: {scheme: %s, secrets: ["env:NAME"]}`, what, n.Value)
		return
	}
	p.fields(n, what, within(what),
		field{"scheme", into(&v.Scheme, p.file.String)},
		field{"secrets", func(n *strictyaml.Node, what string) {
			for _, it := range p.file.Items(n, what) {
				s.Secrets = append(s.Secrets, p.secret(it, what))
			}
		}},
		field{"header", into(&v.Header, p.file.String)},
		field{"algorithm", into(&v.Algorithm, p.file.String)},
		field{"encoding", into(&v.Encoding, p.file.String)},
		field{"prefix", into(&v.Prefix, p.file.String)},
		field{"signed", into(&v.Signed, p.file.String)},
		field{"timestamp", into(&v.Timestamp, p.file.String)},
		field{"tolerance", into(&v.Tolerance, p.duration(verify.MinTolerance, verify.MaxTolerance))},
	)
	if p.file.Count() > before {
		return
	}
	if err := v.Check(); err != nil {
		p.file.Add(n.Line, "%s: %s", what, fault.Public(err))
	}
	if most := verify.MaxSecrets; len(s.Secrets) == 0 || len(s.Secrets) > most {
		p.file.Add(n.Line, "%s: %d secrets (1 to %d are possible)", what, len(s.Secrets), most)
	}
}

// mapper reads the mappings of a source.
type mapper struct {
	reader
	from   source.From
	known  bool     // its documents are: what leads to nothing in any is a fault
	hidden []string // headers that are not in them
}

func (p mapper) mappings(n *strictyaml.Node, what string) []source.Mapping {
	items := p.file.Items(n, what)
	if items == nil {
		return nil
	}
	if len(items) == 0 || len(items) > MaxMappings {
		p.file.Add(n.Line, "%s: %d mappings (1 to %d are possible)", what, len(items), MaxMappings)
		return nil
	}
	all := make([]source.Mapping, len(items))
	for i, it := range items {
		all[i] = p.mapping(it, what)
	}
	return all
}

func (p mapper) mapping(n *strictyaml.Node, what string) (out source.Mapping) {
	out.Line = n.Line
	given := p.fields(n, what, within(what),
		field{"match", into(&out.Match, p.pattern)},
		field{"name", into(&out.Name, p.file.String)},
		field{"variables", func(n *strictyaml.Node, what string) {
			out.Variables = map[string]source.Value{}
			for _, v := range p.file.Members(n, what) {
				out.Variables[v.Key] = p.text(source.Value.CheckVariable)(v.Value, what+": "+strictyaml.Clip(v.Key))
			}
		}},
		field{"id", into(&out.ID, p.text(source.Value.CheckID))},
		field{"time", into(&out.Time, p.text(source.Value.CheckTime))},
		field{"data", func(n *strictyaml.Node, what string) {
			out.Data = p.mapped(n, what)
			p.leads(n, what, source.CheckValue(p.from, out.Data, p.hidden))
		}},
	)
	if given != nil && out.Name == "" {
		p.file.Add(n.Line, "%s: a mapping has no name, which is that of an event type", what)
	}
	return out
}

// faults adds faults of a value with the lines of their places.
func (r reader) faults(n *strictyaml.Node, what string, faults []jsonpointer.Fault) {
	for _, f := range faults {
		at, _ := jsonpointer.Parse(f.Pointer) // it was made by a parser
		r.file.Add(strictyaml.Line(n, at), "%s: %s", what, f.Message)
	}
}

// leads adds what leads to nothing in any document.
func (p mapper) leads(n *strictyaml.Node, what string, faults []jsonpointer.Fault) {
	if p.known {
		p.faults(n, what, faults)
	}
}

// pattern reads an event pattern; its faults have the lines of their places.
func (p mapper) pattern(n *strictyaml.Node, what string) *pattern.Pattern {
	text := p.file.JSON(n, what, maxMapping)
	if text == nil {
		return nil
	}
	out, err := pattern.Parse(text)
	faults, _ := fault.DataOf(err).([]jsonpointer.Fault)
	for i, f := range faults {
		faults[i].Message = f.String()
	}
	p.faults(n, what, faults)
	if err == nil {
		p.leads(n, what, source.CheckPattern(p.from, text, p.hidden))
	}
	return out
}

// text reads a value that must be no object, and that check may refuse.
func (p mapper) text(check func(source.Value) error) func(n *strictyaml.Node, what string) source.Value {
	return func(n *strictyaml.Node, what string) source.Value {
		before := p.file.Count()
		v := p.mapped(n, what)
		if p.file.Count() > before {
			return v
		}
		if err := check(v); err != nil {
			p.file.Add(n.Line, "%s: %s", what, fault.Public(err))
			return v
		}
		p.leads(n, what, source.CheckText(p.from, v, p.hidden))
		return v
	}
}

// mapped reads a JSON Pointer, a constant, or an object of them.
func (p mapper) mapped(n *strictyaml.Node, what string) source.Value {
	text := p.file.JSON(n, what, maxMapping)
	if text == nil {
		return source.Value{}
	}
	out, err := source.ParseValue(jsonrpc.Value(text))
	if err != nil {
		p.file.Add(n.Line, "%s: %s", what, fault.Public(err))
	}
	return out
}
