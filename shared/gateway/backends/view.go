package backends

import (
	"context"
	"crypto/rand"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/refresh"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// view is a backend as seen with certain credentials: its capabilities and its lists. Most backends have a single view, for which the
// gateway uses the operator's credentials. A backend that receives its callers' tokens, and has no credentials of the operator,
// has one view per caller, so that a caller cannot see the lists of another one.
//
// The view has no background work. A caller that needs something newer than the view has starts a request to the backend, and
// callers that need the same wait for its outcome:
//
//	data           is used without asking the backend
//	capabilities   for askAgain; by fetches of a list, only if they are not older than the list's current version
//	list           for the shorter of the backend's time to live and Options.ListTTL, under the same list version
//	list, to find  for Options.ListTTL, under any list version; missTTL if a name is not in it
//	list, by relay after the last Outdate
//
// The list version changes with each change that the backend reports. The relay stores the new version before it notifies any client,
// so that a client that asks after the notification gets the new list, at any instance. A backend whose list has changed may have been
// restarted as another version of itself, so the gateway also asks for its capabilities again, but at most once per askLeast.
//
// If the backend does not answer, callers get the last data, however old it is. After a timeout the view does not ask for the list
// again for as long as the failed fetch took, or until the list version changes.
type View struct {
	backend *Backend
	// token is the caller's token, or empty for the operator's credentials.
	token string
	used  time.Time // guarded by callers

	info *refresh.Value[*ServerInfo]

	mu    sync.Mutex
	lists map[api.Kind]*versionedList
}

const (
	// askAgain is how long the gateway uses a backend's capabilities, and askLeast is the minimum interval between two requests for
	// them.
	askAgain = 5 * time.Minute
	askLeast = 2 * time.Second
	// missTTL is the maximum age of a list from which the gateway concludes that a name does not exist.
	missTTL = time.Second
	// maxTTL limits the time to live that a backend can set for its list.
	maxTTL = 24 * time.Hour
	// endTime limits how long a change of the backends or of the views waits until old sessions have ended.
	endTime = 2 * time.Second
	// maxAsks limits the time for one read of the capabilities, or of all pages of a list, in multiples of the timeout for one request.
	maxAsks = 3
)

func newView(b *Backend, token string) *View {
	v := &View{backend: b, token: token, lists: map[api.Kind]*versionedList{}}
	v.info = refresh.New(refresh.Options{Name: "backend " + b.Name, Timeout: maxAsks * b.options.AskTimeout}, v.refreshInfo)
	return v
}

// Backend returns the backend that is seen.
func (v *View) Backend() *Backend { return v.backend }

// LoadInfo returns the backend's revision and capabilities. If the backend does not respond, it returns an error together with the last
// known ones, or nil.
func (v *View) LoadInfo(ctx context.Context) (*ServerInfo, error) {
	now, err := v.info.Within(ctx, askAgain)
	if err != nil {
		now, _ = v.info.Peek()
	}
	return now, err
}

// Forget makes the next caller ask for the capabilities again, unless that has already happened since info was read.
func (v *View) Forget(info *ServerInfo) {
	v.info.Expire(func(now *ServerInfo) bool { return now == info })
}

// versionedList is a backend's list of one kind under one list version. A new version gets a new versionedList, so that it does not
// wait for a fetch that began under the previous version.
type versionedList struct {
	version string
	since   time.Time // when the view noticed that the version had changed; zero for the view's first version
	list    *refresh.Value[*fetched]
	before  *fetched // the last list under earlier versions, or nil
}

// replaceList starts a versionedList of a kind. The caller holds the lock.
func (v *View) replaceList(kind api.Kind, version string, since time.Time) *versionedList {
	l := &versionedList{version: version, since: since}
	if old := v.lists[kind]; old != nil {
		l.before = old.last()
	}
	ask := v.backend.options.AskTimeout
	l.list = refresh.New(refresh.Options{
		Name: "the list of backend " + v.backend.Name, Proportional: true, Quick: ask / 2, Timeout: 4 * maxAsks * ask, // two attempts with two reads each
	}, func(ctx context.Context, _ *fetched) (*fetched, error) {
		return v.fetchWithSession(ctx, kind, l.infoAge())
	})
	v.lists[kind] = l
	return l
}

// last returns the last list that was fetched, or nil.
func (l *versionedList) last() *fetched {
	if list, _ := l.list.Peek(); list != nil {
		return list
	}
	return l.before
}

// infoAge returns the maximum age of the capabilities for a fetch of the list.
func (l *versionedList) infoAge() time.Duration {
	if l.since.IsZero() {
		return askAgain
	}
	return min(askAgain, max(askLeast, time.Since(l.since)))
}

// list returns the backend's list under a list version, not older than use allows. If it cannot be fetched, list returns an error
// together with the last list, or nil.
func (v *View) list(ctx context.Context, kind api.Kind, version string, use func(*fetched) time.Duration) (*fetched, error) {
	v.mu.Lock()
	l := v.lists[kind]
	switch {
	case l == nil:
		l = v.replaceList(kind, version, time.Time{})
	case l.version != version:
		l = v.replaceList(kind, version, time.Now())
	}
	v.mu.Unlock()
	maxAge := maxTTL
	if have, _ := l.list.Peek(); have != nil {
		maxAge = use(have)
	}
	now, err := l.list.Within(ctx, maxAge)
	if err != nil {
		return l.last(), err
	}
	return now, nil
}

// cachedList returns the list for finding names without a request, or nil if it has to be fetched first. While the view does not ask a
// backend that has timed out, it returns the last list, or an empty one.
func (v *View) cachedList(kind api.Kind) *fetched {
	v.mu.Lock()
	l := v.lists[kind]
	v.mu.Unlock()
	if l == nil {
		return nil
	}
	have, began := l.list.Peek()
	switch {
	case have != nil && time.Since(began) < v.backend.options.ListTTL:
		return have
	case !l.list.Pauses():
		return nil
	case l.last() == nil:
		return &fetched{}
	}
	return l.last()
}

// Outdate makes the next caller fetch the lists again, without waiting for fetches that have already begun.
func (v *View) Outdate() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for kind, l := range v.lists {
		v.replaceList(kind, l.version, l.since)
	}
}

// listVersionLife is how long a list version is kept, which is longer than any list is used. An expired list version counts as
// a changed one.
const listVersionLife = time.Hour

// listVersionKey returns the key of the version of the lists whose changes the notification reports.
func (b *Backend) listVersionKey(method string) store.Key {
	return store.Key{Table: store.Sessions, Partition: "relay#" + b.Place().String(), Sort: "mark#" + method}
}

// ChangeListVersion records that the lists behind a notification have changed.
func (b *Backend) ChangeListVersion(ctx context.Context, method string) error {
	err := b.options.DB.Write(ctx, store.Put(store.Item{
		Key: b.listVersionKey(method), Value: []byte(rand.Text()), Expires: time.Now().Add(max(listVersionLife, 2*b.options.ListTTL)),
	}))
	return fault.Wrap(fault.Unavailable, err, "record that a backend's list has changed")
}

// listVersions reads the versions of the backends' lists of a kind, with one read per [store.MaxGet] backends. If a read fails,
// it returns random versions, so that no cached list is used.
func listVersions(ctx context.Context, o *Options, views []*View, kind api.Kind) (versions []string) {
	for some := range slices.Chunk(views, store.MaxGet) {
		var keys []store.Key
		for _, v := range some {
			keys = append(keys, v.backend.listVersionKey(kind.Changed()))
		}
		items, err := o.DB.Get(ctx, keys...)
		if err != nil {
			o.Log.WarnContext(ctx, "list versions not read", "error", err)
		}
		for i := range keys {
			version := ""
			switch {
			case err != nil:
				version = rand.Text()
			case items[i] != nil:
				version = string(items[i].Value)
			}
			versions = append(versions, version)
		}
	}
	return versions
}

// capabilityTime limits how long a connecting client waits for the backends' capabilities.
const capabilityTime = 2 * time.Second

// gatherInfo returns the descriptions of the views' backends. For a backend that does not answer in time, it returns the last known
// one, or nil.
func (bs *Set) gatherInfo(ctx context.Context, views []*View) []*ServerInfo {
	ctx, cancel := context.WithTimeout(ctx, capabilityTime)
	defer cancel()
	var wg sync.WaitGroup
	infos := make([]*ServerInfo, len(views))
	for i, v := range views {
		wg.Go(func() {
			var err error
			if infos[i], err = v.LoadInfo(ctx); err != nil {
				v.backend.logCapabilities.Do(func() {
					bs.options.Log.WarnContext(ctx, "backend capabilities unknown", "backend", v.backend.Name, "error", err)
				})
			}
		})
	}
	wg.Wait()
	return infos
}

// StartCommands starts the client's commands that have not run yet, and waits for them for a short time. The relay then reads their event
// types.
func (bs *Set) StartCommands(ctx context.Context, c api.Client) {
	bs.gatherInfo(ctx, slices.DeleteFunc(bs.viewsFor(ctx, c), func(v *View) bool {
		known, _ := v.info.Peek()
		return v.backend.Command == nil || known != nil
	}))
}

// Capabilities returns the union of the capabilities of all backends that the client may use. If several backends declare the same
// extension, it has the settings of the first one.
func (bs *Set) Capabilities(ctx context.Context, c api.Client) (all api.Capabilities) {
	views := bs.viewsFor(ctx, c)
	for i, info := range bs.gatherInfo(ctx, views) {
		if info == nil && views[i].backend.Command != nil { // it takes longer to start, and clients do not ask again for capabilities
			all.Tools, all.Prompts, all.Resources = true, true, true
		}
		if info == nil {
			continue
		}
		all.Tools = all.Tools || info.Tools
		all.Prompts = all.Prompts || info.Prompts
		all.Resources = all.Resources || info.Resources
		all.Completions = all.Completions || info.Completions
		all.Logging = all.Logging || info.Logging
		all.Tasks = all.Tasks || info.Tasks && info.Version.Stateless()
		views[i].addExtensions(&all, c.Principal, info)
	}
	return all
}
