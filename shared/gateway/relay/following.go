package relay

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/backends"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// following is an open connection to a backend: a GET stream in its own session or, in 2026-07-28, the streams of subscriptions/listen
// requests. The goroutines that read streams and send requests report to the main goroutine, which calls [following.connect],
// [following.settle] and [following.run]. Only the main goroutine uses the fields interests and listens, so they need no lock.
type following struct {
	*follower
	relay        *Relay
	capabilities api.Capabilities
	version      spec.Version
	session      string

	ctx     context.Context // the context of all work for the connection
	cancel  context.CancelFunc
	running sync.WaitGroup
	begun   chan struct{} // closed when the relay may announce notifications
	failed  chan error    // receives the error that ended a stream
	reports chan func() error

	interests interests // the resources that clients want, see interests.go
	first     *stream
	listens   listens // see listens.go

	wanted     atomic.Pointer[map[string][]string] // the clients' subscriptions as last read: the principals, by URI
	changed    atomic.Bool                         // a list has changed, and its hash is not stored yet
	pings      chan struct{}                       // has an element for each ping of the backend that is being answered
	unanswered int                                 // failed checks in a row
}

func newFollowing(ctx context.Context, c *connection, info *backends.ServerInfo) *following {
	f := &following{
		follower: c.backend, relay: c.relay, capabilities: info.Capabilities, version: info.Version,
		begun: make(chan struct{}), failed: make(chan error, 1), reports: make(chan func() error),
		interests: interests{of: map[string]*interest{}, asking: map[string]string{}, turns: map[string]int{}},
		pings:     make(chan struct{}, maxPings),
	}
	f.ctx, f.cancel = context.WithCancel(ctx)
	f.wanted.Store(&map[string][]string{})
	return f
}

// connect opens the notification stream: a GET stream in a new session, or the stream of a listen request.
func (f *following) connect() (err error) {
	if err := f.refresh(); err != nil {
		return err
	}
	if f.version.Stateless() {
		return f.listenFirst()
	}
	got, err := f.Client().Initialize(f.ctx, upstream.Declared{Version: f.version})
	if err != nil {
		return err
	}
	f.session, f.version = got.Session, got.Version
	f.first, err = f.get()
	return err
}

func (f *following) request() upstream.Request {
	return upstream.Request{Version: f.version, Session: f.session}
}

// begin lets the goroutines that read streams announce notifications. The parameter continued is true if another relay has listened until
// now. Otherwise this relay may have missed updates, so it also announces an update for each resource to which it has subscribed.
func (f *following) begin(continued bool) {
	if continued {
		for _, of := range f.interests.of {
			of.changed = false
		}
	}
	close(f.begun)
}

func (f *following) close() {
	f.cancel()
	if f.first != nil {
		f.first.end()
	}
	for _, s := range f.listens.further {
		s.end()
	}
	f.running.Wait()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.ctx), 2*time.Second)
	defer cancel()
	f.catchUp(ctx, true)
	if err := f.Client().End(ctx, f.version, f.session); err != nil {
		f.relay.log(f).DebugContext(ctx, "backend session not ended", "error", err)
	}
}

const (
	// wantedEvery is how often the relay reads the clients' subscriptions from the store, where other instances write them.
	wantedEvery = time.Second
	// checkEvery is how often the relay pings the backend, because a proxy may keep a stream open after the backend has died.
	checkEvery = time.Minute
	maxChecks  = 3 // failed checks in a row after which the relay closes the connection
)

// run runs the main loop of an open connection until one of the connection's streams ends.
func (f *following) run(ctx context.Context) error {
	tick, check, relist := time.NewTicker(wantedEvery), time.NewTicker(checkEvery), time.NewTicker(f.relay.relist())
	defer tick.Stop()
	defer check.Stop()
	defer relist.Stop()
	for {
		f.pursue()
		f.announceEffects()
		select {
		case err := <-f.failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case report := <-f.reports:
			if err := report(); err != nil {
				return err
			}
			continue
		case <-f.Changed():
		case method := <-f.Reported():
			if err := f.handle(ctx, upstream.Message{Method: method}); err != nil {
				return err
			}
			continue
		case <-check.C:
			f.check()
			continue
		case <-relist.C:
			if f.listens.incomplete || len(f.unread) > 0 || f.isAnyLeftOut(ctx) {
				if err := f.relay.compareLists(ctx, f.follower, f.listens.incomplete); err != nil {
					return err
				}
			}
			continue
		case <-tick.C:
			f.catchUp(ctx, false)
			f.remember(ctx)
		}
		if err := f.refresh(); err != nil && ctx.Err() == nil {
			f.relay.log(f).WarnContext(ctx, "wanted subscriptions not read", "error", err)
		}
	}
}

// isAnyLeftOut reports whether a client has got a combined list without this backend's entries since the relay last compared the
// backend's lists.
func (f *following) isAnyLeftOut(ctx context.Context) bool {
	var keys []store.Key
	for _, kind := range api.Kinds {
		keys = append(keys, f.ListHashKey(kind))
	}
	hashes, err := f.relay.DB.Get(ctx, keys...)
	return err == nil && slices.ContainsFunc(hashes, isLeftOut) // after an error, the next check retries
}

// settle subscribes to resources at the backend before the relay takes over the lease from another relay, so that no update is missed in
// between. It returns when the backend has answered all requests to subscribe, or after the time limit.
func (f *following) settle(limit time.Duration) {
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		f.pursue()
		if f.interests.idle() && !f.listens.opening {
			return
		}
		select {
		case report := <-f.reports:
			if err := report(); err != nil {
				f.fail(err)
				return
			}
		case <-late.C:
			return
		case <-f.ctx.Done():
			return
		}
	}
}

func (f *following) refresh() error {
	wanted, err := f.Wanted(f.ctx)
	if err != nil {
		return err
	}
	f.wanted.Store(&wanted) // before the relay subscribes, because handling an update needs them
	f.interests.want(wanted)
	return nil
}

// runAsync runs the function do in another goroutine. Then the main goroutine runs the function that do has returned.
func (f *following) runAsync(do func() func() error) {
	f.running.Go(func() {
		report := do()
		select {
		case f.reports <- report:
		case <-f.ctx.Done():
		}
	})
}

// check asks the backend whether it is still alive. Any answer shows that it is, even an error, unless the error means that the session
// is unknown.
func (f *following) check() {
	method, params := "ping", json.RawMessage(`{}`)
	if f.version.Stateless() {
		method, params = spec.MethodDiscover, f.Client().MetaParams(f.version)
	}
	f.runAsync(func() func() error {
		_, err := f.Client().Ask(f.ctx, f.request(), method, params)
		return func() error {
			switch {
			case errors.Is(err, upstream.ErrSession):
				return err
			case err == nil || upstream.IsRefused(err):
				f.unanswered = 0
				return nil
			}
			if f.unanswered++; f.unanswered >= maxChecks {
				return err
			}
			return nil
		}
	})
}

// fail ends the connection with an error. Only the first error counts.
func (f *following) fail(err error) {
	select {
	case f.failed <- err:
	default:
	}
}

// unsettled is stored in place of a list's hash when the list has changed, until the relay knows the new hash. It differs from every
// hash. So if the relay dies before that, the next relay that connects finds a difference and announces a change.
var unsettled = []byte("?")

func (f *following) markUnsettled(ctx context.Context, method string) error {
	var ops []store.Op
	for _, kind := range api.Kinds {
		if kind.ChangedMethod() == method {
			ops = append(ops, store.Put(api.NewListHash(f.ListHashKey(kind), unsettled)))
		}
	}
	return fault.Wrap(fault.Unavailable, f.relay.DB.WriteAll(ctx, ops...), "keep that a backend's list changes")
}

// remember stores the hashes of lists whose changes were announced, so that the next connection does not announce them again.
func (f *following) remember(ctx context.Context) {
	if !f.changed.Swap(false) {
		return
	}
	if err := f.relay.compareLists(ctx, f.follower, false); err != nil {
		f.changed.Store(true)
		f.relay.log(f).WarnContext(ctx, "backend lists not compared", "error", err)
	}
}

// Reasons why the relay does not announce a message of a backend; see [upstream.Client.Dropped].
const (
	dropElicitation = "it asks a client outside of a call"
	dropUpdate      = "an update without a URI, or too large"
	dropUnasked     = "an update that no client subscribed to"
	dropMethod      = "its method is none that is relayed"
	dropPing        = "a ping while others are being answered"
)

// maxUpdate limits the size of the params of a resource update, in bytes, because the relay writes them to the event log.
const maxUpdate = 200 << 10

func (f *following) handle(ctx context.Context, m upstream.Message) error {
	params := jsonrpc.Member(m.Raw, "params")
	switch m.Method {
	// Normally only clients send roots list changes. If a backend sends one anyway, the relay passes it on to clients of session-based
	// revisions.
	case spec.NoteToolsChange, spec.NotePromptsChange, spec.NoteResourcesChange, spec.NoteRootsChange:
		if m.Method != spec.NoteRootsChange { // the gateway does not cache roots, which are a list of the client
			f.Outdate()
		}
		if !f.throttle.change(m.Method) {
			return nil
		}
		return f.announceChange(ctx, m.Method)
	case spec.NoteEventsChange:
		select {
		case f.typesChanged <- struct{}{}:
		default:
		}
		return nil
	case spec.NoteUpdated:
		uri, ok := jsonrpc.String(jsonrpc.Member(params, "uri"))
		if !ok || uri == "" || len(params) > maxUpdate {
			f.Client().Dropped(ctx, dropUpdate)
			return nil
		}
		announce, err := f.throttle.update(ctx, len(params), f.hasSubscriber(uri))
		switch {
		case err != nil:
			return fault.Wrap(fault.Unavailable, err, "wait to announce an update")
		case !announce:
			f.Client().Dropped(ctx, dropUnasked)
			return nil
		}
		return f.relay.announce(ctx, f, api.Notice{Method: m.Method, Params: params})
	case spec.NoteMessage:
		return nil // clients get no log messages outside of a call
	}
	f.Client().Dropped(ctx, dropMethod)
	return nil
}

// hasSubscriber reports whether a client is subscribed to the resource or to one that contains it, such as its folder.
func (f *following) hasSubscriber(uri string) bool {
	wanted := *f.wanted.Load()
	if _, ok := wanted[uri]; ok {
		return true
	}
	for subscribed := range wanted {
		if api.Covers(subscribed, uri) {
			return true
		}
	}
	return false
}

func (f *following) announceChange(ctx context.Context, method string) error {
	if method == spec.NoteRootsChange { // the gateway keeps no version and no hash of roots, which are a list of the client
		return f.relay.announce(ctx, f, api.Notice{Method: method})
	}
	if err := f.markUnsettled(ctx, method); err != nil {
		return err
	}
	f.changed.Store(true)
	if err := f.ChangeListVersion(ctx, method); err != nil {
		return err
	}
	return f.relay.announce(ctx, f, api.Notice{Method: method})
}
