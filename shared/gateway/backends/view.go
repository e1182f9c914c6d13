package backends

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/refresh"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// View has the capabilities and the lists that a backend shows to a caller. Most backends have one view for all callers, which the gateway
// reads with the operator's credentials. If the backend gets its callers' tokens and has no credentials of the operator, each caller has a
// view, so that no caller sees another one's lists.
//
// A view has no background work. It asks the backend when a caller needs newer data than it has, and concurrent callers share one request.
// This is how long it uses data before it asks again:
//
//	capabilities          for askAgain
//	list                  for the shorter of the backend's time to live and Options.ListTTL, until the list version changes
//	list, to find a name  for Options.ListTTL, even if the list version changes; for missTTL if the list does not have the name
//	list, for the relay   until Outdate is called
//
// The list version changes when the backend reports that a list has changed. The relay stores the new version before it notifies any
// client, so that a client that reacts to the notification gets the new list from any instance. A changed list may also mean that the
// backend was restarted with other software. So the next fetch asks for the capabilities again, but at most once per askLeast.
//
// If the backend does not answer, callers get the last data, however old it is. After a timeout, the view waits for as long as the failed
// fetch took before it asks for the list again, unless the list version changes first.
type View struct {
	backend *Backend
	token   string    // the caller's token, or empty for the operator's credentials
	used    time.Time // when a caller last used the view; guarded by callers.mu

	info *refresh.Value[*ServerInfo]

	mu      sync.Mutex
	lists   map[api.Kind]*versionedList
	leftOut map[api.Kind]bool // the kinds of lists that a client got without this backend's entries
	doubted time.Time         // when [View.doubt] last had an effect
}

const (
	// askAgain is how long the view uses capabilities before it asks the backend for them again. askLeast is the minimum time
	// between two such requests after changes of lists.
	askAgain = 5 * time.Minute
	askLeast = 2 * time.Second
	missTTL  = time.Second     // if a cached list is older than this and lacks a name, the gateway fetches it again to look for the name
	maxTTL   = 24 * time.Hour  // the longest time to live that a backend can set for its list
	endTime  = 2 * time.Second // limits the wait for a backend to end a session
	// maxAsks times AskTimeout is the maximum time to read the capabilities, or to read all pages of a list. AskTimeout alone limits one
	// request.
	maxAsks = 3
)

func newView(b *Backend, token string) *View {
	v := &View{backend: b, token: token, lists: map[api.Kind]*versionedList{}, leftOut: map[api.Kind]bool{}}
	v.info = refresh.New(refresh.Options{Name: "backend " + b.Name, Timeout: maxAsks * b.options.AskTimeout}, v.refreshInfo)
	return v
}

// Backend returns the backend of the view.
func (v *View) Backend() *Backend { return v.backend }

// LoadInfo returns the backend's revision and capabilities. If the backend does not respond, LoadInfo returns an error, and also the
// revision and capabilities of its last response, or nil if it has not responded yet.
func (v *View) LoadInfo(ctx context.Context) (*ServerInfo, error) {
	now, err := v.info.Within(ctx, askAgain)
	if err != nil {
		now, _ = v.info.Peek()
	}
	return now, err
}

// Forget discards the view's capabilities if they are still the given ones, so that the next caller asks the backend for them again.
func (v *View) Forget(info *ServerInfo) {
	v.info.Expire(func(now *ServerInfo) bool { return now == info })
}

// Doubt makes the next caller ask for the capabilities and read the lists again, because a response suggests that the capabilities in
// info are outdated. For example, the backend may have been upgraded. Doubt has an effect at most once per askLeast, because some
// backends always refuse some requests.
func (v *View) Doubt(info *ServerInfo) {
	if v.doubt(info) {
		v.Outdate()
	}
}

// doubt does the same as [View.Doubt], except that it keeps the lists. It reports whether it had an effect.
func (v *View) doubt(info *ServerInfo) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if time.Since(v.doubted) < askLeast {
		return false
	}
	v.doubted = time.Now()
	v.Forget(info)
	return true
}

// versionedList is a backend's list of one kind under one list version, which is a random text in the store. After a change of the
// version, the view makes another versionedList, so that callers do not wait for a fetch that began before the change.
type versionedList struct {
	version string
	since   time.Time // when the view noticed that the version had changed; zero for the view's first version
	list    *refresh.Value[*fetched]
	before  *fetched // the last list under earlier versions, or nil
}

// replaceList replaces the view's [versionedList] of a kind, so that the next caller fetches the list again. The caller holds the lock.
func (v *View) replaceList(kind api.Kind, version string, since time.Time) *versionedList {
	l := &versionedList{version: version, since: since}
	if old := v.lists[kind]; old != nil {
		l.before = old.latest()
	}
	ask := v.backend.options.AskTimeout
	l.list = refresh.New(refresh.Options{
		// The timeout allows for two attempts, each of which reads the capabilities and the list.
		Name: "the list of backend " + v.backend.Name, Proportional: true, Quick: ask / 2, Timeout: 4 * maxAsks * ask,
	}, func(ctx context.Context, _ *fetched) (*fetched, error) {
		return v.fetchWithSession(ctx, kind, l.infoAge())
	})
	v.lists[kind] = l
	return l
}

func (v *View) currentList(kind api.Kind) *versionedList {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.lists[kind]
}

// latest returns the list that was fetched last, also under an earlier list version. It returns nil before the first fetch.
func (l *versionedList) latest() *fetched {
	if list, _ := l.list.Peek(); list != nil {
		return list
	}
	return l.before
}

// infoAge returns how old the known capabilities may be when the list is fetched. If the list version has changed, capabilities from before
// the change are too old, unless they are younger than askLeast. This exception saves requests if the list changes often.
func (l *versionedList) infoAge() time.Duration {
	if l.since.IsZero() {
		return askAgain
	}
	return min(askAgain, max(askLeast, time.Since(l.since)))
}

// list returns the backend's list of a kind under the given list version. It fetches the list again if the cached one is older than the
// result of the function use. If that fails, list returns an error together with the list that was fetched last, or nil.
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
		return l.latest(), err
	}
	return now, nil
}

// cachedList returns the list in which to look up a name without a request, or nil if the list must be fetched first. After a timeout,
// the view sends no requests for the list for a while. During this pause, cachedList returns the list that was fetched last, or an empty
// list if it was never fetched.
func (v *View) cachedList(kind api.Kind) *fetched {
	l := v.currentList(kind)
	if l == nil {
		return nil
	}
	have, began := l.list.Peek()
	switch {
	case have != nil && time.Since(began) < v.backend.options.ListTTL:
		return have
	case !l.list.IsPausing():
		return nil
	case l.latest() == nil:
		return &fetched{}
	}
	return l.latest()
}

// Outdate makes the next caller fetch the lists again. That caller does not share a fetch that has already begun.
func (v *View) Outdate() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for kind, l := range v.lists {
		v.replaceList(kind, l.version, l.since)
	}
}

// listVersionLife is the minimum time for which a list version is stored, so that the version outlives the cached lists. When a
// version expires, the lists count as changed.
const listVersionLife = time.Hour

// listVersionKey returns the store's key of a list version. The parameter method is the method of the notification that reports changes
// of these lists.
func (b *Backend) listVersionKey(method string) store.Key {
	return store.Key{Table: store.Sessions, Partition: "relay#" + b.Place().String(), Sort: "mark#" + method}
}

// ChangeListVersion stores a new version for lists that have changed. The parameter method is the method of the notification that reports
// such a change, for example notifications/tools/list_changed.
func (b *Backend) ChangeListVersion(ctx context.Context, method string) error {
	err := b.options.DB.Write(ctx, store.Put(store.Item{
		Key: b.listVersionKey(method), Value: []byte(rand.Text()), Expires: time.Now().Add(max(listVersionLife, 2*b.options.ListTTL)),
	}))
	return fault.Wrap(fault.Unavailable, err, "record that a backend's list has changed")
}

// reportRate limits how many notifications about changed lists a backend may send within calls: one per second, with bursts of up to
// reportBurst.
type reportRate struct {
	limit   *rate.Limiter
	waiting atomic.Bool // whether ReportListChange will handle a report later, which covers all reports until then
}

const (
	reportBurst = 50
	reportTime  = 2 * time.Second // limits the writes to the store for one report
)

// ReportListChange handles a notification that lists have changed, which the backend has sent within a call. It combines notifications
// beyond the [reportRate] into one, which it handles later.
func (b *Backend) ReportListChange(ctx context.Context, method string) {
	r := b.reports[method]
	if r.waiting.Swap(true) {
		return
	}
	handle := func() {
		r.waiting.Store(false)
		b.handleListChange(context.WithoutCancel(ctx), method) // the call's client may disconnect meanwhile
	}
	if delay := r.limit.Reserve().Delay(); delay > 0 {
		time.AfterFunc(delay, handle)
		return
	}
	handle()
}

// handleListChange changes the list version and makes the relay announce the change to clients. If the relay runs in this process, it
// announces the change immediately. Otherwise it does so when it next finds the [api.LeftOut] that handleListChange stores.
func (b *Backend) handleListChange(ctx context.Context, method string) {
	ctx, cancel := context.WithTimeout(ctx, reportTime)
	defer cancel()
	err := b.ChangeListVersion(ctx, method)
	for _, kind := range api.Kinds {
		// The relay does not follow lists that depend on the caller.
		if kind.ChangedMethod() == method && err == nil && !b.OnlyForCallers() {
			err = b.writeLeftOut(ctx, kind)
		}
	}
	if err != nil {
		b.options.Log.WarnContext(ctx, "list change not announced", "backend", b.Name, "error", err)
	}
	select {
	case b.reported <- method:
	default:
	}
}

// listVersions reads the list versions of several backends for one kind of list, with one read per [store.MaxGet] backends. If a read
// fails, it returns random versions, so that callers do not use cached lists.
func listVersions(ctx context.Context, o *Options, views []*View, kind api.Kind) (versions []string) {
	for some := range slices.Chunk(views, store.MaxGet) {
		var keys []store.Key
		for _, v := range some {
			keys = append(keys, v.backend.listVersionKey(kind.ChangedMethod()))
		}
		items, err := o.DB.Get(ctx, keys...)
		if err != nil && !isGone(ctx) {
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

// gatherInfo reads the views' capabilities concurrently. For a backend that does not answer in time, it returns the last known
// capabilities, or nil.
func (bs *Set) gatherInfo(ctx context.Context, views []*View) []*ServerInfo {
	ctx, cancel := context.WithTimeout(ctx, capabilityTime)
	defer cancel()
	var wg sync.WaitGroup
	infos := make([]*ServerInfo, len(views))
	for i, v := range views {
		wg.Go(func() {
			var err error
			if infos[i], err = v.LoadInfo(ctx); err != nil && !isGone(ctx) {
				v.backend.logCapabilities.Do(func() {
					bs.options.Log.WarnContext(ctx, "backend capabilities unknown", "backend", v.backend.Name, "error", err)
				})
			}
		})
	}
	wg.Wait()
	return infos
}

// StartCommands starts the client's backends that are commands and have not run yet, and waits a short time for them. Once they run, the
// relay reads their event types.
func (bs *Set) StartCommands(ctx context.Context, c api.Client) {
	bs.gatherInfo(ctx, slices.DeleteFunc(bs.viewsFor(ctx, c), func(v *View) bool {
		known, _ := v.info.Peek()
		return v.backend.Command == nil || known != nil
	}))
}

// Capabilities returns the union of the capabilities of all backends that the client may use. If several backends declare the same
// extension, the result has the first backend's settings.
//
// Clients do not ask for capabilities again when a backend responds later. So a backend that has never responded counts as one with
// tools, prompts and resources.
func (bs *Set) Capabilities(ctx context.Context, c api.Client) (all api.Capabilities) {
	views := bs.viewsFor(ctx, c)
	for i, info := range bs.gatherInfo(ctx, views) {
		if info == nil {
			all.Tools, all.Prompts, all.Resources = true, true, true
			continue
		}
		all.Tools = all.Tools || info.Tools
		all.Prompts = all.Prompts || info.Prompts
		all.Resources = all.Resources || info.Resources
		all.Completions = all.Completions || info.Completions
		all.Logging = all.Logging || info.Logging
		all.Tasks = all.Tasks || info.Tasks && info.Version.Stateless()
		views[i].addExtensions(&all, c.Principal, info)
		views[i].addInstructions(&all, info, len(views) > 1)
	}
	return all
}

// addInstructions appends the backend's instructions for models. It mentions the backend's prefix, because the instructions use tool
// names without it.
func (v *View) addInstructions(to *api.Capabilities, info *ServerInfo, several bool) {
	text := info.Instructions
	if text == "" {
		return
	}
	switch prefix := v.backend.Prefix; {
	case prefix != "":
		text = fmt.Sprintf("Instructions of the server %s, whose tools and prompts have the prefix %s here:\n%s", v.backend.Name, prefix, text)
	case several:
		text = fmt.Sprintf("Instructions of the server %s:\n%s", v.backend.Name, text)
	}
	to.Instructions = strings.TrimSpace(to.Instructions + "\n\n" + text)
}
