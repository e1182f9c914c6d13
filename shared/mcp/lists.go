package mcp

import (
	"context"
	"math"
	"slices"
	"sync"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/catalog"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/subscription"
)

// lists serves the lists.
type lists struct {
	catalogs      catalogs
	subscriptions Subscriptions
	backends      Gateway
	methods       methodTable
	pageSize      int
	anonymous     bool // see [Options.AnonymousWebhooks]

	// The encoded catalogs: one per workspace at most, and dropped all
	// together when there are too many, since a catalog that changed is never asked for again.
	mu   sync.Mutex
	kept map[*catalog.Catalog]*listing
}

const maxListings = 256

func (h *lists) listing(cat *catalog.Catalog) *listing {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.kept[cat]; l != nil {
		return l
	}
	if h.kept == nil || len(h.kept) >= maxListings {
		h.kept = map[*catalog.Catalog]*listing{}
	}
	l := encodeCatalog(cat, h.pageSize)
	h.kept[cat] = l
	return l
}

// page collects the entries from first on that the caller may see.
func (h *lists) page(p auth.Principal, open bool, entries []listed, first int) (pieces [][]byte, n int, next cursor) {
	pieces = make([][]byte, 0, 2*min(len(entries), h.pageSize))
	last := "" // not just the one before: its name may be none of the caller's business
	for _, x := range entries[min(first, len(entries)):] {
		if !open && !auth.Visible(x.entry.Access, p) {
			continue
		}
		if n == h.pageSize {
			return pieces, n, cursor{atCatalog, last}
		}
		if n > 0 {
			pieces = append(pieces, comma)
		}
		pieces = append(pieces, x.json)
		last = x.entry.Name
		n++
	}
	return pieces, n, cursor{}
}

var comma = []byte(",")

// listTTL is how long, in milliseconds, a client may keep a list of event types:
// about as long as a changed catalog takes to be seen everywhere.
const listTTL = 5000

// shared is the scope of a result that is the same for everybody who may call.
// Only without authentication is that everybody; up to 2025-11-25 nobody is told.
func (c *call) shared(open bool) *caching {
	if open && c.principal.Anonymous && c.version.Stateless() {
		return &caching{listTTL, public}
	}
	return &caching{listTTL, private}
}

// listResources serves resources/list: the event types with a fixed URI, then
// the caller's webhook subscriptions, then what backends have.
func (h *lists) listResources(ctx context.Context, c *call) (result, error) {
	cat, err := h.catalogs.of(ctx, c.principal)
	if err != nil {
		return result{}, err
	}
	l := h.listing(cat)
	from, err := c.place(l.resourceAt)
	if err != nil {
		return result{}, err
	}
	page := newPage("resources", from, h.pageSize, c.shared(l.open))
	if from.where == atCatalog {
		if l.open && from.first == 0 && len(l.resources) <= h.pageSize {
			page.add(len(l.resources), cursor{}, l.firstResources)
		} else {
			more, n, next := h.page(c.principal, l.open, l.resources, from.first)
			page.add(n, next, more...)
		}
	}
	if h.subscriptions != nil {
		page.cache = &caching{0, private} // the caller's own, on whichever page they stand
		if from.where != atBackends && page.goesOn(atSubscriptions) {
			if err := h.addSubscriptions(ctx, c, &page); err != nil {
				return result{}, err
			}
		}
	} else if from.where == atSubscriptions {
		return result{}, errListCursor
	}
	return h.addBackends(ctx, c, &page, api.Resources)
}

func (h *lists) addSubscriptions(ctx context.Context, c *call, page *partedPage) error {
	views, last, err := h.subscriptions.List(ctx, c.principal, page.behind(atSubscriptions), page.room)
	if err != nil {
		return err
	}
	var pieces [][]byte
	for i, v := range views {
		if i > 0 {
			pieces = append(pieces, comma)
		}
		pieces = append(pieces, subscriptionResource(v))
	}
	var next cursor
	if last != "" {
		next = cursor{atSubscriptions, last}
	}
	page.add(len(views), next, pieces...)
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
	c.waits()
	list := h.backends.List(ctx, c.client(), kind)
	// On all pages the same: the strictest scope and the shortest time.
	page.cache = &caching{min(page.cache.ttl, list.TTL.Milliseconds()), page.cache.scope}
	if !list.Shared {
		page.cache.scope = private
	}
	if len(list.Entries) > 0 && page.goesOn(atBackends) {
		entries, after, ok := list.Page(page.behind(atBackends), page.room)
		if !ok {
			return result{}, errListCursor
		}
		var pieces [][]byte
		for i, x := range entries {
			if i > 0 {
				pieces = append(pieces, comma)
			}
			pieces = append(pieces, x.For(c.version))
		}
		var next cursor
		if after != "" {
			next = cursor{atBackends, after}
		}
		page.add(len(entries), next, pieces...)
	}
	var meta []byte
	if len(list.Conflicts) > 0 {
		meta = append([]byte(`"`+MetaConflicts+`":`), mustJSON(list.Conflicts)...)
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

// listTemplates serves resources/templates/list.
func (h *lists) listTemplates(ctx context.Context, c *call) (result, error) {
	cat, err := h.catalogs.of(ctx, c.principal)
	if err != nil {
		return result{}, err
	}
	l := h.listing(cat)
	from, err := c.place(l.tmplAt)
	if err != nil {
		return result{}, err
	}
	if from.where == atSubscriptions {
		return result{}, errListCursor
	}
	page := newPage("resourceTemplates", from, h.pageSize, c.shared(l.open))
	if from.where == atCatalog {
		if l.open && from.first == 0 && len(l.templates) <= h.pageSize {
			page.add(len(l.templates), cursor{}, l.firstTemplates)
		} else {
			more, n, next := h.page(c.principal, l.open, l.templates, from.first)
			page.add(n, next, more...)
		}
	}
	return h.addBackends(ctx, c, &page, api.Templates)
}

// listEvents serves events/list (SEP-3415). An event type that this caller
// cannot have in any mode is left out.
func (h *lists) listEvents(ctx context.Context, c *call) (result, error) {
	cat, err := h.catalogs.of(ctx, c.principal)
	if err != nil {
		return result{}, err
	}
	l := h.listing(cat)
	from, err := c.place(l.eventAt)
	if err != nil {
		return result{}, err
	}
	if from.where != atCatalog {
		return result{}, errListCursor
	}
	pieces := [][]byte{[]byte(`"events":[`)}
	n, last := 0, ""
	var next []byte
	for _, x := range l.events[min(from.first, len(l.events)):] {
		modes := h.modes(x.entry, c)
		if len(modes) == 0 || !auth.Visible(x.entry.Access, c.principal) {
			continue
		}
		if n == h.pageSize {
			next = cursor{atCatalog, last}.member(private)
			break
		}
		if n > 0 {
			pieces = append(pieces, comma)
		}
		pieces = append(pieces, []byte(`{"delivery":`), mustJSON(modes), comma, x.json, []byte(`}`))
		last = x.entry.Name
		n++
	}
	return result{members: append(pieces, closing, next)}, nil
}

// modes lists the modes in which the caller can have an event type here, in the
// revision that it speaks.
func (h *lists) modes(entry *catalog.Entry, c *call) []string {
	p := c.principal
	var modes []string
	if entry.PushAllowed() && h.methods.has(mcpspec.MethodEventsStream) && c.version.Stateless() && p.Has(auth.ScopeRead) {
		modes = append(modes, mcpspec.ModePush)
	}
	if entry.PollAllowed() && h.methods.has(mcpspec.MethodEventsPoll) && p.Has(auth.ScopeRead) {
		modes = append(modes, mcpspec.ModePoll)
	}
	if entry.WebhookAllowed() && h.methods.has(mcpspec.MethodEventsSub) && p.Has(auth.ScopeSubscribe) &&
		(!p.Anonymous || h.anonymous) {
		modes = append(modes, mcpspec.ModeWebhook)
	}
	return slices.Clip(modes)
}

func (h *lists) listTools(ctx context.Context, c *call) (result, error) {
	return h.listBackends(ctx, c, api.Tools, "tools")
}

func (h *lists) listPrompts(ctx context.Context, c *call) (result, error) {
	return h.listBackends(ctx, c, api.Prompts, "prompts")
}

// listBackends serves a list that only backends have entries of.
func (h *lists) listBackends(ctx context.Context, c *call, kind api.Kind, member string) (result, error) {
	from, err := c.place(nil)
	if err != nil {
		return result{}, err
	}
	if from.where == atSubscriptions {
		return result{}, errListCursor
	}
	cache := c.shared(true)
	cache.ttl = math.MaxInt64 // as long as the backends say
	page := newPage(member, from, h.pageSize, cache)
	return h.addBackends(ctx, c, &page, kind)
}
