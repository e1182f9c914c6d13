package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
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
		"protocolVersion": jsonrpc.Quote(f.known.version), "capabilities": json.RawMessage(`{}`), "clientInfo": b.gateway.options.Server,
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
	if stream.Status >= http.StatusBadRequest { // with a reason in JSON
		stream.Close()
		return nil, &upstream.StatusError{Status: stream.Status}
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
		n := Notice{mcpspec.NoteUpdated, append(append([]byte(`{"uri":`), jsonrpc.Quote(uri)...), '}')}
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
	params := jsonrpc.Insert(b.meta(f.version, json.RawMessage(`{}`)), "notifications", text)
	const method = mcpspec.MethodListen
	return b.client("").Post(ctx, upstream.Request{
		Body: jsonrpc.AppendRequest(nil, freshID(), method, params), Version: f.version, Header: http.Header{mcpspec.HeaderMethod: {method}},
	})
}

// subscribe makes the session's subscriptions those that are wanted.
func (f *following) subscribe(ctx context.Context, wanted map[string]bool) error {
	b := f.backend
	change := func(method, uri string) error {
		params := append(append([]byte(`{"uri":`), jsonrpc.Quote(uri)...), '}')
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
			if err := f.handle(ctx, m); err != nil {
				return err
			}
		}
	}
}

// maxUpdate bounds what the log takes of one notification.
const maxUpdate = 200 << 10

func (f *following) handle(ctx context.Context, m upstream.Message) error {
	params := jsonrpc.Member(m.Raw, "params")
	switch m.Method {
	// The last is a notification of clients. A backend that sends it all the same is passed on to clients of
	// the session-based revisions, as the proposal for gateways has it.
	case changes[Tools], changes[Prompts], changes[Resources], mcpspec.NoteRootsChange:
		if m.Method != mcpspec.NoteRootsChange { // no list of ours
			f.backend.outdate()
		}
		if !f.backend.throttle.change(m.Method) {
			return nil
		}
		return f.notifyChange(ctx, m.Method)
	case mcpspec.NoteUpdated:
		uri, ok := jsonrpc.String(jsonrpc.Member(params, "uri"))
		if !ok || uri == "" || len(params) > maxUpdate {
			f.backend.dropped(ctx, dropUpdate)
			return nil
		}
		tell, err := f.backend.throttle.update(ctx, len(params), f.asks(uri))
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

// notifyChange tells that lists have changed.
func (f *following) notifyChange(ctx context.Context, method string) error {
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
