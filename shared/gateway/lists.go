package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/yosida95/uritemplate/v3"

	"mcpevents/shared/auth"
	"mcpevents/shared/fault"
	"mcpevents/shared/gateway/upstream"
	"mcpevents/shared/mcp/jsonrpc"
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
	Tools:     {"tool", "tools/list", "tools", "name", true},
	Prompts:   {"prompt", "prompts/list", "prompts", "name", true},
	Resources: {"resource", "resources/list", "resources", "uri", false},
	Templates: {"resource template", "resources/templates/list", "resourceTemplates", "uriTemplate", false},
}

// Bounds of one backend's list.
const (
	maxPages   = 200
	maxEntries = 10_000
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
	// TTL is how long it may be kept.
	TTL time.Duration
}

// fetched is a backend's list, and when it was begun to be fetched.
type fetched struct {
	entries []Entry
	at      time.Time
	ttl     time.Duration
}

// List gathers the lists of all backends that a principal may use. A backend that
// cannot be reached gives what it had last, or nothing.
func (g *Gateway) List(ctx context.Context, p auth.Principal, kind Kind) *List {
	backends := g.visible(ctx, p)
	lists := make([]*fetched, len(backends))
	var wg sync.WaitGroup
	for i, b := range backends {
		wg.Go(func() {
			var err error
			if lists[i], err = b.list(ctx, kind); err != nil {
				g.options.Log.WarnContext(ctx, "a backend's list could not be had", "backend", b.Name, "of", kinds[kind].what, "error", err)
			}
		})
	}
	wg.Wait()
	out := &List{TTL: g.options.ListTTL}
	taken := map[string]*backend{}
	for i, l := range lists {
		if l == nil {
			continue
		}
		out.TTL = min(out.TTL, l.ttl)
		for _, e := range l.entries {
			if first := taken[e.Name]; first != nil {
				out.Conflicts = append(out.Conflicts, e.Name)
				g.options.Log.WarnContext(ctx, "two backends have the same name; the first serves it",
					"of", kinds[kind].what, "first", first.Name, "second", backends[i].Name)
				continue
			}
			taken[e.Name] = backends[i]
			out.Entries = append(out.Entries, e)
		}
	}
	return out
}

// serves finds who serves a name: the entry of that name, or for a URI the template that
// stands for it.
func (g *Gateway) serves(ctx context.Context, p auth.Principal, kind Kind, name string) (Entry, bool) {
	e, ok := g.List(ctx, p, kind).find(name)
	if ok || kind != Resources {
		return e, ok
	}
	for _, t := range g.List(ctx, p, Templates).Entries {
		if t.matches != nil && t.matches(name) {
			return Entry{Name: name, backend: t.backend, own: name}, true
		}
	}
	return e, false
}

// matcher tells whether a template stands for a URI (RFC 6570). One that cannot be read
// stands for none.
func matcher(template string) func(uri string) bool {
	t, err := uritemplate.New(template)
	if err != nil {
		return nil
	}
	return func(uri string) bool { return t.Match(uri) != nil }
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

// list is the backend's list, fetched again when it is older than its time to live.
func (b *backend) list(ctx context.Context, kind Kind) (*fetched, error) {
	b.mu.Lock()
	have, stale := b.lists[kind], b.stale
	b.mu.Unlock()
	if have != nil && have.at.After(stale) && time.Since(have.at) < have.ttl {
		return have, nil
	}
	began := time.Now()
	known, err := b.known(ctx)
	if err != nil {
		return have, err
	}
	if !known.offers.has(kind) {
		return &fetched{ttl: b.gateway.options.ListTTL}, nil
	}
	entries, err := b.fetch(ctx, known, kind)
	if errors.Is(err, upstream.ErrSession) {
		b.forget(known)
		if known, err = b.known(ctx); err == nil {
			entries, err = b.fetch(ctx, known, kind)
		}
	}
	if err != nil {
		return have, err
	}
	now := &fetched{entries: entries, at: began, ttl: b.gateway.options.ListTTL}
	b.mu.Lock()
	defer b.mu.Unlock()
	if last := b.lists[kind]; last == nil || last.at.Before(began) {
		b.lists[kind] = now
	}
	return now, nil
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
func (b *backend) outdate() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stale = time.Now()
}

// fetch reads all pages of a list.
func (b *backend) fetch(ctx context.Context, known *learned, kind Kind) (entries []Entry, err error) {
	c := b.client("")
	k := kinds[kind]
	var cursor json.RawMessage
	for range maxPages {
		params := json.RawMessage(`{}`)
		if modern(known.version) {
			params = b.meta(known.version, json.RawMessage(`{}`))
		}
		if cursor != nil {
			params = insert(params, "cursor", cursor)
		}
		result, err := b.request(ctx, c, upstream.Request{Version: known.version, Session: known.session}, k.method, params)
		if err != nil {
			return nil, err
		}
		for raw := range jsonrpc.Elements(jsonrpc.Member(result, k.member)) {
			own, ok := jsonrpc.String(jsonrpc.Member(raw, k.name))
			if !ok || own == "" || len(own) > 1024 {
				b.gateway.options.Log.WarnContext(ctx, "an entry without a name was dropped", "backend", b.Name, "of", k.what)
				continue
			}
			e := Entry{Name: own, JSON: raw, backend: b, own: own}
			if kind == Templates {
				e.matches = matcher(own)
			}
			if k.prefixed && b.Prefix != "" {
				e.Name = b.Prefix + own
				e.JSON = upstream.Replace(raw, k.name, quote(e.Name))
			}
			if entries = append(entries, e); len(entries) > maxEntries {
				return nil, fault.New(fault.Unavailable, "backend %s lists more than %d entries", b.Name, maxEntries)
			}
		}
		next := jsonrpc.Member(result, "nextCursor")
		if text, ok := jsonrpc.String(next); !ok || text == "" || string(next) == string(cursor) {
			return entries, nil
		}
		cursor = next
	}
	return nil, fault.New(fault.Unavailable, "backend %s lists more than %d pages", b.Name, maxPages)
}

// insert puts a member at the beginning of an object.
func insert(object json.RawMessage, name string, value json.RawMessage) json.RawMessage {
	out := jsonrpc.AppendString([]byte{'{'}, name)
	out = append(append(out, ':'), value...)
	rest := object[1:]
	if len(rest) > 0 && rest[0] != '}' {
		out = append(out, ',')
	}
	return append(out, rest...)
}
