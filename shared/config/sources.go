package config

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/config/strictyaml"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/jsonpointer"
	"github.com/mcp-events/mcpevents/shared/source"
	"github.com/mcp-events/mcpevents/shared/source/pattern"
	"github.com/mcp-events/mcpevents/shared/source/verify"
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

// Source is a source of events: what becomes of what it sends, and how that is known to be its own.
type Source struct {
	source.Source
	// Line is where it stands in the file.
	Line int
	// Verify says how the sender is verified; zero for a bus, which IAM protects.
	Verify verify.Settings
	// Secrets are those of the scheme; any of them will do, so that one can take the place of another.
	Secrets []Value
}

func (p *parser) sources(n *strictyaml.Node) {
	items := p.file.Items(n, `"sources"`)
	if len(items) > MaxSources {
		p.file.Add(n.Line, "there are more than %d sources", MaxSources)
		return
	}
	given := places{}
	for _, it := range items {
		s := p.source(it)
		p.once(given, place{name: s.Name}, it, "source") // its name is its path, in all workspaces
		p.config.Sources = append(p.config.Sources, s)
	}
}

func (p *parser) source(n *strictyaml.Node) Source {
	s := Source{Source: source.Source{Workspace: auth.DefaultWorkspace}, Line: n.Line}
	say := func(member string) string {
		if s.Name == "" {
			return "a source: " + member
		}
		return "source " + strictyaml.Clip(s.Name) + ": " + member
	}
	given := map[string]bool{}
	before := p.file.Count()
	var events *strictyaml.Node
	members := p.file.Members(n, "a source")
	for _, m := range members {
		given[m.Key] = true
		switch m.Key {
		case "name":
			s.Name = p.matching(m.Value, "a source: name", source.ValidName)
		case "workspace":
			s.Workspace = p.workspace(m.Value, say("workspace"))
		case "from":
			s.From = p.from(m.Value, say("from"))
		case "verify":
			p.verify(m.Value, say("verify"), &s)
		case "events":
			events, s.Events = m.Value, p.mappings(m.Value, say("events"))
		default:
			p.file.Unknown(m, "a source", "name", "workspace", "from", "verify", "events")
		}
	}
	switch {
	case members == nil:
	case !given["name"]:
		p.file.Add(n.Line, "a source has no name")
	case !given["events"]:
		p.file.Add(n.Line, "%s are missing", say("events"))
	case given["from"] && given["verify"]:
		p.file.Add(n.Line, "%s is not possible beside from: IAM says who may send to the inbox queue", say("verify"))
	case !given["from"] && !given["verify"]:
		p.file.Add(n.Line, "%s is missing: one of %s (none takes a secret path in its place)", say("verify"), strings.Join(verify.Schemes(), ", "))
	case p.file.Count() == before:
		p.reach(events, say("events"), s)
	}
	return s
}

// reach finds mappings that are never reached, and what leads to nothing in any request to an HTTP source. Both are known
// when all of the source has been read.
func (p *parser) reach(events *strictyaml.Node, what string, s Source) {
	for i, m := range s.Events[:len(s.Events)-1] {
		if m.Match == nil {
			p.file.Add(s.Events[i+1].Line, "%s: this mapping and those after it are never reached: that of line %d has no match and takes all; "+
				"give it one, or write it last", what, m.Line)
			break
		}
	}
	lines := map[string]int{}
	for _, m := range s.Events {
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
	if s.From != source.HTTP {
		return
	}
	secret := s.Verify.Headers()
	for i, n := range p.file.Items(events, what) {
		for _, m := range p.file.Members(n, what) {
			at := what + ": " + m.Key
			switch m.Key {
			case "match":
				p.faults(m.Value, at, source.CheckRequestPattern(p.file.JSON(m.Value, what, maxMapping), secret))
			case "id":
				p.faults(m.Value, at, source.CheckRequestText(s.Events[i].ID, secret))
			case "time":
				p.faults(m.Value, at, source.CheckRequestText(s.Events[i].Time, secret))
			case "data":
				p.faults(m.Value, at, source.CheckRequestValue(s.Events[i].Data, secret))
			case "variables":
				for _, v := range p.file.Members(m.Value, what) {
					p.faults(v.Value, at+": "+strictyaml.Clip(v.Key), source.CheckRequestText(s.Events[i].Variables[v.Key], secret))
				}
			}
		}
	}
}

// faults adds faults of a value with the lines of their places.
func (p *parser) faults(n *strictyaml.Node, what string, faults []jsonpointer.Fault) {
	for _, f := range faults {
		at, _ := jsonpointer.Parse(f.Pointer) // it was made by a parser
		p.file.Add(strictyaml.Line(n, at), "%s: %s", what, f.Message)
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
func (p *parser) verify(n *strictyaml.Node, what string, s *Source) {
	before := p.file.Count()
	v := &s.Verify
	if slices.Contains(verify.Schemes(), n.Value) {
		p.file.Add(n.Line, `%s must be a mapping: {scheme: %s, secrets: ["env:NAME"]}`, what, n.Value)
		return
	}
	members := p.file.Members(n, what)
	for _, m := range members {
		at := what + ": " + m.Key
		switch m.Key {
		case "scheme":
			v.Scheme = p.file.String(m.Value, at)
		case "secrets":
			for _, it := range p.file.Items(m.Value, at) {
				s.Secrets = append(s.Secrets, p.value(it, at, true))
			}
		case "header":
			v.Header = p.file.String(m.Value, at)
		case "algorithm":
			v.Algorithm = p.file.String(m.Value, at)
		case "encoding":
			v.Encoding = p.file.String(m.Value, at)
		case "prefix":
			v.Prefix = p.file.String(m.Value, at)
		case "signed":
			v.Signed = p.file.String(m.Value, at)
		case "timestamp":
			v.Timestamp = p.file.String(m.Value, at)
		case "tolerance":
			v.Tolerance = p.duration(m.Value, at, time.Second, 24*time.Hour)
		default:
			p.file.Unknown(m, what, "scheme", "secrets", "header", "algorithm", "encoding", "prefix", "signed", "timestamp", "tolerance")
		}
	}
	if members == nil || p.file.Count() > before {
		return
	}
	if err := v.Check(); err != nil {
		p.file.Add(n.Line, "%s: %s", what, fault.Public(err))
	}
	if most := verify.MaxSecrets; len(s.Secrets) == 0 || len(s.Secrets) > most {
		p.file.Add(n.Line, "%s: %d secrets (1 to %d are possible)", what, len(s.Secrets), most)
	}
}

func (p *parser) mappings(n *strictyaml.Node, what string) []source.Mapping {
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

func (p *parser) mapping(n *strictyaml.Node, what string) (out source.Mapping) {
	out.Line = n.Line
	members := p.file.Members(n, what)
	for _, m := range members {
		at := what + ": " + m.Key
		switch m.Key {
		case "match":
			out.Match = p.pattern(m.Value, at)
		case "name":
			out.Name = p.file.String(m.Value, at)
		case "variables":
			out.Variables = map[string]source.Value{}
			for _, v := range p.file.Members(m.Value, at) {
				out.Variables[v.Key] = p.mapped(v.Value, at+": "+strictyaml.Clip(v.Key), source.Value.CheckVariable)
			}
		case "id":
			out.ID = p.mapped(m.Value, at, source.Value.CheckID)
		case "time":
			out.Time = p.mapped(m.Value, at, source.Value.CheckTime)
		case "data":
			out.Data = p.mapped(m.Value, at, nil)
		default:
			p.file.Unknown(m, what, "match", "name", "variables", "id", "time", "data")
		}
	}
	if members != nil && out.Name == "" {
		p.file.Add(n.Line, "%s: a mapping has no name, which is that of an event type", what)
	}
	return out
}

// pattern reads an event pattern; its faults have the lines of their places.
func (p *parser) pattern(n *strictyaml.Node, what string) *pattern.Pattern {
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
	return out
}

// mapped reads a JSON Pointer, a constant, or an object of them, which check may refuse.
func (p *parser) mapped(n *strictyaml.Node, what string, check func(source.Value) error) source.Value {
	text := p.file.JSON(n, what, maxMapping)
	if text == nil {
		return source.Value{}
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	_ = d.Decode(&v) // it was made here
	out, err := source.ParseValue(v)
	if err == nil && check != nil {
		err = check(out)
	}
	if err != nil {
		p.file.Add(n.Line, "%s: %s", what, fault.Public(err))
	}
	return out
}
