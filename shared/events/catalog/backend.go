package catalog

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/refresh"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// The catalog also has entries for the event types of backends, which are MCP servers behind the gateway. The relay, which connects to
// the backends, stores their event types in one document per workspace. [Stored] adds them to the workspace's catalog.
//
// The catalog cannot know which arguments of a backend's event type identify its events. So all arguments of a subscription, as canonical
// JSON, become one segment of the event URI: event://~BACKEND/TYPE/ARGUMENTS, where ARGUMENTS is base64url. Subscriptions with equal
// arguments therefore have the same URI, and other packages can treat it like any other event URI.
//
// A backend that acts for its callers receives their tokens, and may show each caller other event types and events. So its types are not
// stored, and the catalog accepts every valid name with the backend's prefix. Only the relay finds out whether the backend has such a
// type, when it subscribes with the caller's token. The last segment of the URIs is ARGUMENTS.CALLER, where CALLER is the [CallerID] of
// the only principal that may receive the events.

const (
	// MaxBackendTypes is the largest number of event types of one backend.
	MaxBackendTypes = 200
	// maxBackendArguments limits a subscription's arguments, in bytes of canonical JSON. In base64url they use 800 of the 1,024 bytes of a
	// URI ([event.MaxURI]).
	maxBackendArguments = 600
	// callerSize is how many of the maxBackendArguments bytes are reserved for the [CallerID] if the URI contains one.
	callerSize = 30
)

// argumentsVariable is the only variable in the URI template of a backend's event type.
const argumentsVariable = "arguments"

// BackendType is an event type as a backend lists it.
type BackendType struct {
	Name          string          `json:"name"`
	Title         string          `json:"title,omitempty"`
	Description   string          `json:"description,omitempty"`
	InputSchema   json.RawMessage `json:"inputSchema,omitempty"`
	PayloadSchema json.RawMessage `json:"payloadSchema,omitempty"`
}

// BackendTypes are the event types that a backend lists, and the prefix and scopes that the configuration gives them.
type BackendTypes struct {
	Prefix string        `json:"prefix,omitempty"`
	Scopes []string      `json:"scopes,omitempty"`
	Types  []BackendType `json:"types,omitempty"`
	// PerCaller is set if the backend acts for its callers: it receives their tokens and may show different event types to each caller.
	// Types is then empty.
	PerCaller bool `json:"perCaller,omitempty"`
	// Refused says why there are no Types although the backend has some. It is empty otherwise.
	Refused string `json:"refused,omitempty"`
}

// IsUnprintable reports whether r is a control character, changes the direction of text, or stands for invalid Unicode.
func IsUnprintable(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == unicode.ReplacementChar
}

// NewBackendEntry returns the catalog entry for a backend's event type. The error says why the type cannot be used.
func NewBackendEntry(backend string, types BackendTypes, t BackendType) (*Entry, error) {
	name := types.Prefix + t.Name
	switch {
	case t.Name == "" || len(name) > 128 || !namePattern.MatchString(name):
		return nil, fault.New(fault.Invalid, "the name is not of letters, digits, - and _ in parts separated by dots, at most 128 bytes")
	case len(t.Title) > 200 || len(t.Description) > 4000:
		return nil, fault.New(fault.Invalid, "the title or the description is too long")
	case strings.ContainsFunc(t.Title, IsUnprintable):
		return nil, fault.New(fault.Invalid, "the title has control characters")
	}
	e := &Entry{
		Name: name, Title: t.Title, Description: t.Description, WebhookType: name, Backend: backend, Own: t.Name,
		PayloadSchema: t.PayloadSchema, ParamsSchema: t.InputSchema, Delivery: allModes(), Order: orderURI,
		vars:     []string{argumentsVariable},
		segments: []segment{{literal: backendAuthority + backend}, {literal: t.Name}, {variable: argumentsVariable}},
		input:    t.InputSchema,
	}
	e.URITemplate = Scheme + e.segments[0].literal + "/" + t.Name + "/{" + argumentsVariable + "}"
	if len(types.Scopes) > 0 || types.PerCaller {
		e.Access = &Access{Scopes: types.Scopes, perCaller: types.PerCaller}
	}
	if e.input == nil {
		e.input = json.RawMessage(`{"type":"object"}`)
	}
	e.arguments = newSchema(e.input)
	if e.PayloadSchema != nil {
		e.payload, e.cost = newSchema(e.PayloadSchema), schemaCost(e.PayloadSchema)
	}
	e.contractID = sync.OnceValue(func() string { return digest(e.EncodeContract()) })
	return e, nil
}

// Check returns an error if the event type's schemas are not valid, or too expensive to check values against.
func (e *Entry) Check() error {
	for what, raw := range map[string]json.RawMessage{"inputSchema": e.ParamsSchema, "payloadSchema": e.PayloadSchema} {
		switch {
		case raw == nil:
			continue
		case len(raw) > maxSchema || raw[0] != '{':
			return fault.New(fault.Invalid, "the %s is not an object of at most %d bytes", what, maxSchema)
		case jsonrpc.Depth(raw) > event.MaxDepth || schemaCost(raw) > maxSchemaCost:
			return fault.New(fault.Invalid, "the %s is too complex, or has references that are not supported", what)
		}
		if _, err := compile(raw); err != nil {
			return fault.New(fault.Invalid, "the %s is not a JSON Schema", what)
		}
	}
	return nil
}

// ParseBackendURI splits the URI of a backend's event into the backend's name, the event type's name at the backend, and the arguments.
func ParseBackendURI(uri string) (backend, own string, arguments json.RawMessage, ok bool) {
	rest, _ := strings.CutPrefix(uri, Scheme+backendAuthority)
	parts := strings.Split(rest, "/")
	if BackendOf(uri) == "" || len(parts) != 3 {
		return "", "", nil, false
	}
	encoded, _, _ := strings.Cut(parts[2], ".")
	arguments, err := base64.RawURLEncoding.DecodeString(encoded)
	return parts[0], parts[1], arguments, err == nil && json.Valid(arguments)
}

// BackendOf returns the name of the backend in an event URI, or "" if the URI belongs to an event type of the operator.
func BackendOf(uri string) string {
	rest, ok := strings.CutPrefix(uri, Scheme+backendAuthority)
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, "/")
	return name
}

// CallerID returns the text that stands for a principal in the URIs of events that a backend sends only to this principal.
func CallerID(principal string) string {
	h := sha256.Sum256([]byte(principal))
	return base64.RawURLEncoding.EncodeToString(h[:16])
}

// CallerOf returns the [CallerID] in an event URI, or "" if the URI does not limit the events to one principal. Only URIs of backends'
// events can contain a CallerID.
func CallerOf(uri string) string {
	if BackendOf(uri) == "" {
		return ""
	}
	_, caller, _ := strings.Cut(uri[strings.LastIndexByte(uri, '/'):], ".")
	return caller
}

// PerCaller reports whether the event type belongs to a backend that acts for its callers, see [BackendTypes.PerCaller].
func (e *Entry) PerCaller() bool { return e.Access != nil && e.Access.perCaller }

// backendAuthority begins the first segment of the URIs of a backend's events, for example event://~github/….
const backendAuthority = "~"

// BindArguments returns the values of the URI template's variables for a subscription of the principal p. The parameter canonical has the
// subscription's arguments in canonical JSON.
func (e *Entry) BindArguments(canonical json.RawMessage, p auth.Principal) (map[string]string, error) {
	value, most := base64.RawURLEncoding.EncodeToString(canonical), maxBackendArguments
	if e.PerCaller() {
		if p.ID == "" || p.Anonymous { // the anonymous principal may stand for several people
			return nil, fault.New(fault.Unauthenticated, "this needs a caller who has signed in")
		}
		value, most = value+"."+CallerID(p.ID), most-callerSize
	}
	if len(canonical) > most {
		return nil, fault.New(fault.Invalid, "the arguments have %d bytes (allowed for events of a backend: up to %d)", len(canonical), most).
			AtLimit("backendArguments", float64(most))
	}
	return map[string]string{argumentsVariable: value}, nil
}

// backendDocuments is the prefix of the names under which the event types of backends are stored. The rest of such a name is the
// workspace.
const backendDocuments = "backend-events:"

func parseBackends(src []byte) (map[string]BackendTypes, error) {
	if len(src) == 0 {
		return nil, nil
	}
	var out map[string]BackendTypes
	err := json.Unmarshal(src, &out)
	return out, fault.Wrap(fault.Internal, err, "decode the event types of backends")
}

// ReplaceBackends lets the function edit change the stored event types of a workspace's backends, and reports whether they have changed.
// It may call edit more than once. After a change, the caller must call [settings.Announce].
//
// If the types of all backends together are too large to store, ReplaceBackends removes the types of the backend whose types are largest.
// It repeats this until the remaining types fit.
func ReplaceBackends(ctx context.Context, db store.DB, workspace string, edit func(map[string]BackendTypes)) (changed bool, err error) {
	for {
		old, err := settings.Read(ctx, db, backendDocuments+workspace)
		if err != nil {
			return false, err
		}
		all, err := parseBackends(old.Text)
		if err != nil || all == nil {
			all = map[string]BackendTypes{} // replace a document that cannot be read
		}
		if edit(all); len(all) == 0 && old.Version == 0 {
			return false, nil
		}
		changed, err = writeBackends(ctx, db, workspace, old, all)
		for fault.Is(err, fault.TooLarge) && refuseLargest(all) {
			changed, err = writeBackends(ctx, db, workspace, old, all)
		}
		if !fault.Is(err, fault.Conflict) {
			return changed, err
		}
	}
}

func writeBackends(ctx context.Context, db store.DB, workspace string, old settings.Stored, all map[string]BackendTypes) (changed bool, err error) {
	text, err := json.Marshal(all)
	if err != nil {
		return false, fault.Wrap(fault.Internal, err, "encode the event types of backends")
	}
	e := settings.Edit{Old: old, Text: text}
	if !e.Changes() {
		return false, nil
	}
	e.Also = append(settings.Unannounced(settings.BackendEvents, workspace, []string{workspace}, e.Version()),
		store.Put(store.Item{Key: store.Key{Table: store.Settings, Partition: backendNames, Sort: workspace}}))
	err = settings.Write(ctx, db, e)
	return err == nil, err
}

// refuseLargest removes the event types of the backend whose types need the most room. It returns false if no backend has types.
func refuseLargest(all map[string]BackendTypes) bool {
	largest, most := "", 0
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if len(all[name].Types) == 0 {
			continue
		}
		text, _ := json.Marshal(all[name].Types) // cannot fail, because the types were decoded from JSON
		if size := settings.PackedSize(text); size > most {
			largest, most = name, size
		}
	}
	if largest == "" {
		return false
	}
	types := all[largest]
	types.Types, types.Refused = nil, "its event types are not listed, because those of all backends together are too large, and this backend's are the largest"
	all[largest] = types
	return true
}

// backendNames is a partition of the store. It has an item for each workspace that has, or had, event types of backends.
const backendNames = "backend-events"

// BackendWorkspaces returns the workspaces that have or had event types of backends.
func BackendWorkspaces(ctx context.Context, db store.DB) (names []string, err error) {
	err = store.Each(ctx, db, store.Key{Table: store.Settings, Partition: backendNames}, "list the workspaces with events of backends", func(it *store.Item) error {
		names = append(names, it.Sort)
		return nil
	})
	return names, err
}

// Configured returns the configured prefix and scopes of each of a workspace's backends, and the configuration's version.
type Configured func(ctx context.Context, workspace string, f refresh.Freshness) (byBackend map[string]BackendTypes, version int64, err error)

type merger struct {
	// stored returns the event types that the relay wrote, and the version of the document in which they are stored.
	stored func(ctx context.Context, workspace string, f refresh.Freshness) (map[string]BackendTypes, int64, error)
	// configured returns the prefixes and scopes that the backends have in the current configuration. They replace the prefixes and
	// scopes in the result of stored, which may be older. The function may be nil.
	configured Configured
	merged     bounded.Map[string, merged] // by workspace
	log        *slog.Logger                // may be nil
	logged     bounded.Map[warning, bool]  // warnings that were logged already
}

type warning struct{ workspace, backend, text string }

func (m *merger) logWarnings(ctx context.Context, workspace string, c *Catalog) {
	if m.log == nil || c == nil {
		return
	}
	for backend, all := range c.warnings {
		for _, text := range all {
			w := warning{workspace, backend, text}
			if _, logged := m.logged.Get(w); !logged {
				m.logged.Put(w, true)
				m.log.WarnContext(ctx, "backend event types not listed", "workspace", workspace, "backend", backend, "reason", text)
			}
		}
	}
}

// merged caches a catalog with the event types of backends. It must be rebuilt when the base catalog, the stored types or the configuration
// change.
type merged struct {
	base               *Catalog
	stored, configured int64
	catalog            *Catalog
}

// add returns the catalog base with the event types of the workspace's backends added. The parameter base may be nil.
func (m *merger) add(ctx context.Context, workspace string, base *Catalog, f refresh.Freshness) (*Catalog, error) {
	types, version, err := m.stored(ctx, workspace, f)
	if err != nil || len(types) == 0 {
		return base, err
	}
	next := merged{base: base, stored: version}
	var byBackend map[string]BackendTypes
	if m.configured != nil {
		if byBackend, next.configured, err = m.configured(ctx, workspace, f); err != nil {
			return nil, err
		}
	}
	if had, ok := m.merged.Get(workspace); ok && had.base == base && had.stored == version && had.configured == next.configured {
		return had.catalog, nil
	}
	if m.configured != nil {
		types = configure(types, byBackend)
	}
	if next.catalog = base; len(types) > 0 {
		next.catalog = base.addBackends(types)
	}
	m.merged.Put(workspace, next)
	m.logWarnings(ctx, workspace, next.catalog)
	return next.catalog, nil
}

// configure returns the stored event types with the configured prefixes and scopes. It leaves out backends that were removed from the
// configuration.
func configure(stored, configured map[string]BackendTypes) map[string]BackendTypes {
	out := map[string]BackendTypes{}
	for name, types := range stored {
		if now, ok := configured[name]; ok {
			now.Types, now.Refused = types.Types, types.Refused
			out[name] = now
		}
	}
	return out
}

// AddBackends returns a [Source] that adds the stored event types of backends to the catalogs of another source, which is the parameter
// to. It reads the event types from the store at each call.
func AddBackends(db store.DB, to Source) Source {
	return &backendAdder{to, merger{stored: func(ctx context.Context, workspace string, _ refresh.Freshness) (map[string]BackendTypes, int64, error) {
		stored, err := settings.Read(ctx, db, backendDocuments+workspace)
		if err != nil {
			return nil, 0, err
		}
		types, err := parseBackends(stored.Text)
		return types, stored.Version, err
	}}}
}

type backendAdder struct {
	to     Source
	merger merger
}

// Catalog implements [Source].
func (s *backendAdder) Catalog(ctx context.Context, workspace string) (*Catalog, error) {
	base, err := s.to.Catalog(ctx, workspace)
	if err != nil {
		return nil, err
	}
	return s.merger.add(ctx, workspace, base, refresh.Latest)
}

// addBackends returns a catalog that also has the event types of backends. A type whose name is already taken is left out with a warning.
func (c *Catalog) addBackends(backends map[string]BackendTypes) *Catalog {
	out := &Catalog{byName: map[string]*Entry{}, root: &node{}, source: c.Text(), warnings: map[string][]string{}}
	add := func(e *Entry) {
		out.entries = append(out.entries, e)
		out.byName[e.Name] = e
		out.root.insert(e)
	}
	for _, e := range c.Entries() {
		add(e)
	}
	for _, name := range slices.Sorted(maps.Keys(backends)) {
		warn := func(text string) {
			if len(out.warnings[name]) < maxWarnings {
				out.warnings[name] = append(out.warnings[name], text)
			}
		}
		if why := backends[name].Refused; why != "" {
			warn(why)
		}
		if backends[name].PerCaller {
			out.hasPerCaller = true
			continue // the types of such a backend are not stored
		}
		for _, t := range backends[name].Types {
			e, err := NewBackendEntry(name, backends[name], t)
			if err != nil {
				continue
			}
			if had := out.byName[e.Name]; had == nil {
				add(e)
			} else if had.Backend != name {
				warn("its event type " + e.Name + " is not listed, because " + describeOrigin(had) + " has one with this name")
			}
		}
	}
	out.backends = backends
	text, _ := json.Marshal(backends) // cannot fail, because the backends were decoded from JSON
	sum := sha256.Sum256(append(text, cmp.Or(c, &Catalog{}).fingerprint...))
	out.fingerprint = base64.RawURLEncoding.EncodeToString(sum[:])
	return out
}

// HasPerCaller reports whether at least one backend acts for its callers, see [BackendTypes.PerCaller].
func (c *Catalog) HasPerCaller() bool { return c != nil && c.hasPerCaller }

// findPerCaller returns an event type for a name that is not in the catalog, if the backend with the longest matching prefix acts for its
// callers. The types of such a backend are not stored, so the backend may have a type with this name.
func (c *Catalog) findPerCaller(name string) *Entry {
	owner := ""
	for _, backend := range slices.Sorted(maps.Keys(c.backends)) {
		prefix := c.backends[backend].Prefix
		if strings.HasPrefix(name, prefix) && (owner == "" || len(prefix) > len(c.backends[owner].Prefix)) {
			owner = backend
		}
	}
	return c.perCallerType(owner, strings.TrimPrefix(name, c.backends[owner].Prefix))
}

func (c *Catalog) perCallerType(backend, own string) *Entry {
	types := c.backends[backend]
	if !types.PerCaller {
		return nil
	}
	id := backend + "/" + own
	e, ok := c.perCaller.Get(id)
	if !ok {
		var err error
		if e, err = NewBackendEntry(backend, types, BackendType{Name: own}); err != nil || c.byName[e.Name] != nil {
			return nil
		}
		c.perCaller.Put(id, e)
	}
	return e
}

const maxWarnings = 20 // per backend

func describeOrigin(e *Entry) string {
	if e.Backend == "" {
		return "the catalog"
	}
	return "backend " + e.Backend
}

// Warnings returns the reasons why some event types of a backend are not in the catalog.
func (c *Catalog) Warnings(backend string) []string {
	if c == nil {
		return nil
	}
	return c.warnings[backend]
}
