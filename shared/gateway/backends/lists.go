package backends

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/yosida95/uritemplate/v3"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Limits of one backend's list.
const (
	maxPages     = 200
	maxEntries   = 10_000
	maxList      = 32 << 20 // bytes, all pages together
	maxName      = 1024     // bytes
	maxConflicts = 100      // how many name conflicts a list reports
)

// Entry is one entry of a backend's list.
type Entry struct {
	api.Entry
	View    *View                 // the view whose list has the entry
	scopes  []string              // a caller needs these scopes to use the entry
	matches func(uri string) bool // whether a resource template matches a URI; nil for other entries
}

// fetched is a list that the gateway has fetched from a backend, with the backend's hints for caches.
type fetched struct {
	entries []Entry
	ttl     time.Duration
	shared  bool // the list is the same for all callers
	// restricted has a function for each resource template that not every caller may use, because the rules deny it or demand scopes. The
	// function reports whether the template matches a URI.
	restricted []func(uri string) bool
}

// List returns the combined list of all backends that the client may use. It fetches a backend's list again after the list's time to
// live, or when the backend has reported a change. If a backend does not respond, List uses its last list, if there is one.
func (bs *Set) List(ctx context.Context, c api.Client, kind api.Kind) *api.List {
	views := bs.viewsFor(ctx, c)
	if kind == api.Events {
		views = slices.DeleteFunc(views, func(v *View) bool { return !v.backend.ActsForCallers() || c.Principal.Anonymous })
	}
	lists, failing := bs.gather(ctx, views, kind, func(l *fetched) time.Duration { return min(l.ttl, bs.options.ListTTL) })
	out := bs.mergeLists(ctx, c.Principal, kind, views, lists)
	if failing {
		out.TTL = min(out.TTL, bs.options.ListTTL)
	}
	return out
}

// gather fetches the views' lists and waits for all of them. If a list cannot be fetched, failing is true, and the result has the list
// that was fetched last, or nil. The function use returns how old a cached list may be, see [Set.fetchLists].
func (bs *Set) gather(ctx context.Context, views []*View, kind api.Kind, use func(*fetched) time.Duration) (lists []*fetched, failing bool) {
	for _, p := range bs.fetchLists(ctx, views, kind, use) {
		<-p.done
		lists, failing = append(lists, p.list), failing || p.failed
	}
	return lists, failing
}

// pendingList is a list that is being fetched. The fields list and failed are set when the channel done is closed.
type pendingList struct {
	done   chan struct{}
	list   *fetched // the fetched list; if the fetch failed, the last list or nil
	failed bool
}

// fetchLists fetches the views' lists in the background. The function use returns how old a cached list may be. Instead of fetching a
// list, fetchLists uses a cached list that is younger, unless the list version has changed.
func (bs *Set) fetchLists(ctx context.Context, views []*View, kind api.Kind, use func(*fetched) time.Duration) []*pendingList {
	versions := listVersions(ctx, bs.options, views, kind)
	pending := make([]*pendingList, len(views))
	for i, v := range views {
		p := &pendingList{done: make(chan struct{}), failed: true}
		pending[i] = p
		go func() {
			defer close(p.done)
			if isGone(ctx) {
				return
			}
			var err error
			p.list, err = v.list(ctx, kind, versions[i], use)
			if p.failed = err != nil; !p.failed || isGone(ctx) {
				return
			}
			v.backend.logList[kind].Do(func() {
				bs.options.Log.WarnContext(ctx, "backend list failed", "backend", v.backend.Name, "of", kind.String(), "error", err)
			})
			if p.list == nil {
				v.recordLeftOut(ctx, kind)
			}
		}()
	}
	return pending
}

// isGone reports whether the client has disconnected, so that a failure says nothing about the backend or the store.
func isGone(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }

// recordLeftOut records that a client gets a combined list without the backend's entries. The relay announces a change when it can read
// these entries (see [api.LeftOut]). recordLeftOut ignores views of single callers, because the relay reads lists only with the
// operator's credentials.
func (v *View) recordLeftOut(ctx context.Context, kind api.Kind) {
	if v != v.backend.view {
		return
	}
	record := func(recorded bool) (before bool) {
		v.mu.Lock()
		defer v.mu.Unlock()
		before, v.leftOut[kind] = v.leftOut[kind], recorded
		return before
	}
	if record(true) {
		return
	}
	if err := v.backend.writeLeftOut(ctx, kind); err != nil {
		record(false)
		v.backend.options.Log.DebugContext(ctx, "missing backend list not recorded", "backend", v.backend.Name, "of", kind.String(), "error", err)
	}
}

func (b *Backend) writeLeftOut(ctx context.Context, kind api.Kind) error {
	return b.options.DB.Write(ctx, store.Put(api.NewListHash(b.ListHashKey(kind), []byte(api.LeftOut))))
}

// ListHashKey returns the key under which the relay stores the hash of the backend's list of this kind.
func (b *Backend) ListHashKey(kind api.Kind) store.Key {
	return store.Key{Table: store.Sessions, Partition: "relay#" + b.Place().String(), Sort: "list#" + kind.Member()}
}

func (bs *Set) mergeLists(ctx context.Context, p auth.Principal, kind api.Kind, views []*View, lists []*fetched) *api.List {
	out := &api.List{TTL: maxTTL, Shared: true}
	if len(views) == 0 {
		out.TTL = bs.options.ListTTL
	}
	taken := map[string]*Backend{}
	for i, l := range lists {
		first, b := len(out.Entries), views[i].backend
		if l == nil {
			l = &fetched{ttl: maxTTL} // without a list, the backend adds no entries and does not shorten the TTL
		}
		out.TTL, out.Shared = min(out.TTL, l.ttl), out.Shared && l.shared
		for i := range l.entries {
			e := &l.entries[i]
			if !p.Has(e.scopes...) {
				continue
			}
			has := ownerByPrefix(views, kind, e)
			if has == nil {
				has = taken[e.Name]
			}
			if has == b || has != nil && len(out.Conflicts) >= maxConflicts {
				continue // the same entry on two pages, because the list changed between the requests; or there are too many conflicts to report
			}
			if has != nil {
				if !slices.Contains(out.Conflicts, e.Name) {
					out.Conflicts = append(out.Conflicts, e.Name)
				}
				bs.logConflict(ctx, kind, e.Name, has, b)
				continue
			}
			taken[e.Name] = b
			out.Entries = append(out.Entries, e.Entry)
		}
		out.Parts = append(out.Parts, api.Part{Backend: b.Name, First: first, End: len(out.Entries)})
	}
	return out
}

// logConflict logs that two backends have an entry with the same name. It logs each conflict only once, because each combined list finds
// it again.
func (bs *Set) logConflict(ctx context.Context, kind api.Kind, name string, first, second *Backend) {
	what := conflict{kind, name, first.Place(), second.Place()}
	if _, logged := bs.conflicts.Get(what); logged {
		return
	}
	bs.conflicts.Put(what, true)
	bs.options.Log.WarnContext(ctx, "backend names conflict",
		"of", kind.String(), "name", name, "first", first.Name, "second", second.Name)
}

type conflict struct {
	kind          api.Kind
	name          string
	first, second api.Place
}

// Has reports whether one of the client's backends has an entry with the given name, even if a call would fail because the client
// lacks a scope, or because several backends have the method of an extension.
func (bs *Set) Has(ctx context.Context, c api.Client, kind api.Kind, name string) bool {
	_, err := bs.Find(ctx, c, kind, name)
	return err == nil || auth.LacksScope(err) || fault.Is(err, fault.Conflict)
}

// Find returns the entry with the given name, or for a URI the resource template that matches it. It first looks in the cached lists
// of the client's backends. If the name is not in them, it fetches current lists before it returns an error. For a URI that no list has, it
// returns the backend that may still have the resource, see [findUnlisted].
//
// If the client lacks a scope for the entry, Find returns the entry together with an error of kind fault.Forbidden. If the rules of a
// backend deny the name, the error is the same as for an unknown name.
func (bs *Set) Find(ctx context.Context, c api.Client, kind api.Kind, name string) (Entry, error) {
	if kind == api.Extensions {
		return bs.findMethod(ctx, c, name)
	}
	views := mayHave(bs.viewsFor(ctx, c), kind, name)
	e, err := bs.findListed(ctx, c.Principal, views, kind, name)
	if kind == api.Resources && fault.Is(err, fault.Invalid) {
		if v := findUnlisted(c.Principal, views, name); v != nil {
			return Entry{Entry: api.Entry{Name: name, Backend: v.backend.Name, Own: name}, View: v}, nil
		}
	}
	return e, err
}

// findListed does the same as [Set.Find], but only for names and URIs that are in a list or match a template.
func (bs *Set) findListed(ctx context.Context, p auth.Principal, views []*View, kind api.Kind, name string) (Entry, error) {
	e, err := lookUp(p, kind, name, func(kind api.Kind) iter.Seq[*fetched] {
		return each(views, func(v *View) *fetched { return v.cachedList(kind) })
	})
	if err == nil {
		return e, nil
	}
	e, err = lookUp(p, kind, name, func(kind api.Kind) iter.Seq[*fetched] {
		pending := bs.fetchLists(ctx, views, kind, func(*fetched) time.Duration { return min(missTTL, bs.options.ListTTL) })
		return each(pending, func(p *pendingList) *fetched {
			<-p.done
			return cmp.Or(p.list, &fetched{})
		})
	})
	if fault.Is(err, fault.Invalid) {
		if tokenErr := tokenError(ctx, views, kind, name); tokenErr != nil {
			return Entry{}, tokenErr
		}
		for _, v := range views {
			own := strings.TrimPrefix(name, v.backend.Prefix)
			if _, permitted := v.backend.rules[kind].Permits(own); kind.Prefixed() && permitted && v.latestList(kind) == nil {
				return Entry{}, fault.New(fault.Unavailable, "backend %s has not sent its list of %ss yet", v.backend.Name, kind)
			}
		}
	}
	return e, err
}

// findUnlisted returns the backend from which the client may read a resource that is in no list, or nil. A tool may return links to such
// resources (2025-11-25, Tools, Resource Links). The candidates are the backends that have resources and whose rules permit the URI.
//
// If exactly one candidate lists resources or templates with the URI's scheme, findUnlisted returns that one. Otherwise there must be
// exactly one candidate, and the capabilities of all backends must be known, because a backend with unknown capabilities may be another
// candidate.
func findUnlisted(p auth.Principal, views []*View, uri string) *View {
	scheme, _, ok := strings.Cut(uri, ":")
	if !ok || scheme == "event" { // this server itself answers for event URIs that no backend lists
		return nil
	}
	var able, related []*View
	unknown := false
	for _, v := range views {
		info, _ := v.info.Peek()
		if info == nil {
			unknown = true
		}
		if info == nil || !v.mayServe(p, info, uri) {
			continue
		}
		if able = append(able, v); v.listsScheme(scheme + ":") {
			related = append(related, v)
		}
	}
	switch {
	case len(related) == 1:
		return related[0]
	case len(able) == 1 && !unknown:
		return able[0]
	}
	return nil
}

// mayServe reports whether the backend has resources and its rules let the principal use one with this URI. As in [Set.Permits], a rule
// that denies a template also denies the URIs that match it.
func (v *View) mayServe(p auth.Principal, info *ServerInfo, uri string) bool {
	scopes, permitted := v.backend.rules[api.Resources].Permits(uri)
	if !info.Resources || !permitted || !p.Has(scopes...) {
		return false
	}
	if v.backend.Resources.Empty() {
		return true
	}
	templates := v.latestList(api.Templates)
	return templates != nil && !templates.restricts(uri)
}

func (v *View) listsScheme(prefix string) bool {
	for _, kind := range []api.Kind{api.Resources, api.Templates} {
		l := v.latestList(kind)
		if l != nil && slices.ContainsFunc(l.entries, func(e Entry) bool { return strings.HasPrefix(e.Own, prefix) }) {
			return true
		}
	}
	return false
}

// latestList returns the list of this kind that was fetched last, however old it is. It returns nil before the first fetch.
func (v *View) latestList(kind api.Kind) *fetched {
	if l := v.currentList(kind); l != nil {
		return l.latest()
	}
	return nil
}

// DeniedBy returns the name of the backend whose rules deny a name or a URI, or "" if no rule denies it.
func (bs *Set) DeniedBy(ctx context.Context, c api.Client, kind api.Kind, name string) string {
	for _, v := range bs.viewsFor(ctx, c) {
		own, ok := name, true
		if kind.Prefixed() {
			own, ok = strings.CutPrefix(name, v.backend.Prefix)
		}
		if _, permitted := v.backend.rules[kind].Permits(own); ok && !permitted {
			return v.backend.Name
		}
	}
	return ""
}

// mayHave returns the views of the backends that may have the name, so that a lookup waits only for their lists. For a tool or a prompt,
// these are the backends with the longest prefix with which the name begins, because [ownerByPrefix] assigns the name to them.
func mayHave(views []*View, kind api.Kind, name string) []*View {
	if !kind.Prefixed() {
		return views
	}
	longest := 0
	for _, v := range views {
		if p := v.backend.Prefix; strings.HasPrefix(name, p) {
			longest = max(longest, len(p))
		}
	}
	return slices.DeleteFunc(views, func(v *View) bool {
		return len(v.backend.Prefix) != longest || !strings.HasPrefix(name, v.backend.Prefix)
	})
}

// each returns an iterator over the results of the function list, one for each element. It calls list only when the loop reaches the
// element, because list may wait for a backend.
func each[E any](elements []E, list func(E) *fetched) iter.Seq[*fetched] {
	return func(yield func(*fetched) bool) {
		for _, e := range elements {
			if !yield(list(e)) {
				return
			}
		}
	}
}

// lookUp finds the entry with a name or URI in the backends' lists. The function lists returns the lists of a kind in the order of the
// backends. If several backends have the name, the first one serves it, so lookUp does not wait for later lists. Resources take
// precedence over resource templates.
//
// A nil list means that a backend's list is not known. Then lookUp stops, because that backend may have the name and takes precedence
// over later ones.
func lookUp(p auth.Principal, kind api.Kind, name string, lists func(api.Kind) iter.Seq[*fetched]) (found Entry, err error) {
	refused := func() (Entry, error) {
		if err == nil { // no backend has the name
			err = unknownError(kind.String(), name)
		}
		return found, err
	}
	for l := range lists(kind) {
		if l == nil {
			return refused()
		}
		for i := range l.entries {
			if l.entries[i].Name != name {
				continue
			}
			if found, err = l.entries[i], p.Require(l.entries[i].scopes...); err == nil {
				return found, nil
			}
		}
	}
	if kind != api.Resources {
		return refused()
	}
	for l := range lists(api.Templates) {
		if l == nil {
			return refused()
		}
		for _, t := range l.entries {
			if t.matches == nil || !t.matches(name) {
				continue
			}
			scopes, ok := t.View.backend.rules[api.Resources].Permits(name)
			if !ok {
				continue
			}
			found = Entry{Entry: api.Entry{Name: name, Backend: t.Backend, Own: name}, View: t.View}
			if err = p.Require(slices.Concat(t.scopes, scopes)...); err == nil {
				return found, nil
			}
		}
	}
	return refused()
}

// ownerByPrefix returns the backend to which the entry's name belongs, or nil if that is the backend that lists the entry. A name belongs
// to the backend with the longest prefix with which the name begins. For example, if a backend has the prefix gh_, clients do not see a
// tool gh_merge of a backend without a prefix, because they would take it for a tool of the backend gh_.
func ownerByPrefix(views []*View, kind api.Kind, e *Entry) *Backend {
	if !kind.Prefixed() {
		return nil
	}
	var owner *Backend
	longest := len(e.View.backend.Prefix)
	for _, v := range views {
		if p := v.backend.Prefix; len(p) > longest && strings.HasPrefix(e.Name, p) {
			owner, longest = v.backend, len(p)
		}
	}
	return owner
}

// restricts reports whether the URI matches a resource template that the rules deny, or for which a caller needs scopes.
func (f *fetched) restricts(uri string) bool {
	return slices.ContainsFunc(f.restricted, func(matches func(string) bool) bool { return matches(uri) })
}

// Limits on matching a URI against resource templates, because backends choose the templates and clients choose the URIs.
const (
	maxVariables = 16
	maxMatched   = 2048 // bytes of a template or a URI
)

// matcher returns a function that reports whether a URI matches the template (RFC 6570), or nil if the template is invalid or too large.
// The function's running time is at most proportional to the length of the URI times the number of expressions. The method Match of
// uritemplate does not guarantee that.
//
// The function accepts more URIs than RFC 6570, because most servers do. For example, the official TypeScript and Python SDKs accept
// user://a@example.com for user://{id}, although an expansion would have %40, and FastMCP accepts files://a/b for files://{path*}. The
// backend itself refuses a URI that it does not have.
func matcher(template string) func(uri string) bool {
	t, err := uritemplate.New(template)
	if err != nil || len(template) > maxMatched || len(t.Varnames()) > maxVariables || strings.Count(template, "{") > maxVariables {
		return nil
	}
	var parts []part
	for rest := template; rest != ""; {
		literal, expression, found := strings.Cut(rest, "{")
		parts = append(parts, part{literal: literal})
		if !found {
			break
		}
		expression, rest, _ = strings.Cut(expression, "}")
		parts = append(parts, expansionOf(expression))
	}
	return func(uri string) bool { return len(uri) <= maxMatched && matches(parts, uri) }
}

type part struct {
	literal    string
	expression bool
	first      byte // the first character of a non-empty expansion; 0 if it can be any
	slash      bool // the expansion may contain slashes
}

// expansionOf describes the possible expansions of an expression in a template (RFC 6570, section 3.2).
func expansionOf(expression string) part {
	switch operator := expression[0]; operator {
	case '+':
		return part{expression: true, slash: true}
	case '#', '/', '?', '&':
		return part{expression: true, first: operator, slash: true}
	case '.', ';':
		return part{expression: true, first: operator}
	}
	return part{expression: true, slash: strings.Contains(expression, "*")}
}

// matches reports whether the parts of a template match the whole URI. For each part, it computes all positions in the URI at which the
// part can end.
func matches(parts []part, uri string) bool {
	at := make([]bool, len(uri)+1)
	at[0] = true
	for _, p := range parts {
		next := make([]bool, len(at))
		inside := false // whether an expansion that began earlier can extend to position i
		for i := range at {
			switch {
			case !p.expression:
				if at[i] && strings.HasPrefix(uri[i:], p.literal) {
					next[i+len(p.literal)] = true
				}
			case inside || at[i]:
				next[i] = true
				inside = i < len(uri) && (inside && p.canContain(uri[i]) || at[i] && p.canBegin(uri[i]))
			}
		}
		at = next
	}
	return at[len(uri)]
}

func (p part) canBegin(c byte) bool {
	if p.first != 0 {
		return c == p.first
	}
	return p.canContain(c)
}

// canContain reports whether an expansion of this part can have the character c at any position but the first. The function canBegin
// decides about the first position.
func (p part) canContain(c byte) bool { return p.slash || c != '/' }
