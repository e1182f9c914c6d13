package gateway

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
)

// Limits of one backend's list. maxList limits all pages together and maxName one name, in bytes.
const (
	maxPages   = 200
	maxEntries = 10_000
	maxList    = 32 << 20
	maxName    = 1024
	// maxConflicts limits how many name conflicts a list reports.
	maxConflicts = 100
)

// entry is one entry of a backend's list.
type entry struct {
	api.Entry
	view *view // the view in whose list it is
	// matches reports whether the template matches a URI. It is set for resource templates.
	matches func(uri string) bool
}

// fetched is a backend's list, with the backend's hints for caches.
type fetched struct {
	entries []entry
	ttl     time.Duration
	shared  bool // the list is the same for all callers
}

// lists combines the lists of several backends and finds entries in them.
type lists struct {
	options   *Options                    // of the gateway
	conflicts bounded.Map[conflict, bool] // the conflicts that were logged
}

// List returns the combined lists of all backends that the client may use. Each is as current as its time to live and the backend's
// change notifications allow. If a backend does not respond, List uses its last list, if there is one.
func (g *Gateway) List(ctx context.Context, c api.Client, kind api.Kind) *api.List {
	views := g.backends.viewsFor(ctx, c)
	lists, failing := g.lists.gather(ctx, views, kind, func(l *fetched) time.Duration { return min(l.ttl, g.options.ListTTL) })
	out := g.lists.mergeLists(ctx, kind, views, lists)
	if failing {
		out.TTL = min(out.TTL, g.options.ListTTL)
	}
	return out
}

// gather gets the lists of the views. It uses a cached list if its list version is still the same and it is younger than
// use(list). If a list cannot be fetched, gather returns the last one, or nil, and sets failing.
func (ls *lists) gather(ctx context.Context, views []*view, kind api.Kind, use func(*fetched) time.Duration) (lists []*fetched, failing bool) {
	versions := listVersions(ctx, ls.options, views, kind)
	lists = make([]*fetched, len(views))
	var (
		wg     sync.WaitGroup
		failed atomic.Bool
	)
	for i, v := range views {
		wg.Go(func() {
			var err error
			if lists[i], err = v.list(ctx, kind, versions[i], use); err != nil {
				failed.Store(true)
				v.of.logList[kind].Do(func() {
					ls.options.Log.WarnContext(ctx, "backend list failed", "backend", v.of.Name, "of", kind.String(), "error", err)
				})
			}
		})
	}
	wg.Wait()
	return lists, failed.Load()
}

// mergeLists combines the lists of the backends into one.
func (ls *lists) mergeLists(ctx context.Context, kind api.Kind, views []*view, lists []*fetched) *api.List {
	out := &api.List{TTL: maxTTL, Shared: true}
	if len(views) == 0 {
		out.TTL = ls.options.ListTTL
	}
	taken := map[string]*backend{}
	for i, l := range lists {
		first, b := len(out.Entries), views[i].of
		if l == nil {
			l = &fetched{ttl: maxTTL} // the list could not be fetched
		}
		out.TTL, out.Shared = min(out.TTL, l.ttl), out.Shared && l.shared
		for i := range l.entries {
			e := &l.entries[i]
			has := ownerByPrefix(views, kind, e)
			if has == nil {
				has = taken[e.Name]
			}
			if has == b || has != nil && len(out.Conflicts) >= maxConflicts {
				continue // the same entry on two pages, because the list changed between the requests; or there are too many conflicts to report
			}
			if has != nil {
				out.Conflicts = append(out.Conflicts, e.Name)
				ls.conflict(ctx, kind, e.Name, has, b)
				continue
			}
			taken[e.Name] = b
			out.Entries = append(out.Entries, e.Entry)
		}
		out.Parts = append(out.Parts, api.Part{Backend: b.Name, First: first, End: len(out.Entries)})
	}
	return out
}

// conflict logs a name that two backends share, once per name. Lists report the conflict to clients every time.
func (ls *lists) conflict(ctx context.Context, kind api.Kind, name string, first, second *backend) {
	what := conflict{kind, name, first.Place(), second.Place()}
	if _, logged := ls.conflicts.Get(what); logged {
		return
	}
	ls.conflicts.Put(what, true)
	ls.options.Log.WarnContext(ctx, "backend names conflict, the first backend serves the name",
		"of", kind.String(), "name", name, "first", first.Name, "second", second.Name)
}

type conflict struct {
	kind          api.Kind
	name          string
	first, second api.Place
}
