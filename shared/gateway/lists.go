package gateway

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yosida95/uritemplate/v3"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
)

// Kind is what a list is of.
type Kind uint8

// The kinds.
const (
	Tools Kind = iota
	Prompts
	Resources
	Templates
)

// kinds say how each is asked for and named.
var kinds = [...]struct {
	what, method, member, name string
	prefixed                   bool
}{
	Tools:     {"tool", mcpspec.MethodToolsList, "tools", "name", true},
	Prompts:   {"prompt", mcpspec.MethodPromptsList, "prompts", "name", true},
	Resources: {"resource", mcpspec.MethodResources, "resources", "uri", false},
	Templates: {"resource template", mcpspec.MethodTemplates, "resourceTemplates", "uriTemplate", false},
}

// Bounds of one backend's list; of all its pages and of a name in bytes, of the time for all pages in
// those for one answer.
const (
	maxPages   = 200
	maxEntries = 10_000
	maxList    = 32 << 20
	maxName    = 1024
	maxAsks    = 3
)

// Entry is one entry of a gathered list.
type Entry struct {
	// Name is the name or URI that the client uses: with the backend's prefix where names have one.
	Name string
	// JSON is the entry as the backend sent it, but for the name.
	JSON json.RawMessage

	backend *backend
	own     string // its name at the backend
	// matches is set for a template: whether it stands for a URI.
	matches func(uri string) bool
}

// List is what the backends of a principal have of a kind, in the order of the
// configuration and of each backend.
type List struct {
	Entries []Entry
	// Conflicts are names that more than one backend has; the first one serves them.
	Conflicts []string
	// TTL is how long a client may keep it: the shortest time that a backend gives.
	TTL time.Duration
	// Shared is true when every backend says that its list is the same for all callers.
	Shared bool

	parts []part // in the order of Entries
}

// fetched is a backend's list, and when it was begun to be fetched.
type fetched struct {
	entries     []Entry
	at          time.Time
	ttl         time.Duration
	shared      bool
	listVersion string // that it had before
}

// fetching is a fetch under way, of a list with that list version.
type fetching struct {
	*flight[*fetched]
	listVersion string
}

// maxTTL bounds what a backend can promise of its list.
const maxTTL = 24 * time.Hour

// missTTL is how old the list may be by which a name is said to be unknown.
const missTTL = time.Second

// List gathers the lists of all backends that a client may use, as they are now by what
// the backends say of their time to live and of their changes. A backend that cannot be reached
// gives what it had last, or nothing.
func (g *Gateway) List(ctx context.Context, c Client, kind Kind) *List {
	return g.list(ctx, c, kind, func(l *fetched) time.Duration { return min(l.ttl, g.options.ListTTL) })
}

// list gathers the lists, each used for as long as it says from when it was fetched, and
// while its list version is the same.
func (g *Gateway) list(ctx context.Context, c Client, kind Kind, use func(*fetched) time.Duration) *List {
	backends := g.shown(ctx, c)
	versions := g.listVersions(ctx, backends, kind)
	lists := make([]*fetched, len(backends))
	var (
		wg      sync.WaitGroup
		failing atomic.Bool
	)
	for i, b := range backends {
		wg.Go(func() {
			var err error
			if lists[i], err = b.as(ctx, c).list(ctx, kind, versions[i], use); err != nil {
				failing.Store(true)
				g.options.Log.WarnContext(ctx, "a backend's list could not be had", "backend", b.Name, "of", kinds[kind].what, "error", err)
			}
		})
	}
	wg.Wait()
	out := g.join(ctx, kind, backends, lists)
	if failing.Load() {
		out.TTL = min(out.TTL, g.options.ListTTL)
	}
	return out
}

// atHand are the lists that were fetched not long ago, whether they have changed since
// or not. It reports false when one of them is not.
func (g *Gateway) atHand(ctx context.Context, c Client, kind Kind) (*List, bool) {
	backends := g.shown(ctx, c)
	lists := make([]*fetched, len(backends))
	for i, b := range backends {
		if lists[i] = b.as(ctx, c).have(kind); lists[i] == nil {
			return nil, false
		}
	}
	return g.join(ctx, kind, backends, lists), true
}

// have is the list that was fetched last, if that is not long ago, or whatever there is while
// the backend rests.
func (v *view) have(kind Kind) *fetched {
	v.mu.Lock()
	defer v.mu.Unlock()
	l := v.lists[kind]
	switch {
	case l != nil && l.at.After(v.stale) && time.Since(l.at) < v.of.gateway.options.ListTTL:
		return l
	case !time.Now().Before(v.rests[kind].until):
		return nil
	case l == nil:
		return &fetched{}
	}
	return l
}

// rest is what follows when a backend kept somebody waiting in vain: for as long as it did, others
// do not wait for it too, unless it tells of a change. A backend that refuses at once is always asked.
type rest struct {
	until       time.Time
	listVersion string
}

var errRests = fault.New(fault.Unavailable, "the backend did not answer in time a moment ago")

// join makes one list of those of the backends.
func (g *Gateway) join(ctx context.Context, kind Kind, backends []*backend, lists []*fetched) *List {
	out := &List{TTL: maxTTL, Shared: true}
	if len(backends) == 0 {
		out.TTL = g.options.ListTTL
	}
	taken := map[string]*backend{}
	for i, l := range lists {
		first := len(out.Entries)
		if l == nil {
			l = &fetched{ttl: maxTTL} // nobody knows
		}
		out.TTL, out.Shared = min(out.TTL, l.ttl), out.Shared && l.shared
		for _, e := range l.entries {
			if first := taken[e.Name]; first != nil {
				out.Conflicts = append(out.Conflicts, e.Name)
				g.conflict(ctx, kind, e.Name, first, backends[i])
				continue
			}
			taken[e.Name] = backends[i]
			out.Entries = append(out.Entries, e)
		}
		out.parts = append(out.parts, part{backends[i].Name, first, len(out.Entries)})
	}
	return out
}

// maxConflicts bounds the conflicts that are remembered.
const maxConflicts = 1000

// conflict logs that two backends have the same name, once: lists tell their clients each time.
func (g *Gateway) conflict(ctx context.Context, kind Kind, name string, first, second *backend) {
	g.mu.Lock()
	defer g.mu.Unlock()
	what := conflict{kind, name, first.place(), second.place()}
	if g.logged[what] {
		return
	}
	if g.logged == nil || len(g.logged) >= maxConflicts {
		g.logged = map[conflict]bool{}
	}
	g.logged[what] = true
	g.options.Log.WarnContext(ctx, "two backends have the same name; the first serves it",
		"of", kinds[kind].what, "name", name, "first", first.Name, "second", second.Name)
}

type conflict struct {
	kind          Kind
	name          string
	first, second place
}

// serves finds who serves a name: the entry of that name, or for a URI the template that
// stands for it. It looks into the lists at hand; before it says that there is nobody, into those as
// they are now.
func (g *Gateway) serves(ctx context.Context, c Client, kind Kind, name string) (Entry, bool) {
	if e, ok := g.find(kind, name, func(kind Kind) (*List, bool) { return g.atHand(ctx, c, kind) }); ok {
		return e, true
	}
	return g.find(kind, name, func(kind Kind) (*List, bool) {
		return g.list(ctx, c, kind, func(*fetched) time.Duration { return min(missTTL, g.options.ListTTL) }), true
	})
}

func (g *Gateway) find(kind Kind, name string, lists func(Kind) (*List, bool)) (e Entry, ok bool) {
	if l, have := lists(kind); !have {
		return e, false
	} else if e, ok = l.find(name); ok || kind != Resources {
		return e, ok
	}
	l, _ := lists(Templates)
	if l == nil {
		return e, false
	}
	for _, t := range l.Entries {
		if t.matches != nil && t.matches(name) {
			return Entry{Name: name, backend: t.backend, own: name}, true
		}
	}
	return e, false
}

// Matching takes time that grows fast with both of these, and a backend and a client can choose them.
const (
	maxVariables = 16
	maxMatched   = 2048 // bytes of a URI
)

// matcher tells whether a template stands for a URI (RFC 6570). One that cannot be read
// stands for none.
func matcher(template string) func(uri string) bool {
	t, err := uritemplate.New(template)
	if err != nil || len(t.Varnames()) > maxVariables || strings.Count(template, "{") > maxVariables {
		return nil
	}
	return func(uri string) bool { return len(uri) <= maxMatched && t.Match(uri) != nil }
}

// find is the entry of that name.
func (l *List) find(name string) (Entry, bool) {
	for _, e := range l.Entries {
		if e.Name == name {
			return e, true
		}
	}
	return Entry{}, false
}
