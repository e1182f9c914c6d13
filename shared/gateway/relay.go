package gateway

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	mathrand "math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/store"
)

// Notice is what the log holds of a backend's notification, for all streams.
type Notice struct {
	Method string          `json:"m"`
	Params json.RawMessage `json:"p,omitempty"`
}

// Announcer appends notices to a backend's topic of the log.
type Announcer func(ctx context.Context, workspace, backend string, notice json.RawMessage) error

// Relay holds one notification stream to each backend in the whole deployment, and
// puts what comes into the log. Who holds it is decided by a lease in the store.
type Relay struct {
	Gateway  *Gateway
	Announce Announcer
	// Lease is how long a holder that died keeps others waiting; 0 is 30 s.
	Lease time.Duration
	// Relist is how often the lists of a backend without notifications are compared; 0 is 1 min.
	Relist time.Duration
	// MinPause and MaxPause bound the pause before a backend is tried again, which doubles
	// each time; 0 are 1 s and 1 min.
	MinPause, MaxPause time.Duration
	// Until is when this process has to have ended, where its time is bounded. In the last
	// Handover of that time others take the backends over.
	Until    time.Time
	Handover time.Duration
}

func (r *Relay) pauses() (least, most time.Duration) {
	return cmp.Or(r.MinPause, time.Second), cmp.Or(r.MaxPause, time.Minute)
}

func (r *Relay) bounded() bool { return !r.Until.IsZero() }

func (r *Relay) lease() time.Duration { return cmp.Or(r.Lease, 30*time.Second) }

// setEvery is how often the relay looks which backends there are.
const setEvery = time.Second

// follower is the work for one backend.
type follower struct {
	stop context.CancelFunc
	idle atomic.Bool // somebody else has it
}

// Run relays until ctx ends, and follows what the gateway's backends are. Where its time is bounded
// it ends as soon as there is nothing to hold: when there are no backends, or others have them.
func (r *Relay) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if r.bounded() {
		end := time.AfterFunc(time.Until(r.Until), stop)
		defer end.Stop()
	}
	followed, idled := map[*backend]*follower{}, make(chan struct{}, 1)
	tick := time.NewTicker(setEvery)
	defer tick.Stop()
	for {
		// Where only callers have credentials there is nobody to listen as.
		now := slices.DeleteFunc(slices.Clone(r.Gateway.backends(ctx)), (*backend).perCaller)
		for b, f := range followed {
			if !slices.Contains(now, b) {
				f.stop()
				delete(followed, b)
			}
		}
		idle := true
		for _, b := range now {
			f := followed[b]
			if f == nil {
				f = &follower{}
				followed[b] = f
				var one context.Context
				one, f.stop = context.WithCancel(ctx)
				wg.Go(func() { r.backend(one, b, f, idled) })
			}
			idle = idle && f.idle.Load()
		}
		if idle && r.bounded() {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-idled:
		case <-tick.C:
		}
	}
}

// backend keeps trying to hold the stream of one backend.
func (r *Relay) backend(ctx context.Context, b *backend, f *follower, idled chan<- struct{}) {
	again, _ := r.pauses()
	if r.bounded() {
		again = max(r.Handover/8, 100*time.Millisecond)
	}
	for ctx.Err() == nil {
		l, err := r.acquire(ctx, b)
		if l != nil {
			f.idle.Store(false)
			r.keep(l)
			l.release()
		} else if err != nil && ctx.Err() == nil {
			r.Gateway.options.Log.WarnContext(ctx, "who holds a backend's notifications is not known", "backend", b.Name, "error", err)
		}
		f.idle.Store(true)
		select {
		case idled <- struct{}{}:
		default:
		}
		pause(ctx, again/2+mathrand.N(again/2)) // so that not all come together
	}
}

// keep keeps connecting, as long as it has the lease.
func (r *Relay) keep(l *lease) {
	least, most := r.pauses()
	for wait := least; l.ctx.Err() == nil; {
		began := time.Now()
		err := r.follow(l)
		if l.follows {
			r.Gateway.options.Log.InfoContext(l.ctx, "the notifications of a backend were not taken over", "backend", l.backend.Name, "error", err)
			return // the holder goes on
		}
		if err != nil && l.ctx.Err() == nil {
			r.Gateway.options.Log.WarnContext(l.ctx, "the notifications of a backend are interrupted", "backend", l.backend.Name, "error", err)
		}
		if time.Since(began) > wait {
			wait = least // it was not refused, it ended
		}
		// Jitter, so that backends that died together are not called together.
		pause(l.ctx, wait/2+mathrand.N(wait/2))
		wait = min(2*wait, most)
	}
}

// follow connects to a backend and relays until the connection or the lease ends. What changed
// while nobody listened is found by comparing the lists.
func (r *Relay) follow(l *lease) error {
	ctx, b := l.ctx, l.backend
	b.mu.Lock()
	was := b.learned
	b.mu.Unlock()
	b.forget(was) // it may be another since
	known, err := b.known(ctx)
	if err != nil {
		return err
	}
	if !known.offers.Notifies() {
		return r.compareForEver(l)
	}
	f := &following{relay: r, backend: b, known: known, subscribed: map[string]bool{}, failed: make(chan error, 1)}
	stream, err := f.connect(ctx)
	defer func() { f.close(stream) }()
	if err != nil {
		if status, ok := errors.AsType[*upstream.StatusError](err); ok && status.Status == http.StatusMethodNotAllowed {
			return r.compareForEver(l)
		}
		return err
	}
	// Only now: who has it is not to stop before we listen, and what changes after the
	// comparison is notified.
	l.connected.Store(true)
	defer l.connected.Store(false)
	if err := l.take(ctx); err != nil {
		return err
	}
	if err := f.missed(ctx, l.took); err != nil {
		return err
	}
	if err := r.compare(ctx, b, true); err != nil {
		return err
	}
	l.took = false // the next connection has a gap before it
	return f.run(ctx, stream)
}

// Notifies reports whether the backend tells of any change.
func (o Offers) Notifies() bool {
	return o.ToolsChanged || o.PromptsChanged || o.ResourcesChanged || o.Subscribe
}

// compareForEver stands in for notifications.
func (r *Relay) compareForEver(l *lease) error {
	if err := l.take(l.ctx); err != nil {
		return err
	}
	for {
		if err := r.compare(l.ctx, l.backend, true); err != nil {
			return err
		}
		if err := pause(l.ctx, cmp.Or(r.Relist, time.Minute)); err != nil {
			return err
		}
	}
}

// changes say by which notification a list's change is told.
var changes = map[Kind]string{
	Tools: mcpspec.NoteToolsChange, Prompts: mcpspec.NotePromptsChange,
	Resources: mcpspec.NoteResourcesChange, Templates: mcpspec.NoteResourcesChange,
}

// compare fetches the lists and tells of those that are not what they were when
// they were compared last, by whomever. When that was told already, it only remembers.
func (r *Relay) compare(ctx context.Context, b *backend, tell bool) error {
	b.outdate()
	told := map[string]bool{}
	for kind := range kinds {
		listVersion := r.Gateway.listVersions(ctx, []*backend{b}, Kind(kind))[0]
		list, err := b.list(ctx, Kind(kind), listVersion, func(*fetched) time.Duration { return maxTTL }) // fetched since, if at all
		if err != nil {
			return err
		}
		h := sha256.New()
		for _, e := range list.entries {
			h.Write(e.JSON)
			h.Write([]byte{'\n'})
		}
		sum := []byte(base64.RawURLEncoding.EncodeToString(h.Sum(nil)))
		key := b.relayKey("list#" + kinds[kind].member)
		items, err := r.Gateway.options.DB.Get(ctx, key)
		if err != nil {
			return fault.Wrap(fault.Unavailable, err, "read how a backend's list was")
		}
		if items[0] != nil && bytes.Equal(items[0].Value, sum) {
			continue
		}
		if method := changes[Kind(kind)]; tell && items[0] != nil && !told[method] {
			told[method] = true
			if err := b.changeListVersion(ctx, method); err != nil {
				return err
			}
			if err := r.announce(ctx, b, Notice{Method: method}); err != nil {
				return err
			}
		}
		if err := r.Gateway.options.DB.Write(ctx, store.Put(store.Item{Key: key, Value: sum})); err != nil {
			return fault.Wrap(fault.Unavailable, err, "keep how a backend's list is")
		}
	}
	return nil
}

func (r *Relay) announce(ctx context.Context, b *backend, n Notice) error {
	text, err := json.Marshal(n)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode a backend's notification")
	}
	return r.Announce(ctx, b.Workspace, b.Name, text)
}

// following is one connection to a backend.
type following struct {
	relay      *Relay
	backend    *backend
	known      *learned
	session    string
	version    string
	subscribed map[string]bool
	changed    atomic.Bool // a list, which the store does not remember yet
	wanted     atomic.Pointer[map[string]bool]

	// See listens.go.
	further []*stream
	reading sync.WaitGroup
	failed  chan error
}

// connect opens the stream: a GET within a session of its own, or a listen.
func (f *following) connect(ctx context.Context) (*upstream.Exchange, error) {
	b := f.backend
	wanted, err := b.gateway.wanted(ctx, b.place())
	if err != nil {
		return nil, err
	}
	f.wanted.Store(&wanted)
	f.version = f.known.version
	if stateless(f.version) {
		f.subscribed = wanted
		return f.listen(ctx, true, wanted)
	}
	params, _ := json.Marshal(map[string]json.RawMessage{
		"protocolVersion": quote(f.known.version), "capabilities": json.RawMessage(`{}`), "clientInfo": b.gateway.options.Server,
	})
	session, got, err := b.initialize(ctx, b.client(""), params)
	if err != nil {
		return nil, err
	}
	f.session, f.version = session, got.version
	stream, err := b.client("").Get(ctx, upstream.Request{Version: f.version, Session: session}, "")
	if err != nil {
		return nil, err
	}
	return stream, f.subscribe(ctx, wanted)
}

// missed tells of an update of each resource that is subscribed to, unless somebody listened up to
// now, or nobody ever did: which of them changed meanwhile cannot be known.
func (f *following) missed(ctx context.Context, continued bool) error {
	if continued || !f.known.offers.Subscribe {
		return nil
	}
	db, key := f.relay.Gateway.options.DB, f.backend.relayKey("followed")
	items, err := db.Get(ctx, key)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "read whether a backend was listened to")
	}
	if items[0] == nil {
		return fault.Wrap(fault.Unavailable, db.Write(ctx, store.Put(store.Item{Key: key})), "keep that a backend is listened to")
	}
	for uri := range f.subscribed {
		n := Notice{mcpspec.NoteUpdated, append(append([]byte(`{"uri":`), quote(uri)...), '}')}
		if err := f.relay.announce(ctx, f.backend, n); err != nil {
			return err
		}
	}
	return nil
}

// listen asks for updates of these resources, and if it is to, for changes of all lists that the backend tells of.
func (f *following) listen(ctx context.Context, lists bool, uris map[string]bool) (*upstream.Exchange, error) {
	b := f.backend
	filter := map[string]any{
		"toolsListChanged": lists && f.known.offers.ToolsChanged, "promptsListChanged": lists && f.known.offers.PromptsChanged,
		"resourcesListChanged": lists && f.known.offers.ResourcesChanged,
	}
	if len(uris) > 0 {
		filter["resourceSubscriptions"] = slices.Sorted(maps.Keys(uris))
	}
	text, err := json.Marshal(filter)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "encode a listen")
	}
	params := upstream.Insert(b.meta(f.version, json.RawMessage(`{}`)), "notifications", text)
	const method = mcpspec.MethodListen
	return b.client("").Post(ctx, upstream.Request{
		Body: request(freshID(), method, params), Version: f.version, Header: http.Header{mcpspec.HeaderMethod: {method}},
	})
}

// subscribe makes the session's subscriptions those that are wanted.
func (f *following) subscribe(ctx context.Context, wanted map[string]bool) error {
	b := f.backend
	change := func(method, uri string) error {
		params := append(append([]byte(`{"uri":`), quote(uri)...), '}')
		_, err := b.request(ctx, b.client(""), upstream.Request{Version: f.version, Session: f.session}, method, params)
		if errors.Is(err, errRPC) { // it may be gone there
			b.gateway.options.Log.WarnContext(ctx, "a backend refused a subscription", "backend", b.Name, "method", method, "error", err)
			return nil
		}
		return err
	}
	for uri := range wanted {
		if !f.subscribed[uri] {
			if err := change(mcpspec.MethodSubscribe, uri); err != nil {
				return err
			}
			f.subscribed[uri] = true
		}
	}
	for uri := range f.subscribed {
		if !wanted[uri] {
			if err := change(mcpspec.MethodUnsubscribe, uri); err != nil {
				return err
			}
			delete(f.subscribed, uri)
		}
	}
	return nil
}

// asks reports whether somebody is subscribed to a resource.
func (f *following) asks(uri string) bool { return (*f.wanted.Load())[uri] }

// close gives the connection up; there may be none.
func (f *following) close(stream *upstream.Exchange) {
	if stream != nil {
		stream.Close()
	}
	if f.session != "" {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		f.backend.gateway.sessions.end(ctx, f.backend, "", backendSession{Version: f.version, ID: f.session})
	}
}

// wantedEvery is how often the subscriptions are looked at, which other instances write.
const wantedEvery = time.Second

// run hands on what comes, and follows what is wanted.
func (f *following) run(ctx context.Context, x *upstream.Exchange) error {
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		f.catchUp(ctx, true)
	}()
	ctx, cancel := context.WithCancel(ctx)
	first := &stream{Exchange: x, uris: f.subscribed}
	defer f.reading.Wait()
	defer func() {
		cancel()
		for _, s := range append(f.further, first) {
			s.end()
		}
	}()
	f.start(ctx, first)
	tick := time.NewTicker(wantedEvery)
	defer tick.Stop()
	for {
		select {
		case err := <-f.failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-f.backend.changed:
		case <-tick.C:
			f.catchUp(ctx, false)
			f.remember(ctx)
		}
		wanted, err := f.backend.gateway.wanted(ctx, f.backend.place())
		if ctx.Err() != nil {
			continue
		}
		if err != nil {
			f.backend.gateway.options.Log.WarnContext(ctx, "the wanted subscriptions were not read", "error", err)
			continue
		}
		f.wanted.Store(&wanted) // before the backend may tell of it
		switch {
		case maps.Equal(wanted, f.subscribed):
		case stateless(f.version):
			err = f.follow(ctx, first, wanted)
		default:
			err = f.subscribe(ctx, wanted)
		}
		if err != nil {
			return err
		}
	}
}

// unsettled is kept in the place of how a list is while that is not known: if nobody remembers
// it after this change, the next one who connects tells of a change.
var unsettled = []byte("?")

func (f *following) unsettle(ctx context.Context, method string) error {
	var ops []store.Op
	for kind, m := range changes {
		if m == method {
			ops = append(ops, store.Put(store.Item{Key: f.backend.relayKey("list#" + kinds[kind].member), Value: unsettled}))
		}
	}
	return fault.Wrap(fault.Unavailable, f.relay.Gateway.options.DB.WriteAll(ctx, ops...), "keep that a backend's list changes")
}

// remember keeps how the lists are after changes that were told, so that the next connection
// does not tell of them again.
func (f *following) remember(ctx context.Context) {
	if !f.changed.Swap(false) {
		return
	}
	if err := f.relay.compare(ctx, f.backend, false); err != nil {
		f.changed.Store(true)
		f.backend.gateway.options.Log.WarnContext(ctx, "the lists of a backend were not compared", "backend", f.backend.Name, "error", err)
	}
}

// read hands on the notifications of a stream until it ends.
func (f *following) read(ctx context.Context, stream *upstream.Exchange) error {
	b := f.backend
	for {
		raw, err := stream.Next()
		if _, ok := errors.AsType[*upstream.Garbage](err); ok {
			b.dropped(ctx, dropGarbage)
			continue
		}
		if err != nil {
			return err
		}
		m, ok := upstream.Read(raw)
		switch {
		case !ok:
			b.dropped(ctx, dropNoMessage)
		case m.Response():
			return errors.New("gateway: the backend ended its notifications")
		case m.ID != nil && m.Method == "ping":
			answer, err := b.client("").Post(ctx, upstream.Request{
				Body: jsonrpc.AppendResult(nil, m.ID, json.RawMessage(`{}`)), Version: f.version, Session: f.session,
			})
			if err == nil {
				answer.Close()
			}
		case m.ID != nil:
			b.dropped(ctx, dropElicitation)
		default:
			if err := f.notification(ctx, m); err != nil {
				return err
			}
		}
	}
}

// maxUpdate bounds what the log takes of one notification.
const maxUpdate = 200 << 10

func (f *following) notification(ctx context.Context, m upstream.Message) error {
	params := jsonrpc.Member(m.Raw, "params")
	switch m.Method {
	// The last is a notification of clients. A backend that sends it all the same is passed on to clients of
	// the session-based revisions, as the proposal for gateways has it.
	case changes[Tools], changes[Prompts], changes[Resources], mcpspec.NoteRootsChange:
		if m.Method != mcpspec.NoteRootsChange { // no list of ours
			f.backend.outdate()
		}
		if !f.backend.pace.change(m.Method) {
			return nil
		}
		return f.tellChange(ctx, m.Method)
	case mcpspec.NoteUpdated:
		uri, ok := jsonrpc.String(jsonrpc.Member(params, "uri"))
		if !ok || uri == "" || len(params) > maxUpdate {
			f.backend.dropped(ctx, dropUpdate)
			return nil
		}
		tell, err := f.backend.pace.update(ctx, len(params), f.asks(uri))
		switch {
		case err != nil:
			return fault.Wrap(fault.Unavailable, err, "wait to tell of an update")
		case !tell:
			f.backend.dropped(ctx, dropUnasked)
			return nil
		}
		return f.relay.announce(ctx, f.backend, Notice{m.Method, params})
	case mcpspec.NoteAcknowledged, mcpspec.NoteMessage:
		return nil // nothing for clients
	}
	f.backend.dropped(ctx, dropMethod)
	return nil
}

// tellChange tells that lists have changed.
func (f *following) tellChange(ctx context.Context, method string) error {
	if method == mcpspec.NoteRootsChange { // no list of ours
		return f.relay.announce(ctx, f.backend, Notice{Method: method})
	}
	if err := f.unsettle(ctx, method); err != nil {
		return err
	}
	f.changed.Store(true)
	if err := f.backend.changeListVersion(ctx, method); err != nil {
		return err
	}
	return f.relay.announce(ctx, f.backend, Notice{Method: method})
}
