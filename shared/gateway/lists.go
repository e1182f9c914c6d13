package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/yosida95/uritemplate/v3"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
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

// list is the backend's list, fetched by one caller at a time when the one that was fetched
// last is too old or has another list version.
func (v *view) list(ctx context.Context, kind Kind, listVersion string, use func(*fetched) time.Duration) (*fetched, error) {
	for {
		v.mu.Lock()
		have, f := v.lists[kind], v.fetching[kind]
		if have != nil && have.at.After(v.stale) && have.listVersion == listVersion && time.Since(have.at) < use(have) {
			v.mu.Unlock()
			return have, nil
		}
		if r := v.rests[kind]; r.listVersion == listVersion && time.Now().Before(r.until) {
			v.mu.Unlock()
			return have, errRests
		}
		// What was begun before a change may end with the list from before.
		first := f == nil || !f.began.After(v.stale) || f.listVersion != listVersion
		if first {
			f = &fetching{flight: newFlight[*fetched](), listVersion: listVersion}
			v.fetching[kind] = f
		}
		v.mu.Unlock()
		if first {
			return f.fly(ctx, func() (*fetched, error) { return v.refresh(ctx, kind, f) })
		}
		if now, err, ok := f.wait(ctx); ok {
			if now == nil {
				now = have
			}
			return now, fault.Wrap(fault.Unavailable, err, "wait for the list of backend %s", v.of.Name)
		}
	}
}

// refresh fetches the list; with an error it is the one that was fetched before.
func (v *view) refresh(ctx context.Context, kind Kind, f *fetching) (*fetched, error) {
	now, err := v.fetchKnown(ctx, kind)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.fetching[kind] == f {
		delete(v.fetching, kind)
	}
	last := v.lists[kind]
	if err != nil {
		if took := time.Since(f.began); ctx.Err() == nil && took > v.of.gateway.options.AskTimeout/2 {
			v.rests[kind] = rest{time.Now().Add(took), f.listVersion}
		}
		return last, err
	}
	delete(v.rests, kind)
	if now.at, now.listVersion = f.began, f.listVersion; last == nil || last.at.Before(now.at) {
		v.lists[kind] = now
	}
	return now, nil
}

// fetchKnown fetches a list in the revision that the backend speaks. A session that it has
// ended is begun again.
func (v *view) fetchKnown(ctx context.Context, kind Kind) (*fetched, error) {
	known, err := v.known(ctx)
	if err != nil {
		return nil, err
	}
	if !known.offers.has(kind) {
		// It adds nothing and says nothing, until it is asked again what it serves.
		return &fetched{ttl: relearn, shared: true}, nil
	}
	now, err := v.fetch(ctx, known, kind)
	if errors.Is(err, upstream.ErrSession) {
		v.forget(known)
		if known, err = v.known(ctx); err == nil {
			now, err = v.fetch(ctx, known, kind)
		}
	}
	return now, err
}

func (o Offers) has(kind Kind) bool {
	switch kind {
	case Tools:
		return o.Tools
	case Prompts:
		return o.Prompts
	}
	return o.Resources
}

// outdate makes the next caller fetch the lists again.
func (v *view) outdate() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stale = time.Now()
}

// fetch reads all pages of a list.
func (v *view) fetch(ctx context.Context, known *learned, kind Kind) (*fetched, error) {
	b, c := v.of, v.client()
	ctx, cancel := context.WithTimeout(ctx, maxAsks*b.gateway.options.AskTimeout)
	defer cancel()
	k := kinds[kind]
	size := 0
	out := &fetched{ttl: maxTTL, shared: !b.ForwardToken}
	var cursor json.RawMessage
	for range maxPages {
		params := json.RawMessage(`{}`)
		if stateless(known.version) {
			params = b.meta(known.version, json.RawMessage(`{}`))
		}
		if cursor != nil {
			params = upstream.Insert(params, "cursor", cursor)
		}
		result, err := b.request(ctx, c, upstream.Request{Version: known.version, Session: known.session}, k.method, params)
		if err != nil {
			return nil, err
		}
		if size += len(result); size > maxList {
			return nil, fault.New(fault.Unavailable, "backend %s has a list of more than %d bytes", b.Name, maxList)
		}
		ttl, shared := b.gateway.hints(known.version, result)
		out.ttl, out.shared = min(out.ttl, ttl), out.shared && shared
		for raw := range jsonrpc.Elements(jsonrpc.Member(result, k.member)) {
			e, why := b.entry(kind, raw)
			if why != "" {
				b.dropped(ctx, why)
				continue
			}
			if out.entries = append(out.entries, e); len(out.entries) > maxEntries {
				return nil, fault.New(fault.Unavailable, "backend %s lists more than %d entries", b.Name, maxEntries)
			}
		}
		next := jsonrpc.Member(result, "nextCursor")
		// An empty one goes on since 2026-07-28 (Pagination).
		if text, ok := jsonrpc.String(next); !ok || text == "" && !stateless(known.version) || string(next) == string(cursor) {
			return out, nil
		}
		cursor = next
	}
	return nil, fault.New(fault.Unavailable, "backend %s lists more than %d pages", b.Name, maxPages)
}

// entry is one of a backend's list, under the name that clients use; or why it is none.
func (b *backend) entry(kind Kind, raw json.RawMessage) (e Entry, why string) {
	k := kinds[kind]
	own, ok := jsonrpc.String(jsonrpc.Member(raw, k.name))
	switch {
	case !ok || own == "" || len(own) > maxName:
		return e, dropNameless
	case !printable(raw):
		return e, dropControls
	}
	e = Entry{Name: own, JSON: raw, backend: b, own: own}
	if kind == Templates {
		e.matches = matcher(own)
	}
	if k.prefixed && b.Prefix != "" {
		e.Name = b.Prefix + own
		e.JSON = upstream.Replace(raw, k.name, quote(e.Name))
	}
	return e, ""
}

// printable reports whether what clients show or use as names in an entry of a list has no characters that steer
// terminals or the direction of text. Readers may take another one of several members, or ignore case.
func printable(entry json.RawMessage) bool {
	for key, value := range jsonrpc.Members(entry) {
		switch strings.ToLower(string(key)) {
		case "name", "title", "uri", "uritemplate":
			text, _ := jsonrpc.String(value)
			if strings.ContainsFunc(text, unprintable) {
				return false
			}
		case "annotations":
			if !printable(value) {
				return false
			}
		}
	}
	return true
}

// unprintable are controls, and what stands for text that is no Unicode.
func unprintable(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == unicode.ReplacementChar
}

// hints are what a page of a list says of its caching (2026-07-28, Caching). A backend that
// says nothing, as all of the earlier revisions, has a list for its caller alone and for as
// long as the gateway itself uses it.
func (g *Gateway) hints(version string, result json.RawMessage) (ttl time.Duration, shared bool) {
	ttl = g.options.ListTTL
	if !stateless(version) {
		return ttl, false
	}
	scope, _ := jsonrpc.String(jsonrpc.Member(result, "cacheScope"))
	var ms float64
	if raw := jsonrpc.Member(result, "ttlMs"); raw != nil && json.Unmarshal(raw, &ms) == nil {
		ttl = time.Duration(min(max(ms, 0), float64(maxTTL.Milliseconds()))) * time.Millisecond // negative counts as 0
	}
	return ttl, scope == "public"
}
