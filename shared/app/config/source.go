package config

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation/rules"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/events/source/pattern"
	"github.com/mcp-events/mcpevents/shared/events/source/verify"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/shared/platform/refresh"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// document is the name under which the configuration is stored. One configuration covers all workspaces.
const document = "config"

// Document is the stored configuration.
type Document struct {
	settings.Stored
	// Config is nil if the stored configuration is invalid in this version of the program, because another version wrote it. Invalid then
	// has the reason.
	Config  *Config
	Invalid error
}

// Read reads the stored configuration.
func Read(ctx context.Context, db store.DB) (Document, error) {
	stored, err := settings.Read(ctx, db, document)
	d := Document{Stored: stored}
	if err == nil {
		d.Config, d.Invalid = parseStored(stored.Text)
	}
	return d, err
}

// parseStored parses a text that was checked before it was stored.
func parseStored(src []byte) (*Config, error) { return parse("stored configuration", src, true) }

// Replace returns the edit that replaces the stored configuration with next. The edit also records the workspaces whose backends
// have changed, so that [settings.Announce] can announce the changes.
func (d Document) Replace(next *Config) settings.Edit {
	before := cmp.Or(d.Config, &Config{})
	e := settings.Edit{Old: d.Stored, Text: next.source}
	e.Also = settings.UnannouncedOf(settings.Backends, findChangedWorkspaces(before, next), e.Version())
	return e
}

// CheckNotEmptied returns an error if the parameter next is an empty configuration and the stored one is not empty. The empty file may be
// a mistake: some programs truncate a file before they rewrite it, and a full disk can stop them in between. If next is nil,
// CheckNotEmptied returns nil.
func (d Document) CheckNotEmptied(next *Config) error {
	if next == nil || !next.Empty() || len(bytes.TrimSpace(d.Stored.Text)) == 0 {
		return nil
	}
	return fault.New(fault.Invalid, "the configuration has become empty, so the previous one stays in use; to remove it, write only a comment")
}

// Load reads the stored configuration. If the store has no configuration, it returns an empty one.
func Load(ctx context.Context, db store.DB) (*Config, error) {
	d, err := Read(ctx, db)
	return d.Config, cmp.Or(err, d.Invalid)
}

// Stored provides the stored configuration from a cache. The cached configuration is at most [settings.MaxAge] old, or older while the
// store does not answer. The methods of Stored return the same pointer or slice until the configuration changes.
type Stored struct {
	cache *settings.Cache[*current]
	empty *current
}

// current holds a parsed configuration, and the keys and event types that are derived from it.
type current struct {
	config     *Config
	keys       *auth.StaticKeys
	eventTypes map[string]map[string]catalog.BackendTypes
}

// NewStored returns a Stored for the configuration in db. If now is nil, it uses time.Now. If log is nil, it uses slog.Default. It adds
// the backends in the parameter own before the configured backends. An example is the MCP server of a program that embeds this server.
func NewStored(db store.DB, now func() time.Time, log *slog.Logger, own ...api.Backend) *Stored {
	with := func(c *Config) (*current, error) {
		keys, err := auth.NewStaticKeys(c.Keys, now)
		c.Backends = slices.Concat(own, c.Backends)
		eventTypes := map[string]map[string]catalog.BackendTypes{}
		for _, b := range c.Backends {
			if eventTypes[b.Workspace] == nil {
				eventTypes[b.Workspace] = map[string]catalog.BackendTypes{}
			}
			eventTypes[b.Workspace][b.Name] = b.EventTypes()
		}
		return &current{c, keys, eventTypes}, err
	}
	cache := settings.NewCache(db, document, func(src []byte) (*current, error) {
		c, err := parseStored(src)
		if err != nil {
			return nil, err
		}
		return with(c)
	}, now, log)
	empty, _ := with(&Config{})
	return &Stored{cache, empty}
}

// current returns the configuration and its version. The version is 0 if no configuration is stored.
func (s *Stored) current(ctx context.Context, f refresh.Freshness) (*current, int64, error) {
	c, version, err := s.cache.Read(ctx, "", f)
	if err == nil && version == 0 {
		return s.empty, 0, nil
	}
	return c, version, err
}

// Config returns the configuration. The configuration is empty if none is stored.
func (s *Stored) Config(ctx context.Context) (*Config, error) {
	c, _, err := s.current(ctx, refresh.Cached)
	if err != nil {
		return nil, err
	}
	return c.config, nil
}

// Conversation returns the section "conversation" of the configuration.
func (s *Stored) Conversation(ctx context.Context) (*rules.Conversation, error) {
	c, err := s.Config(ctx)
	if err != nil {
		return nil, err
	}
	return &c.Conversation, nil
}

// Backends returns the backends of the configuration.
func (s *Stored) Backends(ctx context.Context) ([]api.Backend, error) {
	c, err := s.Config(ctx)
	if err != nil {
		return nil, err
	}
	return c.Backends, nil
}

// EventTypes returns the name prefix and the scopes that the configuration sets for the event types of each backend in a workspace. The
// method can be used as a [catalog.Configured].
func (s *Stored) EventTypes(ctx context.Context, workspace string, f refresh.Freshness) (map[string]catalog.BackendTypes, int64, error) {
	c, version, err := s.current(ctx, f)
	if err != nil {
		return nil, 0, err
	}
	return c.eventTypes[workspace], version, nil
}

// Sources returns the sources of the configuration.
func (s *Stored) Sources(ctx context.Context) ([]source.Source, error) {
	c, err := s.Config(ctx)
	if err != nil {
		return nil, err
	}
	return c.Sources, nil
}

// Invalidate drops the cached configuration, see [settings.Cache.Invalidate].
func (s *Stored) Invalidate() { s.cache.Invalidate() }

// Authenticator returns an authenticator that accepts the keys in the stored configuration. It may accept a removed key for up to
// [settings.MaxAge], or up to [settings.MaxStale] while the store does not answer. It also implements [auth.Directory].
func (s *Stored) Authenticator() auth.Authenticator { return storedKeys{s} }

type storedKeys struct{ *Stored }

func (k storedKeys) Authenticate(ctx context.Context, h http.Header) (auth.Principal, error) {
	c, _, err := k.current(ctx, refresh.Cached)
	if err != nil {
		return auth.Principal{}, err
	}
	return c.keys.Authenticate(ctx, h)
}

func (k storedKeys) Principals(ctx context.Context, workspace, id string, f refresh.Freshness) ([]auth.Principal, error) {
	c, _, err := k.current(ctx, f)
	if err != nil {
		return nil, err
	}
	return c.keys.Principals(ctx, workspace, id, f)
}

// These limits apply to the values in the section "sources".
const (
	maxSources  = 100
	maxMappings = 100
	// maxMapping is the maximum size of the pattern or payload of a source's mapping, in bytes of JSON.
	maxMapping = 64 << 10
)

// Source returns the source with the given name. If there is no such source, the error lists the names of all sources.
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

func (p *parser) readSources(n *strictyaml.Node, what string) {
	lines := map[identity]int{}
	for _, it := range p.file.Items(n, what, maxSources) {
		s := p.readSource(it)
		p.checkUnique(lines, identity{name: s.Name}, it, "source") // the name is part of its URL, so it is unique across workspaces
		p.config.Sources = append(p.config.Sources, s)
	}
}

func (p *parser) readSource(n *strictyaml.Node) source.Source {
	s := source.Source{Workspace: auth.DefaultWorkspace, Line: n.Line}
	say := nameAfter("source", &s.Name)
	before := p.file.Count()
	given := p.file.Fields(n, say,
		strictyaml.Var("name", &s.Name, p.file.Matching(source.ValidName)),
		strictyaml.Var("workspace", &s.Workspace, p.readWorkspace),
		strictyaml.Var("from", &s.From, p.readFrom),
		strictyaml.Func("verify", func(n *strictyaml.Node, what string) { p.readVerify(n, what, &s) }),
		strictyaml.Func("events", func(n *strictyaml.Node, what string) {
			m := mappingParser{p, s.From, p.file.Count() == before, s.Verify.Headers()}
			s.Events = m.readMappings(n, what)
		}),
	)
	switch {
	case given == nil:
	case !given["name"]:
		p.file.Add(n.Line, "a source has no name")
	case !given["events"]:
		p.file.Add(n.Line, "%s are missing", say("events"))
	case given["from"] && given["verify"]:
		p.file.Add(n.Line, "%s is not possible with from, because IAM decides who may send to the inbox queue", say("verify"))
	case !given["from"] && !given["verify"]:
		p.file.Add(n.Line, "%s is missing: one of %s (none takes a secret path in its place)", say("verify"), strings.Join(verify.Schemes(), ", "))
	case p.file.Count() == before:
		p.checkReachable(s.Events, say("events"))
	}
	return s
}

// checkReachable adds faults for mappings of a source that are never used, because an earlier mapping matches the same requests or all
// requests.
func (p *parser) checkReachable(events []source.Mapping, what string) {
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

func (p *parser) readFrom(n *strictyaml.Node, what string) source.From {
	from := source.From(p.file.String(n, what))
	if !slices.Contains(source.Buses(), from) {
		var buses []string
		for _, bus := range source.Buses() {
			buses = append(buses, string(bus))
		}
		p.file.Add(n.Line, "%s: %q is not known (%s; without from it is a source at POST /sources/{name})",
			what, strictyaml.Clip(string(from)), strings.Join(buses, ", "))
	}
	return from
}

// readVerify reads the section "verify" of a source, which says how the source signs its requests. All schemes have the members scheme
// and secrets. The other members are settings of the scheme hmac.
func (p *parser) readVerify(n *strictyaml.Node, what string, s *source.Source) {
	before := p.file.Count()
	v := &s.Verify
	if slices.Contains(verify.Schemes(), n.Value) {
		p.file.Add(n.Line, `%s must be a mapping: {scheme: %s, secrets: ["env:NAME"]}`, what, n.Value)
		return
	}
	p.file.Fields(n, nameWithin(what),
		strictyaml.Var("scheme", &v.Scheme, p.file.String),
		strictyaml.Func("secrets", func(n *strictyaml.Node, what string) {
			for _, it := range p.file.Items(n, what, verify.MaxSecrets) {
				s.Secrets = append(s.Secrets, p.readSecret(it, what))
			}
		}),
		strictyaml.Var("header", &v.Header, p.file.String),
		strictyaml.Var("algorithm", &v.Algorithm, p.file.String),
		strictyaml.Var("encoding", &v.Encoding, p.file.String),
		strictyaml.Var("prefix", &v.Prefix, p.file.String),
		strictyaml.Var("signed", &v.Signed, p.file.String),
		strictyaml.Var("timestamp", &v.Timestamp, p.file.String),
		strictyaml.Var("tolerance", &v.Tolerance, p.readDuration(verify.MinTolerance, verify.MaxTolerance)),
	)
	if p.file.Count() > before {
		return
	}
	if err := v.Check(); err != nil {
		p.file.Add(n.Line, "%s: %s", what, fault.Public(err))
	}
	if len(s.Secrets) == 0 {
		p.file.Add(n.Line, "%s: 0 secrets (1 to %d are possible)", what, verify.MaxSecrets)
	}
}

type mappingParser struct {
	*parser
	from   source.From
	valid  bool     // whether the rest of the source has no faults; otherwise it is unknown which values its requests contain
	hidden []string // the headers with credentials or signatures, which documents omit
}

func (p mappingParser) readMappings(n *strictyaml.Node, what string) []source.Mapping {
	items := p.file.Items(n, what, maxMappings)
	if items != nil && len(items) == 0 {
		p.file.Add(n.Line, "%s: 0 mappings (1 to %d are possible)", what, maxMappings)
	}
	var all []source.Mapping
	for _, it := range items {
		all = append(all, p.readMapping(it, what))
	}
	return all
}

func (p mappingParser) readMapping(n *strictyaml.Node, what string) source.Mapping {
	out := source.Mapping{Line: n.Line}
	given := p.file.Fields(n, nameWithin(what),
		strictyaml.Var("match", &out.Match, p.readPattern),
		strictyaml.Var("name", &out.Name, p.file.String),
		strictyaml.Func("variables", func(n *strictyaml.Node, what string) {
			out.Variables = map[string]source.Value{}
			for _, v := range p.file.Members(n, what) {
				out.Variables[v.Key] = p.readText(source.Value.CheckVariable)(v.Value, what+": "+strictyaml.Clip(v.Key))
			}
		}),
		strictyaml.Var("id", &out.ID, p.readText(source.Value.CheckID)),
		strictyaml.Var("time", &out.Time, p.readText(source.Value.CheckTime)),
		strictyaml.Func("data", func(n *strictyaml.Node, what string) {
			out.Data = p.readMapped(n, what)
			p.addMissing(n, what, source.CheckValue(p.from, out.Data, p.hidden))
		}),
	)
	if given != nil && out.Name == "" {
		p.file.Add(n.Line, "%s: a mapping has no name, which is that of an event type", what)
	}
	return out
}

// addFaults adds the faults that were found in the JSON value of the node n. A fault has a JSON Pointer to a part of the value. addFaults
// gives the fault the line number of this part.
func (p *parser) addFaults(n *strictyaml.Node, what string, faults []jsonpointer.Fault) {
	for _, f := range faults {
		tokens, _ := jsonpointer.Parse(f.Pointer) // cannot fail, because the pointer is from a parser
		p.file.Add(strictyaml.Line(n, tokens), "%s: %s", what, f.Message)
	}
}

// addMissing adds faults for JSON Pointers to values that the requests of the source never contain. If another part of the source is
// invalid, it adds no faults, because the content of the requests is unknown then.
func (p mappingParser) addMissing(n *strictyaml.Node, what string, faults []jsonpointer.Fault) {
	if p.valid {
		p.addFaults(n, what, faults)
	}
}

func (p mappingParser) readPattern(n *strictyaml.Node, what string) *pattern.Pattern {
	text := p.file.JSON(n, what, maxMapping)
	if text == nil {
		return nil
	}
	out, err := pattern.Parse(text)
	faults, _ := fault.DataOf(err).([]jsonpointer.Fault)
	for i, f := range faults {
		faults[i].Message = f.String()
	}
	p.addFaults(n, what, faults)
	if err == nil {
		p.addMissing(n, what, source.CheckPattern(p.from, text, p.hidden))
	}
	return out
}

// readText returns a function that reads a mapped value that must not be an object, for example an event's id. If the function check
// returns an error for the value, the returned function adds a fault.
func (p mappingParser) readText(check func(source.Value) error) func(n *strictyaml.Node, what string) source.Value {
	return func(n *strictyaml.Node, what string) source.Value {
		before := p.file.Count()
		v := p.readMapped(n, what)
		if p.file.Count() > before {
			return v
		}
		if err := check(v); err != nil {
			p.file.Add(n.Line, "%s: %s", what, fault.Public(err))
			return v
		}
		p.addMissing(n, what, source.CheckText(p.from, v, p.hidden))
		return v
	}
}

// readMapped reads the value of a mapping. This is a JSON Pointer, a constant, or an object whose members are again pointers, constants
// or objects.
func (p mappingParser) readMapped(n *strictyaml.Node, what string) source.Value {
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
