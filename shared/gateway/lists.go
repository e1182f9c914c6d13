package gateway

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Bounds of one backend's list; of all its pages and of a name in bytes, of the time for all pages in
// those for one answer.
const (
	maxPages   = 200
	maxEntries = 10_000
	maxList    = 32 << 20
	maxName    = 1024
	maxAsks    = 3
	// maxConflicts is how many names of two backends a list and the log name.
	maxConflicts = 100
)

// entry is one of a backend's list.
type entry struct {
	api.Entry
	view *view // that it was seen in
	// matches is set for a template: whether it stands for a URI.
	matches func(uri string) bool
}

// fetched is a backend's list, and when it was begun to be fetched.
type fetched struct {
	entries     []entry
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

// rest is what follows when a backend kept a caller waiting in vain: for as long as it did, others
// do not wait for it too, unless it notifies of a change. A backend that refuses at once is always asked.
type rest struct {
	until       time.Time
	listVersion string
}

var errRests = fault.New(fault.Unavailable, "the backend did not answer in time a moment ago")

// lists gathers the lists of several backends and finds in them who serves what.
type lists struct {
	options   *Options                    // of the gateway
	conflicts bounded.Map[conflict, bool] // that were logged
}

// List gathers the lists of all backends that a client may use, as they are now by what
// the backends say of their time to live and of their changes. A backend that cannot be reached
// gives what it had last, or nothing.
func (g *Gateway) List(ctx context.Context, c api.Client, kind api.Kind) *api.List {
	views := g.backends.shown(ctx, c)
	lists, failing := g.lists.gather(ctx, views, kind, func(l *fetched) time.Duration { return min(l.ttl, g.options.ListTTL) })
	out := g.lists.join(ctx, kind, views, lists)
	if failing {
		out.TTL = min(out.TTL, g.options.ListTTL)
	}
	return out
}

// gather gets the lists of the views. One that was fetched is used for as long as use says, and while its list version is
// the same. One that cannot be had is as it was, or nil, and failing is true.
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

// join makes one list of those of the backends.
func (ls *lists) join(ctx context.Context, kind api.Kind, views []*view, lists []*fetched) *api.List {
	out := &api.List{TTL: maxTTL, Shared: true}
	if len(views) == 0 {
		out.TTL = ls.options.ListTTL
	}
	taken := map[string]*backend{}
	for i, l := range lists {
		first, b := len(out.Entries), views[i].of
		if l == nil {
			l = &fetched{ttl: maxTTL} // not known
		}
		out.TTL, out.Shared = min(out.TTL, l.ttl), out.Shared && l.shared
		for i := range l.entries {
			e := &l.entries[i]
			has := ownerByPrefix(views, kind, e)
			if has == nil {
				has = taken[e.Name]
			}
			if has == b || has != nil && len(out.Conflicts) >= maxConflicts {
				continue // the same entry on two pages, because the list changed between them; or one too many
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

// conflict logs that two backends have the same name, once: lists say it to their clients each time.
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
