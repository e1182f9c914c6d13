package mcp

import (
	"context"
	"math"
	"slices"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// lists serves the lists.
type lists struct {
	catalogs      catalogs
	subscriptions Subscriptions
	backends      Gateway
	tools         Tools // nil without any
	methods       methodTable
	pageSize      int
	anonymous     bool // see [Options.AnonymousWebhooks]

	// The encoded catalogs: one per workspace at most. A catalog that changed is never asked for again.
	kept *bounded.Map[*catalog.Catalog, *listing]
}

const maxListings = 256

// newLists returns lists with the given dependencies.
func newLists(l lists) *lists {
	l.kept = bounded.NewMap[*catalog.Catalog, *listing](maxListings)
	return &l
}

func (h *lists) listing(cat *catalog.Catalog) *listing {
	l, ok := h.kept.Get(cat)
	if !ok {
		l = encodeCatalog(cat)
		h.kept.Put(cat, l)
	}
	return l
}

// listTTL is how long, in milliseconds, a client may keep a list of event types:
// about as long as a changed catalog takes to be seen everywhere.
const listTTL = 5000

// shared is the scope of a result that is the same for everybody who may call.
// Only without authentication is that everyone; up to 2025-11-25 no hint is sent.
func (c *call) shared(open bool) *caching {
	if open && c.principal.Anonymous && c.version.Stateless() {
		return &caching{listTTL, public}
	}
	return &caching{listTTL, private}
}

// list serves the lists of a kind.
func (h *lists) list(kind api.Kind) func(context.Context, *call) (result, error) {
	return func(ctx context.Context, c *call) (result, error) {
		switch kind {
		case api.Tools, api.Prompts:
			return h.listBackends(ctx, c, kind)
		case api.Resources: // the event types with a fixed URI, then the caller's webhook subscriptions, then what backends have
			return h.listCatalog(ctx, c, kind, h.subscriptions)
		}
		return h.listCatalog(ctx, c, kind, nil)
	}
}

// listCatalog serves a list of event types, of subscriptions unless they are nil, and of what backends have.
func (h *lists) listCatalog(ctx context.Context, c *call, kind api.Kind, subscriptions Subscriptions) (result, error) {
	cat, err := h.catalogs.of(ctx, c.principal)
	if err != nil {
		return result{}, err
	}
	l := h.listing(cat)
	list := l.resources
	if kind == api.Templates {
		list = l.templates
	}
	from, err := c.place(kind.Member(), list.at)
	if err != nil {
		return result{}, err
	}
	page := newPage(from, h.pageSize, c.shared(l.open))
	if from.where == atCatalog {
		page.addCatalog(list, func(x listed) [][]byte {
			if !l.open && !x.entry.Access.VisibleTo(c.principal) {
				return nil
			}
			return x.pieces
		})
	}
	if subscriptions != nil {
		page.cache = &caching{0, private} // the caller's own, on whichever page they stand
		if from.where != atBackends && page.goesOn(atSubscriptions) {
			if err := page.addSubscriptions(ctx, c, subscriptions); err != nil {
				return result{}, err
			}
		}
	} else if from.where == atSubscriptions {
		return result{}, errListCursor
	}
	return h.addBackends(ctx, c, &page, kind)
}

func (p *partedPage) addSubscriptions(ctx context.Context, c *call, subscriptions Subscriptions) error {
	views, last, err := subscriptions.List(ctx, c.principal, p.after(atSubscriptions), p.room)
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

// addBackends adds what backends have of a kind, and makes the result of the page.
func (h *lists) addBackends(ctx context.Context, c *call, page *partedPage, kind api.Kind) (result, error) {
	if !h.backends.Any(ctx) {
		if page.from.where == atBackends {
			return result{}, errListCursor
		}
		page.cache.ttl = min(page.cache.ttl, listTTL)
		return page.result(nil)
	}
	c.late.waits(c.late.timing.answerAfter)
	list := h.backends.List(ctx, c.client(), kind)
	// On all pages the same: the strictest scope and the shortest time.
	page.cache = &caching{min(page.cache.ttl, list.TTL.Milliseconds()), page.cache.scope}
	if !list.Shared {
		page.cache.scope = private
	}
	if len(list.Entries) > 0 && page.goesOn(atBackends) {
		entries, after, ok := list.Page(page.after(atBackends), page.room)
		if !ok {
			return result{}, errListCursor
		}
		for _, x := range h.backendEntries(kind, entries) {
			page.add(x.For(c.version))
		}
		if after != "" {
			page.next = cursor{atBackends, after}
		}
	}
	var meta []byte
	if len(list.Conflicts) > 0 {
		meta = append([]byte(`"`+MetaConflicts+`":`), jsonrpc.Encode(list.Conflicts)...)
	}
	return page.result(meta)
}

// subscriptionResource is a webhook subscription as a resource (SEP-1803).
func subscriptionResource(v subscription.View) []byte {
	title := "Webhook subscription"
	if v.Name != "" {
		title += " to " + v.Name
	}
	b := jsonrpc.AppendString([]byte(`{"uri":`), subscription.URI(v.ID))
	b = jsonrpc.AppendString(append(b, `,"name":`...), v.ID)
	b = jsonrpc.AppendString(append(b, `,"title":`...), title)
	b = append(b, `,"mimeType":"application/json","_meta":{"`+Prefix+`state":`...)
	b = jsonrpc.AppendString(b, string(v.State))
	return append(b, `}}`...)
}

// listEvents serves events/list (SEP-3415). An event type that this caller
// cannot have in any mode is left out.
func (h *lists) listEvents(ctx context.Context, c *call) (result, error) {
	cat, err := h.catalogs.of(ctx, c.principal)
	if err != nil {
		return result{}, err
	}
	list := h.listing(cat).events
	from, err := c.place("events", list.at)
	if err != nil {
		return result{}, err
	}
	if from.where != atCatalog {
		return result{}, errListCursor
	}
	page := newPage(from, h.pageSize, &caching{0, private})
	page.addCatalog(list, func(x listed) [][]byte {
		modes := h.modes(x.entry, c)
		if len(modes) == 0 || !x.entry.Access.VisibleTo(c.principal) {
			return nil
		}
		return [][]byte{[]byte(`{"delivery":`), jsonrpc.Encode(modes), comma, x.pieces[0], []byte(`}`)}
	})
	r, err := page.result(nil)
	r.cache = nil // this list has no hints
	return r, err
}

// modes lists the modes in which the caller can have an event type here, in the
// revision that it speaks.
func (h *lists) modes(entry *catalog.Entry, c *call) []string {
	p := c.principal
	var modes []string
	if entry.PushAllowed() && h.methods.has(spec.MethodEventsStream) && c.version.Stateless() && p.Has(auth.ScopeRead) {
		modes = append(modes, spec.ModePush)
	}
	if entry.PollAllowed() && h.methods.has(spec.MethodEventsPoll) && p.Has(auth.ScopeRead) {
		modes = append(modes, spec.ModePoll)
	}
	if entry.WebhookAllowed() && h.methods.has(spec.MethodEventsSub) && p.Has(auth.ScopeSubscribe) &&
		(!p.Anonymous || h.anonymous) {
		modes = append(modes, spec.ModeWebhook)
	}
	return slices.Clip(modes)
}

// listBackends serves a list of what backends have, after the tools of our own.
func (h *lists) listBackends(ctx context.Context, c *call, kind api.Kind) (result, error) {
	from, err := c.place(kind.Member(), nil)
	if err != nil {
		return result{}, err
	}
	if from.where == atSubscriptions {
		return result{}, errListCursor
	}
	cache := c.shared(true)
	cache.ttl = math.MaxInt64 // as long as the backends say
	page := newPage(from, h.pageSize, cache)
	if kind == api.Tools && h.tools != nil && from.where == atCatalog {
		for _, tool := range h.tools.Listed() {
			page.add(tool)
		}
	}
	return h.addBackends(ctx, c, &page, kind)
}

// Tools are tools of the endpoint's own. They hide those of backends that have the same names.
type Tools interface {
	// Instructions tell a model how to use the tools.
	Instructions() string
	// Listed returns the encoded entries of tools/list.
	Listed() [][]byte
	Has(name string) bool
	// Call serves a tools/call.
	Call(ctx context.Context, c *call) (result, error)
}

// backendEntries returns the entries of a backends' list without the tools that one of our own hides.
func (h *lists) backendEntries(kind api.Kind, entries []api.Entry) []api.Entry {
	if h.tools == nil || kind != api.Tools {
		return entries
	}
	return slices.DeleteFunc(slices.Clone(entries), func(x api.Entry) bool { return h.tools.Has(x.Name) })
}
