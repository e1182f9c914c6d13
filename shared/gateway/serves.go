package gateway

import (
	"context"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
)

// Has reports whether one of the client's backends has an entry with the given name.
func (g *Gateway) Has(ctx context.Context, c api.Client, kind api.Kind, name string) bool {
	_, ok := g.lists.findEntry(ctx, g.backends.viewsFor(ctx, c), kind, name)
	return ok
}

// findEntry finds the entry with the given name, or for a URI the resource template that matches it. It first looks in
// the cached lists. If the name is not in them, it fetches current lists before it reports false.
func (ls *lists) findEntry(ctx context.Context, views []*view, kind api.Kind, name string) (entry, bool) {
	if e, ok := lookUp(views, kind, name, func(kind api.Kind) ([]*fetched, bool) { return cachedLists(views, kind) }); ok {
		return e, true
	}
	return lookUp(views, kind, name, func(kind api.Kind) ([]*fetched, bool) {
		lists, _ := ls.gather(ctx, views, kind, func(*fetched) time.Duration { return min(missTTL, ls.options.ListTTL) })
		return lists, true
	})
}

// lookUp finds a name in the lists. If several backends have it, the first one serves it; [ownerByPrefix] describes an
// exception. Resources take precedence over templates. If lists reports that some are missing, lookUp finds only
// names that no missing list could claim.
func lookUp(views []*view, kind api.Kind, name string, lists func(api.Kind) (l []*fetched, all bool)) (entry, bool) {
	of, all := lists(kind)
	for _, l := range of {
		for i := range l.all() {
			if l.entries[i].Name == name && ownerByPrefix(views, kind, &l.entries[i]) == nil {
				return l.entries[i], true
			}
		}
	}
	if kind != api.Resources || !all {
		return entry{}, false
	}
	templates, _ := lists(api.Templates)
	for _, l := range templates {
		for _, t := range l.all() {
			if t.matches != nil && t.matches(name) {
				return entry{Entry: api.Entry{Name: name, Backend: t.Backend, Own: name}, view: t.view}, true
			}
		}
	}
	return entry{}, false
}

// ownerByPrefix returns the backend to which the name of an entry belongs because it begins with that backend's prefix,
// and nil if that is the entry's own backend. For example, a backend without a prefix cannot show a tool gh_merge as that
// of the backend with the prefix gh_.
func ownerByPrefix(views []*view, kind api.Kind, e *entry) *backend {
	if !kind.Prefixed() {
		return nil
	}
	var owner *backend
	longest := len(e.view.of.Prefix)
	for _, v := range views {
		if p := v.of.Prefix; len(p) > longest && strings.HasPrefix(e.Name, p) {
			owner, longest = v.of, len(p)
		}
	}
	return owner
}

// all returns the entries, or nil if the list was never fetched.
func (f *fetched) all() []entry {
	if f == nil {
		return nil
	}
	return f.entries
}

// cachedLists returns the lists that were fetched recently, even if they have changed since. It stops at the first view
// without one, because that backend's names would take precedence over those of the following backends.
func cachedLists(views []*view, kind api.Kind) (lists []*fetched, all bool) {
	lists = make([]*fetched, 0, len(views))
	for _, v := range views {
		l := v.cachedList(kind)
		if l == nil {
			return lists, false
		}
		lists = append(lists, l)
	}
	return lists, true
}
