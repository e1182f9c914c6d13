package relay

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
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/store"
)

// following is one connection to a backend.
type following struct {
	*follower
	relay        *Relay
	capabilities api.Capabilities
	version      mcpspec.Version
	session      string
	subscribed   map[string]bool
	changed      atomic.Bool // a list, which the store does not remember yet
	wanted       atomic.Pointer[map[string]bool]

	// See listens.go.
	further []*stream
	reading sync.WaitGroup
	failed  chan error
}

// connect opens the stream: a GET within a session of its own, or a listen.
func (f *following) connect(ctx context.Context) (*upstream.Exchange, error) {
	c := f.Client()
	wanted, err := f.Wanted(ctx)
	if err != nil {
		return nil, err
	}
	f.wanted.Store(&wanted)
	if f.version.Stateless() {
		f.subscribed = wanted
		return f.listen(ctx, true, wanted)
	}
	got, err := c.Initialize(ctx, upstream.Declared{Version: f.version})
	if err != nil {
		return nil, err
	}
	f.session, f.version = got.Session, got.Version
	stream, err := c.Get(ctx, upstream.Request{Version: f.version, Session: f.session}, "")
	if err != nil {
		return nil, err
	}
	if stream.Status >= http.StatusBadRequest { // with a reason in JSON
		stream.Close()
		return nil, &upstream.StatusError{Status: stream.Status}
	}
	return stream, f.subscribe(ctx, wanted)
}

// missed announces an update of each resource that is subscribed to, unless a relay listened up to
// now, or none ever did: which of them changed meanwhile cannot be known.
func (f *following) missed(ctx context.Context, continued bool) error {
	if continued || !f.capabilities.Subscribe {
		return nil
	}
	db, key := f.relay.DB, key(f, "followed")
	items, err := db.Get(ctx, key)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "read whether a backend was listened to")
	}
	if items[0] == nil {
		return fault.Wrap(fault.Unavailable, db.Write(ctx, store.Put(store.Item{Key: key})), "keep that a backend is listened to")
	}
	for uri := range f.subscribed {
		n := api.Notice{Method: mcpspec.NoteUpdated, Params: append(append([]byte(`{"uri":`), jsonrpc.Quote(uri)...), '}')}
		if err := f.relay.announce(ctx, f, n); err != nil {
			return err
		}
	}
	return nil
}

// listen asks for updates of these resources, and if it is to, for changes of all lists that the backend notifies of.
func (f *following) listen(ctx context.Context, lists bool, uris map[string]bool) (*upstream.Exchange, error) {
	c := f.Client()
	filter := map[string]any{
		"toolsListChanged": lists && f.capabilities.ToolsChanged, "promptsListChanged": lists && f.capabilities.PromptsChanged,
		"resourcesListChanged": lists && f.capabilities.ResourcesChanged,
	}
	if len(uris) > 0 {
		filter["resourceSubscriptions"] = slices.Sorted(maps.Keys(uris))
	}
	text, err := json.Marshal(filter)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "encode a listen")
	}
	params := jsonrpc.Insert(c.Meta(f.version), "notifications", text)
	const method = mcpspec.MethodListen
	return c.Post(ctx, upstream.Request{
		Body: jsonrpc.AppendRequest(nil, upstream.FreshID(), method, params), Version: f.version, Header: http.Header{mcpspec.HeaderMethod: {method}},
	})
}

// subscribe makes the session's subscriptions those that are wanted.
func (f *following) subscribe(ctx context.Context, wanted map[string]bool) error {
	change := func(method, uri string) error {
		params := append(append([]byte(`{"uri":`), jsonrpc.Quote(uri)...), '}')
		_, err := f.Client().Ask(ctx, upstream.Request{Version: f.version, Session: f.session}, method, params)
		if errors.Is(err, upstream.ErrAnswer) { // it may be gone there
			f.relay.log(f).WarnContext(ctx, "backend refused subscription", "method", method, "error", err)
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

// asks reports whether a client is subscribed to a resource.
func (f *following) asks(uri string) bool { return (*f.wanted.Load())[uri] }

// close gives the connection up; there may be none.
func (f *following) close(stream *upstream.Exchange) {
	if stream != nil {
		stream.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := f.Client().End(ctx, f.version, f.session); err != nil {
		f.relay.log(f).DebugContext(ctx, "backend session not ended", "error", err)
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
		case <-f.Changed():
		case <-tick.C:
			f.catchUp(ctx, false)
			f.remember(ctx)
		}
		wanted, err := f.Wanted(ctx)
		if ctx.Err() != nil {
			continue
		}
		if err != nil {
			f.relay.log(f).WarnContext(ctx, "wanted subscriptions not read", "error", err)
			continue
		}
		f.wanted.Store(&wanted) // before the backend may tell of it
		switch {
		case maps.Equal(wanted, f.subscribed):
		case f.version.Stateless():
			err = f.follow(ctx, first, wanted)
		default:
			err = f.subscribe(ctx, wanted)
		}
		if err != nil {
			return err
		}
	}
}

// unsettled is kept in the place of how a list is while that is not known: if no relay remembers
// it after this change, the next one that connects announces a change.
var unsettled = []byte("?")

func (f *following) unsettle(ctx context.Context, method string) error {
	var ops []store.Op
	for _, kind := range api.Kinds {
		if kind.Changed() == method {
			ops = append(ops, store.Put(store.Item{Key: listKey(f, kind), Value: unsettled}))
		}
	}
	return fault.Wrap(fault.Unavailable, f.relay.DB.WriteAll(ctx, ops...), "keep that a backend's list changes")
}

// remember keeps how the lists are after changes that were announced, so that the next connection
// does not announce them again.
func (f *following) remember(ctx context.Context) {
	if !f.changed.Swap(false) {
		return
	}
	if err := f.relay.compare(ctx, f, false); err != nil {
		f.changed.Store(true)
		f.relay.log(f).WarnContext(ctx, "backend lists not compared", "error", err)
	}
}

// read hands on the notifications of a stream until it ends.
func (f *following) read(ctx context.Context, stream *upstream.Exchange) error {
	c := f.Client()
	for {
		m, err := stream.Next(ctx)
		if err != nil {
			return err
		}
		switch {
		case m.Response():
			return errors.New("gateway: the backend ended its notifications")
		case m.ID != nil && m.Method == "ping":
			answer, err := c.Post(ctx, upstream.Request{
				Body: jsonrpc.AppendResult(nil, m.ID, json.RawMessage(`{}`)), Version: f.version, Session: f.session,
			})
			if err == nil {
				answer.Close()
			}
		case m.ID != nil:
			c.Dropped(ctx, dropElicitation)
		default:
			if err := f.handle(ctx, m); err != nil {
				return err
			}
		}
	}
}

// Why the relay does not hand on what a backend sends; see [upstream.Client.Dropped].
const (
	dropElicitation = "it asks a client outside of a call"
	dropUpdate      = "an update without a URI, or too large"
	dropUnasked     = "an update that no client subscribed to"
	dropMethod      = "its method is none that is relayed"
)

// maxUpdate bounds what the log takes of one notification.
const maxUpdate = 200 << 10

func (f *following) handle(ctx context.Context, m upstream.Message) error {
	params := jsonrpc.Member(m.Raw, "params")
	switch m.Method {
	// The last is a notification of clients. A backend that sends it all the same is passed on to clients of
	// the session-based revisions, as the proposal for gateways has it.
	case mcpspec.NoteToolsChange, mcpspec.NotePromptsChange, mcpspec.NoteResourcesChange, mcpspec.NoteRootsChange:
		if m.Method != mcpspec.NoteRootsChange { // no list of ours
			f.Outdate()
		}
		if !f.throttle.change(m.Method) {
			return nil
		}
		return f.announceChange(ctx, m.Method)
	case mcpspec.NoteUpdated:
		uri, ok := jsonrpc.String(jsonrpc.Member(params, "uri"))
		if !ok || uri == "" || len(params) > maxUpdate {
			f.Client().Dropped(ctx, dropUpdate)
			return nil
		}
		announce, err := f.throttle.update(ctx, len(params), f.asks(uri))
		switch {
		case err != nil:
			return fault.Wrap(fault.Unavailable, err, "wait to announce an update")
		case !announce:
			f.Client().Dropped(ctx, dropUnasked)
			return nil
		}
		return f.relay.announce(ctx, f, api.Notice{Method: m.Method, Params: params})
	case mcpspec.NoteAcknowledged, mcpspec.NoteMessage:
		return nil // nothing for clients
	}
	f.Client().Dropped(ctx, dropMethod)
	return nil
}

// announceChange announces that lists have changed.
func (f *following) announceChange(ctx context.Context, method string) error {
	if method == mcpspec.NoteRootsChange { // no list of ours
		return f.relay.announce(ctx, f, api.Notice{Method: method})
	}
	if err := f.unsettle(ctx, method); err != nil {
		return err
	}
	f.changed.Store(true)
	if err := f.ChangeListVersion(ctx, method); err != nil {
		return err
	}
	return f.relay.announce(ctx, f, api.Notice{Method: method})
}
