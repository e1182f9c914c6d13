// Package events serves the MCP methods for events. These are events/list, events/poll, events/stream, resources/read, completion/complete,
// the lists of resources, resource templates, tools and prompts, and the methods that create and end webhook subscriptions.
package events

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/mcp/streams"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/shared/platform/opaque"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Lists serves events/list and the lists of resources, resource templates, tools and prompts.
type Lists struct {
	Catalogs      method.Catalogs
	Subscriptions streams.Subscriptions
	Backends      Backends
	Tools         Tools // may be nil
	Methods       method.Table
	PageSize      int
	Anonymous     bool // set in development: the anonymous principal of --auth none may use events/subscribe

	// kept caches the encoded lists of each catalog. It is bounded, because a catalog stays in the cache when a newer one replaces it.
	kept *bounded.Map[*catalog.Catalog, *listing]
}

const maxListings = 256

// Backends gives the lists access to the backends behind the gateway.
type Backends interface {
	// Any reports whether there are backends. The result may change at any time.
	Any(ctx context.Context) bool
	// StartCommands starts the client's backends that are local programs and have not run yet. The event types of such a backend are
	// unknown before its first run.
	StartCommands(ctx context.Context, c api.Client)
	// List returns the items of the given kind, for example tools, that all backends of the client have.
	List(ctx context.Context, c api.Client, kind api.Kind) *api.List
}

// NewLists returns lists with the given dependencies.
func NewLists(l Lists) *Lists {
	l.kept = bounded.NewMap[*catalog.Catalog, *listing](maxListings)
	return &l
}

func (h *Lists) listingOf(cat *catalog.Catalog) *listing {
	l, ok := h.kept.Get(cat)
	if !ok {
		l = encodeCatalog(cat)
		h.kept.Put(cat, l)
	}
	return l
}

// listTTL is how long, in milliseconds, a client may cache a list: about as long as an instance may use an outdated catalog.
const listTTL = 5000

// cacheFor returns the caching hint for a list. The parameter open is true if the list is the same for all callers.
func cacheFor(c *method.Call, open bool) *method.Caching {
	if open && c.Principal.Anonymous && c.Version.Stateless() {
		return &method.Caching{TTL: listTTL, Scope: method.Public}
	}
	return &method.Caching{TTL: listTTL, Scope: method.Private}
}

// List returns a function that serves the list of a kind, for example tools/list.
func (h *Lists) List(kind api.Kind) func(context.Context, *method.Call) (method.Result, error) {
	return func(ctx context.Context, c *method.Call) (method.Result, error) {
		switch kind {
		case api.Tools, api.Prompts:
			return h.listBackends(ctx, c, kind)
		case api.Resources:
			return h.listCatalog(ctx, c, kind, h.Subscriptions)
		}
		return h.listCatalog(ctx, c, kind, nil)
	}
}

// listCatalog serves a list with the catalog's event types, the caller's webhook subscriptions and the backends' items, in this order. If
// the parameter subscriptions is nil, the list has no subscriptions.
func (h *Lists) listCatalog(ctx context.Context, c *method.Call, kind api.Kind, subscriptions streams.Subscriptions) (method.Result, error) {
	cat, err := h.Catalogs.CatalogOf(ctx, c.Principal)
	if err != nil {
		return method.Result{}, err
	}
	l := h.listingOf(cat)
	list := l.resources
	if kind == api.Templates {
		list = l.templates
	}
	from, err := readPlace(c, kind.Member(), list.at)
	if err != nil {
		return method.Result{}, err
	}
	page := newPage(from, h.PageSize, cacheFor(c, l.open))
	if from.where == atCatalog {
		page.addCatalog(list, func(x listed) [][]byte {
			if !l.open && !x.entry.Access.VisibleTo(c.Principal) {
				return nil
			}
			return x.pieces
		})
	}
	if subscriptions != nil {
		page.cache = &method.Caching{TTL: 0, Scope: method.Private} // any page of the list may contain the caller's own subscriptions
		if from.where != atBackends && page.beginPart(atSubscriptions) {
			if err := page.addSubscriptions(ctx, c, subscriptions); err != nil {
				return method.Result{}, err
			}
		}
	} else if from.where == atSubscriptions {
		return method.Result{}, errListCursor
	}
	return h.addBackends(ctx, c, &page, kind, func(x api.Entry) []byte {
		if servesURI(cat, kind, x.Name) {
			return nil
		}
		return x.ForVersion(c.Version)
	})
}

// servesURI reports whether this server, not a backend, serves a resource or a template.
func servesURI(cat *catalog.Catalog, kind api.Kind, uri string) bool {
	if strings.HasPrefix(uri, streams.SubscriptionScheme) {
		return true
	}
	if kind == api.Templates {
		return cat.HasTemplate(uri)
	}
	return match.InCatalog(cat, uri)
}

func (p *partedPage) addSubscriptions(ctx context.Context, c *method.Call, subscriptions streams.Subscriptions) error {
	views, last, err := subscriptions.List(ctx, c.Principal, p.findStart(atSubscriptions), p.room)
	if err != nil {
		return err
	}
	for _, v := range views {
		p.add(subscriptionResource(v))
	}
	if last != "" {
		p.next = cursor{atSubscriptions, last}
	}
	return nil
}

// addBackends adds the backends' items of a kind, for example tools, to the page. It returns the finished page. The function form encodes
// an item, or returns nil to leave it out. If form is nil, the list has no items of backends.
func (h *Lists) addBackends(ctx context.Context, c *method.Call, page *partedPage, kind api.Kind, form func(api.Entry) []byte) (method.Result, error) {
	if form == nil || !h.Backends.Any(ctx) {
		if page.from.where == atBackends {
			return method.Result{}, errListCursor
		}
		page.cache.TTL = min(page.cache.TTL, listTTL)
		return page.result(nil)
	}
	c.Answer.Wait()
	list := h.Backends.List(ctx, c.Client(), kind)
	// All pages of the list must have the same caching hint, so use the shortest TTL and the strictest caching scope of the list's parts.
	page.cache = &method.Caching{TTL: min(page.cache.TTL, list.TTL.Milliseconds()), Scope: page.cache.Scope}
	if !list.Shared {
		page.cache.Scope = method.Private
	}
	if len(list.Entries) > 0 && page.beginPart(atBackends) {
		entries, after, ok := list.Page(page.findStart(atBackends), page.room)
		if !ok {
			return method.Result{}, errListCursor
		}
		for _, x := range entries {
			if text := form(x); len(text) > 0 {
				page.add(text)
			}
		}
		if after != "" {
			page.next = cursor{atBackends, after}
		}
	}
	var meta []byte
	if len(list.Conflicts) > 0 {
		meta = append([]byte(`"`+spec.MetaConflicts+`":`), jsonrpc.Encode(list.Conflicts)...)
	}
	return page.result(meta)
}

// subscriptionResource encodes a webhook subscription as a resource (SEP-1803).
func subscriptionResource(v subscription.View) []byte {
	title := "Webhook subscription"
	if v.Name != "" {
		title += " to " + v.Name
	}
	b := jsonrpc.AppendString([]byte(`{"uri":`), subscription.URI(v.ID))
	b = jsonrpc.AppendString(append(b, `,"name":`...), v.ID)
	b = jsonrpc.AppendString(append(b, `,"title":`...), title)
	b = append(b, `,"mimeType":"application/json","_meta":{"`+spec.OwnPrefix+`state":`...)
	b = jsonrpc.AppendString(b, string(v.State))
	return append(b, `}}`...)
}

// ListEvents serves events/list (SEP-3415). It leaves out event types that the caller cannot receive in any delivery mode.
func (h *Lists) ListEvents(ctx context.Context, c *method.Call) (method.Result, error) {
	if h.Backends.Any(ctx) {
		h.Backends.StartCommands(ctx, c.Client())
	}
	cat, err := h.Catalogs.CatalogOf(ctx, c.Principal)
	if err != nil {
		return method.Result{}, err
	}
	list := h.listingOf(cat).events
	from, err := readPlace(c, "events", list.at)
	if err != nil {
		return method.Result{}, err
	}
	if from.where == atSubscriptions {
		return method.Result{}, errListCursor
	}
	form := func(entry *catalog.Entry, text []byte) [][]byte {
		modes := h.deliveryModes(entry, c)
		if len(modes) == 0 || !entry.Access.VisibleTo(c.Principal) {
			return nil
		}
		return [][]byte{[]byte(`{"delivery":`), jsonrpc.Encode(modes), comma, text, []byte(`}`)}
	}
	page := newPage(from, h.PageSize, &method.Caching{TTL: 0, Scope: method.Private})
	if from.where == atCatalog {
		page.addCatalog(list, func(x listed) [][]byte { return form(x.entry, x.pieces[0]) })
	}
	var formOfCaller func(api.Entry) []byte
	if cat.HasPerCaller() {
		formOfCaller = func(x api.Entry) []byte {
			if shown := readCallerEvent(cat.ByName(x.Name), x); shown != nil {
				return bytes.Join(form(shown, encodeEvent(shown)), nil)
			}
			return nil
		}
	}
	r, err := h.addBackends(ctx, c, &page, api.Events, formOfCaller)
	r.Cache = nil // events/list has no caching hints in SEP-3415
	return r, err
}

// readCallerEvent reads an event type that a backend has listed for this caller. A backend that is called with its callers' tokens may
// list different event types for each caller. The parameter entry is the catalog's event type with the same name.
//
// readCallerEvent returns nil if x is malformed, or if entry is not the same event type of such a backend. It also returns nil if the
// backend delivers the type only by webhook, because the gateway receives a backend's events only on streams and with polls.
func readCallerEvent(entry *catalog.Entry, x api.Entry) *catalog.Entry {
	var t struct {
		catalog.BackendType
		Delivery []string `json:"delivery"`
	}
	if entry == nil || !entry.PerCaller() || entry.Backend != x.Backend || entry.Own != x.Own || json.Unmarshal(x.JSON, &t) != nil ||
		!slices.Contains(t.Delivery, spec.ModePush) && !slices.Contains(t.Delivery, spec.ModePoll) {
		return nil
	}
	t.Name = x.Own
	types := catalog.BackendTypes{Prefix: strings.TrimSuffix(x.Name, x.Own), Scopes: entry.Access.Scopes, PerCaller: true}
	shown, err := catalog.NewBackendEntry(x.Backend, types, t.BackendType)
	if err != nil || shown.Check() != nil {
		return nil
	}
	return shown
}

func (h *Lists) deliveryModes(entry *catalog.Entry, c *method.Call) []string {
	p := c.Principal
	var modes []string
	if entry.PushAllowed() && h.Methods.Has(spec.MethodEventsStream) && c.Version.Stateless() && p.Has(auth.ScopeRead) {
		modes = append(modes, spec.ModePush)
	}
	if entry.PollAllowed() && h.Methods.Has(spec.MethodEventsPoll) && p.Has(auth.ScopeRead) {
		modes = append(modes, spec.ModePoll)
	}
	if entry.WebhookAllowed() && h.Methods.Has(spec.MethodEventsSub) && p.Has(auth.ScopeSubscribe) &&
		(!p.Anonymous || h.Anonymous) {
		modes = append(modes, spec.ModeWebhook)
	}
	return slices.Clip(modes)
}

// listBackends serves tools/list and prompts/list. The endpoint's own tools precede the backends' items.
func (h *Lists) listBackends(ctx context.Context, c *method.Call, kind api.Kind) (method.Result, error) {
	from, err := readPlace(c, kind.Member(), nil)
	if err != nil {
		return method.Result{}, err
	}
	if from.where == atSubscriptions {
		return method.Result{}, errListCursor
	}
	cache := cacheFor(c, true)
	cache.TTL = math.MaxInt64 // addBackends lowers it to the TTLs of the backends, or to listTTL without backends
	page := newPage(from, h.PageSize, cache)
	if kind == api.Tools && h.Tools != nil && from.where == atCatalog {
		for _, tool := range h.Tools.ListEntries() {
			page.add(tool)
		}
	}
	return h.addBackends(ctx, c, &page, kind, func(x api.Entry) []byte {
		if kind == api.Tools && h.Tools != nil && h.Tools.Has(x.Name) {
			return nil
		}
		return x.ForVersion(c.Version)
	})
}

// Tools are the endpoint's own tools. They hide tools of backends with the same names.
type Tools interface {
	// Instructions tell a model how to use the tools.
	Instructions() string
	ListEntries() [][]byte
	Has(name string) bool
	Call(ctx context.Context, c *method.Call) (method.Result, error)
}

// listed is an entry of a list, encoded as JSON in several pieces that have to be concatenated.
type listed struct {
	entry  *catalog.Entry
	pieces [][]byte
}

// entries are the catalog's event types that one of the lists contains, for example resources/list. The map at has the index of each
// event type by its name.
type entries struct {
	all []listed
	at  map[string]int
}

func (es *entries) add(entry *catalog.Entry, text []byte) {
	if es.at == nil {
		es.at = map[string]int{}
	}
	es.at[entry.Name] = len(es.all)
	es.all = append(es.all, listed{entry, [][]byte{text}})
}

// listing has the event types of a catalog, encoded for each of the lists.
type listing struct {
	resources, templates, events entries
	open                         bool // all principals see the same lists, because no entry has an access rule
}

// eventResource is an event type in the form of a resource. It is an EventResource of SEP-1803 if its URI is fixed, and otherwise an
// EventResourceTemplate.
type eventResource struct {
	URI         string    `json:"uri,omitempty"`
	URITemplate string    `json:"uriTemplate,omitempty"`
	Name        string    `json:"name"`
	Title       string    `json:"title,omitempty"`
	Description string    `json:"description,omitempty"`
	MIMEType    string    `json:"mimeType"`
	Meta        eventMeta `json:"_meta"`
}

type eventMeta struct {
	EventSchema  json.RawMessage `json:"eventSchema,omitempty"`
	ParamsSchema json.RawMessage `json:"paramsSchema,omitempty"`
	WebhookType  string          `json:"webhookType,omitempty"`
}

func encodeCatalog(cat *catalog.Catalog) *listing {
	l := &listing{open: true}
	for _, entry := range cat.Entries() {
		l.open = l.open && entry.Access == nil
		r := eventResource{
			URI: entry.URI, URITemplate: entry.URITemplate, Name: entry.Name, Title: entry.Title,
			Description: entry.Description, MIMEType: "application/json",
			Meta: eventMeta{EventSchema: entry.PayloadSchema, WebhookType: entry.WebhookType},
		}
		l.events.add(entry, encodeEvent(entry))
		if entry.Backend != "" { // not a resource, because a client cannot fill in its arguments as variables of a URI
			continue
		}
		if entry.Fixed() {
			l.resources.add(entry, jsonrpc.Encode(r))
			continue
		}
		r.Meta.ParamsSchema = paramsSchema(entry)
		l.templates.add(entry, jsonrpc.Encode(r))
	}
	return l
}

// paramsSchema returns the JSON Schema for the variables of an event type's URI template. If the event type has no such schema,
// paramsSchema returns a schema that requires a string for each variable.
func paramsSchema(entry *catalog.Entry) json.RawMessage {
	if entry.ParamsSchema != nil {
		return entry.ParamsSchema
	}
	properties := map[string]any{}
	for _, v := range entry.Variables() {
		properties[v] = map[string]string{"type": "string"}
	}
	return jsonrpc.Encode(map[string]any{"type": "object", "properties": properties, "required": entry.Variables()})
}

// eventType is an entry of events/list without the delivery modes, which depend on the caller.
type eventType struct {
	Name          string          `json:"name"`
	Title         string          `json:"title,omitempty"`
	Description   string          `json:"description"`
	InputSchema   json.RawMessage `json:"inputSchema"`
	PayloadSchema json.RawMessage `json:"payloadSchema"`
}

func encodeEvent(entry *catalog.Entry) []byte {
	payload := entry.PayloadSchema
	switch {
	case payload == nil:
		payload = json.RawMessage(`{"type":"object"}`)
	case len(entry.Redact) > 0:
		payload = withoutRequired(payload, entry.Redact)
	}
	return method.WithoutBraces(jsonrpc.Encode(eventType{entry.Name, entry.Title, entry.Description, entry.InputSchema(), payload}))
}

// withoutRequired returns a payload schema in which the members at the given JSON Pointers are optional. They are optional because a
// subscription may have an argument that removes these members from its events (requirement EVX-04).
func withoutRequired(schema json.RawMessage, pointers []string) json.RawMessage {
	root := jsonrpc.Value(schema)
	for _, text := range pointers {
		path, _ := jsonpointer.Parse(text) // cannot fail, because the catalog has checked the pointer
		node, _ := root.(map[string]any)
		for _, name := range path[:len(path)-1] {
			properties, _ := node["properties"].(map[string]any)
			next, ok := properties[name]
			if !ok {
				next = node["items"] // if the name is the index of an element of a list
			}
			node, _ = next.(map[string]any)
		}
		if required, ok := node["required"].([]any); ok {
			node["required"] = slices.DeleteFunc(required, func(name any) bool { return name == path[len(path)-1] })
		}
	}
	return jsonrpc.Encode(root)
}

// cursor is the position at which a list continues. As the next cursor of a page, the zero value means that the list has ended.
type cursor struct {
	where byte   // the part of the list, for example atCatalog
	after string // the last entry sent, or the backends' own cursor; empty at the beginning of the part
}

// A cursor begins with one of these letters, which name a part of the list. The letter is in upper case if the list may be cached
// publicly.
const (
	atCatalog       = 'c'
	atSubscriptions = 's'
	atBackends      = 'b'
)

// maxCursor is the maximum length of a decoded cursor, in bytes. It suffices for a cursor with the longest name of an entry.
const maxCursor = 1200

// member returns the cursor as the JSON member nextCursor of a page. The parameter list is the name of the list, for example "tools". The
// parameter scope is the caching scope of the page.
func (c cursor) member(list, scope string) []byte {
	where := c.where
	if scope == method.Public {
		where -= 'a' - 'A'
	}
	b := append([]byte(`,"nextCursor":"`), opaque.Encode(append([]byte{where}, list+" "+c.after...))...)
	return append(b, '"')
}

// place is the position in a list at which a page begins.
type place struct {
	cursor
	list  string // the list's member in the result
	first int    // index of the first entry of the catalog on this page
	scope string // the caching scope of the previous page; empty for the first page
}

// readPlace returns the position that the request's cursor names, or the beginning of the list if the request has no cursor. The map at
// has the indices of the catalog's entries by their names.
func readPlace(c *method.Call, list string, at map[string]int) (place, error) {
	token, given, err := c.OptionalString("cursor")
	if err != nil || !given {
		return place{cursor: cursor{where: atCatalog}, list: list}, err
	}
	p, ok := parseCursor(list, token)
	if ok && p.where == atCatalog {
		p.first, ok = at[p.after]
		p.first++
	}
	if !ok {
		return place{}, errListCursor
	}
	return p, nil
}

var errListCursor = method.InvalidParams("the cursor is not from this list")

func parseCursor(list, token string) (p place, ok bool) {
	raw, err := opaque.Decode(token)
	if err != nil || len(raw) == 0 || len(raw) > maxCursor {
		return p, false
	}
	p.where, p.scope = raw[0], method.Private
	if p.list, p.after, _ = strings.Cut(string(raw[1:]), " "); p.list != list {
		return p, false
	}
	if p.where < 'a' {
		p.where += 'a' - 'A'
		p.scope = method.Public
	}
	return p, bytes.IndexByte([]byte{atCatalog, atSubscriptions, atBackends}, p.where) >= 0
}

// partedPage is a page of a list that consists of several parts: entries of the catalog, webhook subscriptions, and items of backends.
type partedPage struct {
	from   place
	pieces [][]byte
	n      int // number of entries
	room   int // number of entries that can still be added
	next   cursor
	cache  *method.Caching
}

func newPage(from place, room int, cache *method.Caching) partedPage {
	return partedPage{from: from, pieces: [][]byte{[]byte(`"` + from.list + `":[`)}, room: room, cache: cache}
}

func (p *partedPage) add(pieces ...[]byte) {
	if p.n > 0 {
		p.pieces = append(p.pieces, comma)
	}
	p.pieces = append(p.pieces, pieces...)
	p.n++
	p.room--
}

// addCatalog adds entries of the catalog until the page is full. The function form encodes an entry, or returns nil to leave it out.
func (p *partedPage) addCatalog(list entries, form func(listed) [][]byte) {
	last := "" // the last visible entry, because the caller must not learn the names of others
	for _, x := range list.all[min(p.from.first, len(list.all)):] {
		pieces := form(x)
		if pieces == nil {
			continue
		}
		if p.room == 0 {
			p.next = cursor{atCatalog, last}
			return
		}
		p.add(pieces...)
		last = x.entry.Name
	}
}

var comma = []byte(",")

// beginPart reports whether this page has room for entries of the given part of the list. If the page is full, it makes the next page
// begin with that part.
func (p *partedPage) beginPart(part byte) bool {
	if p.next != (cursor{}) {
		return false
	}
	if p.room > 0 {
		return true
	}
	p.next = cursor{where: part}
	return false
}

// findStart returns the position in a part of the list after which this page begins, or "" for the beginning of the part.
func (p *partedPage) findStart(part byte) string {
	if p.from.where != part {
		return ""
	}
	return p.from.after
}

var closing = []byte("]")

// result returns the page as a method's result. The parameter meta has the members of _meta. All pages of a list must have the same
// caching scope (2026-07-28, Caching). If the previous page was public and this page is private, result returns an error, and the client
// has to read the list again from the beginning.
func (p *partedPage) result(meta []byte) (method.Result, error) {
	switch p.from.scope {
	case method.Public:
		if p.cache.Scope != method.Public {
			return method.Result{}, errListCursor
		}
	case method.Private:
		p.cache.Scope = method.Private
	}
	r := method.Result{Members: append(p.pieces, closing), Meta: meta, Cache: p.cache}
	if p.next != (cursor{}) {
		r.Members = append(r.Members, p.next.member(p.from.list, p.cache.Scope))
	}
	return r, nil
}
