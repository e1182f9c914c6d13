package gateway

import (
	"context"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
)

// Has reports whether a backend of the principal has something of that name.
func (g *Gateway) Has(ctx context.Context, c api.Client, kind api.Kind, name string) bool {
	_, ok := g.lists.serves(ctx, g.backends.shown(ctx, c), kind, name)
	return ok
}

// serves finds who of the backends serves a name: the entry of that name, or for a URI the template that
// stands for it. It looks into the lists at hand; before it says that there is none, into those as
// they are now.
func (ls *lists) serves(ctx context.Context, views []*view, kind api.Kind, name string) (entry, bool) {
	if e, ok := find(views, kind, name, func(kind api.Kind) ([]*fetched, bool) { return atHand(views, kind) }); ok {
		return e, true
	}
	return find(views, kind, name, func(kind api.Kind) ([]*fetched, bool) {
		lists, _ := ls.gather(ctx, views, kind, func(*fetched) time.Duration { return min(missTTL, ls.options.ListTTL) })
		return lists, true
	})
}

// find looks a name up: the first backend that has it serves it, see [ownerByPrefix] for the exception. Resources come
// before templates. In lists that are incomplete it finds only names that no other backend could serve.
func find(views []*view, kind api.Kind, name string, lists func(api.Kind) (l []*fetched, all bool)) (entry, bool) {
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

// all are the entries; there are none of a list that is not known.
func (f *fetched) all() []entry {
	if f == nil {
		return nil
	}
	return f.entries
}

// atHand are the lists that were fetched not long ago, whether they have changed since
// or not, up to the first that is not at hand, whose names go before those that follow.
func atHand(views []*view, kind api.Kind) (lists []*fetched, all bool) {
	lists = make([]*fetched, 0, len(views))
	for _, v := range views {
		l := v.have(kind)
		if l == nil {
			return lists, false
		}
		lists = append(lists, l)
	}
	return lists, true
}

// have is the list that was fetched last, if that is not long ago, or whatever there is while
// the backend rests.
func (v *view) have(kind api.Kind) *fetched {
	v.mu.Lock()
	defer v.mu.Unlock()
	l := v.lists[kind]
	switch {
	case l != nil && l.at.After(v.stale) && time.Since(l.at) < v.of.options.ListTTL:
		return l
	case !time.Now().Before(v.rests[kind].until):
		return nil
	case l == nil:
		return &fetched{}
	}
	return l
}
