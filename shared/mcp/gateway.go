package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/catalog"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/sse"
	"github.com/mcp-events/mcpevents/shared/stream"
	"github.com/mcp-events/mcpevents/shared/subscription"
)

// Gateway reaches the backends; [gateway.Gateway] does.
type Gateway interface {
	// Any reports whether there are backends at all, which may change at any time.
	Any(ctx context.Context) bool
	Offers(ctx context.Context, c gateway.Client) gateway.Offers
	List(ctx context.Context, c gateway.Client, kind gateway.Kind) *gateway.List
	Has(ctx context.Context, c gateway.Client, kind gateway.Kind, name string) bool
	Call(ctx context.Context, c gateway.Call) error
	Answer(ctx context.Context, c gateway.Client, id string, body json.RawMessage) error
	Cancel(ctx context.Context, c gateway.Client, body json.RawMessage) error
	Tell(ctx context.Context, c gateway.Client, body json.RawMessage) error
	SetLevel(ctx context.Context, c gateway.Client) error
	// Backends names those that a principal may use, Subscribable the one that serves a URI
	// and tells of its changes.
	Backends(ctx context.Context, p auth.Principal) []string
	Subscribable(ctx context.Context, p auth.Principal, uri string) (backend string, ok bool)
	Want(ctx context.Context, w gateway.Wanted) error
	Unwant(ctx context.Context, w gateway.Wanted) error
	End(ctx context.Context, c gateway.Client) error
}

// backends are those behind the gateway, if there is one.
type backends struct{ all Gateway }

// now is nil while there are no backends. Then the endpoint is what it is without a
// gateway.
func (b backends) now(ctx context.Context) Gateway {
	if b.all != nil && b.all.Any(ctx) {
		return b.all
	}
	return nil
}

// calls hands requests, and what clients notify and answer, on to backends.
type calls struct {
	backends backends
	catalogs catalogs
	faults   faults
	timing   timing
	shut     context.Context // ends calls that still run, see [Endpoint.Close]
}

// route is where in the gateway a request goes: what its member of params names.
type route struct {
	kind         gateway.Kind
	name, member string
}

// maxDeclaration bounds what a session keeps of a client's capabilities and name.
const maxDeclaration = 16 << 10

// declaration is what a client said of itself, if it is an object of reasonable size.
func declaration(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 || raw[0] != '{' || len(raw) > maxDeclaration {
		return nil
	}
	return bytes.Clone(raw)
}

// client is the caller as backends know it.
func (c *call) client() gateway.Client {
	out := gateway.Client{Principal: c.principal, Version: string(c.version), Token: c.request.Header.Get("Authorization")}
	if c.session != nil {
		out.Session, out.Capabilities, out.Info, out.Level = c.session.key, c.session.Capabilities, c.session.Client, c.session.Level
		return out
	}
	out.Capabilities = jsonrpc.Member(c.meta, mcpspec.MetaCapabilities)
	out.Info = jsonrpc.Member(c.meta, mcpspec.MetaClient)
	out.Level, _ = jsonrpc.String(jsonrpc.Member(c.meta, mcpspec.MetaLogLevel))
	return out
}

func routeTool(c *call) (route, bool, error) {
	name, err := c.required("name")
	return route{gateway.Tools, name, "name"}, true, err
}

func routePrompt(c *call) (route, bool, error) {
	name, err := c.required("name")
	return route{gateway.Prompts, name, "name"}, true, err
}

// routeRead leaves our own schemes to us.
func (h *calls) routeRead(c *call) (route, bool, error) {
	uri, err := c.required("uri")
	if err != nil || strings.HasPrefix(uri, subscriptionScheme) {
		return route{}, false, err
	}
	ctx := c.request.Context()
	if cat, err := h.catalogs.of(ctx, c.principal); err == nil && known(cat, uri) {
		return route{}, false, nil
	}
	return route{gateway.Resources, uri, "uri"}, h.backends.all.Has(ctx, c.client(), gateway.Resources, uri), nil
}

// known reports whether a URI is one of the catalog's. Such a one is not looked for at backends,
// as when it is subscribed to.
func known(cat *catalog.Catalog, uri string) bool {
	_, _, err := subscription.Resolve(cat, uri)
	return err == nil
}

func (h *calls) routeComplete(c *call) (route, bool, error) {
	ref := c.param("ref")
	if name, ok := jsonrpc.String(jsonrpc.Member(ref, "name")); ok {
		return route{gateway.Prompts, name, "ref"}, true, nil
	}
	uri, _ := jsonrpc.String(jsonrpc.Member(ref, "uri"))
	if cat, err := h.catalogs.of(c.request.Context(), c.principal); err == nil && slices.ContainsFunc(cat.Entries(), func(x *catalog.Entry) bool { return x.URITemplate == uri }) {
		return route{}, false, nil
	}
	to := route{gateway.Templates, uri, "ref"}
	return to, h.backends.all.Has(c.request.Context(), c.client(), gateway.Templates, uri), nil
}

// router finds what of a backend a request is for. Without ok it is for nothing of theirs.
type router func(c *call) (to route, ok bool, err error)

// proxying serves what backends have, and leaves the rest to here, which may be nil.
type proxying struct {
	calls *calls
	route router
	here  handler
}

func (h proxying) serve(w http.ResponseWriter, c *call) error {
	if h.calls.backends.now(c.request.Context()) != nil {
		to, ok, err := h.route(c)
		if err != nil {
			return err
		}
		if ok {
			return h.calls.serve(w, c, to)
		}
	}
	if h.here == nil {
		return unknownMethod(c.msg.Method)
	}
	return h.here.serve(w, c)
}

// serve calls what a backend has and relays its answer.
func (h *calls) serve(w http.ResponseWriter, c *call, to route) error {
	p := &responseRelay{lateAnswer: h.timing.late(w, c), calls: h, c: c}
	ctx, end := p.lifetime()
	defer end()
	p.waits(h.timing.heartbeat)
	err := h.backends.all.Call(ctx, gateway.Call{
		Client: c.client(), Kind: to.kind, Name: to.name, Member: to.member, Method: c.msg.Method,
		ID: bytes.Clone(c.msg.ID), Params: c.msg.Params, Header: parameterHeaders(c.request.Header), Send: p.send,
		ResponseOnly: !p.streams,
	})
	if p.failed(err) {
		return nil
	}
	return err
}

// parameterHeaders are those that repeat arguments of a tool (2026-07-28, Custom
// Headers from Tool Parameters). The backend compares them.
func parameterHeaders(h http.Header) http.Header {
	out := http.Header{}
	for name, values := range h {
		if strings.HasPrefix(name, "Mcp-Param-") {
			out[name] = values
		}
	}
	return out
}

// responseRelay is the answer to a call: a backend's messages as they come, and comments while it is quiet. It is JSON
// when the response comes first and soon, else a stream.
type responseRelay struct {
	*lateAnswer
	calls *calls
	c     *call
}

// callReserve is what a call leaves of its invocation's deadline on Lambda: for telling the backend that
// nobody waits any more, which takes five seconds at most, for two seconds of tidying up, and for telling the client.
const callReserve = 9 * time.Second

// lifetime is the context of the call. Closing the connection cancels it in
// 2026-07-28 and not before (2025-11-25, Transports). It ends before the function is ended, which would
// leave the client without an answer and cut off whatever else the process does; and when [Endpoint.Close] lets it
// run no longer, which the client is told at once.
func (p *responseRelay) lifetime() (ctx context.Context, end func()) {
	ctx, ends := p.c.request.Context(), p.c.ends
	if p.c.version.Stateless() {
		ends, _ = ctx.Deadline()
	} else {
		ctx = context.WithoutCancel(ctx)
	}
	var cancel context.CancelFunc
	if ends.IsZero() {
		ctx, cancel = context.WithCancel(ctx)
	} else {
		ctx, cancel = context.WithDeadline(ctx, ends.Add(-callReserve))
	}
	stop := context.AfterFunc(p.calls.shut, func() {
		p.refuse()
		cancel()
	})
	return ctx, func() {
		stop()
		cancel()
	}
}

// errShutdown is what a client is told of a call that the end of the server cuts off.
var errShutdown = &jsonrpc.Error{
	Code: codeUnavailable, Message: "the server shuts down; whether the backend did what it was asked is not known",
}

// refuse answers that the server ends, unless the response is out. The backend may take longer to be told.
func (p *responseRelay) refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	_ = p.put(jsonrpc.AppendError(nil, p.c.msg.ID, errShutdown), true) // the call ends either way
	_ = http.NewResponseController(p.w).Flush()                        // as above
}

// send hands a message to the client.
func (p *responseRelay) send(message json.RawMessage, response bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over { // refused
		return errWriting
	}
	return p.put(message, response)
}

// put is send with the lock held.
func (p *responseRelay) put(message json.RawMessage, response bool) error {
	h := p.c.request.Header
	switch {
	case response:
		p.close()
	case !p.streams:
		return nil // it did not ask to be told in between
	}
	if response && p.out == nil && (accepts(h, "application/json") || !p.streams) {
		status := http.StatusOK
		if p.c.version.Stateless() {
			status = statusOf(message)
		}
		send(p.w, status, func(b []byte) []byte { return append(b, message...) })
		return nil
	}
	if err := p.write(sse.Append(nil, sse.Event{Data: message})); err != nil && p.c.version.Stateless() {
		return errors.Join(errWriting, err)
	}
	return nil // without its client the call goes on in the earlier revisions
}

// failed ends an answer that has begun with an error, and reports whether the
// response is out.
func (p *responseRelay) failed(err error) bool {
	if err == nil || p.answered() || errors.Is(err, errWriting) {
		p.stop()
		return true
	}
	return p.end(func(b []byte) []byte {
		return jsonrpc.AppendError(b, p.c.msg.ID, p.calls.faults.translate(p.c.request.Context(), err, p.c.version, coreMethods))
	})
}

// statusOf is the HTTP status of a backend's response in the modern era.
func statusOf(message json.RawMessage) int {
	failure := jsonrpc.Member(message, "error")
	if failure == nil {
		return http.StatusOK
	}
	var code int
	_ = json.Unmarshal(jsonrpc.Member(failure, "code"), &code) // 0 is none of those below
	return status(&jsonrpc.Error{Code: code})
}

// takeIn serves what needs no response: notifications, and answers to what a
// backend asked the client.
func (e *Endpoint) takeIn(w http.ResponseWriter, c *call) {
	if e.conversations.handles(c) {
		defer c.detach(e.shut)()
		e.conversations.accept(w, c)
		return
	}
	err := e.calls.handle(c)
	if refusal, ok := errors.AsType[*jsonrpc.Error](err); ok {
		sendError(w, http.StatusBadRequest, nil, refusal)
		return
	}
	if err != nil {
		w.Header().Set("Retry-After", "1")
		sendError(w, http.StatusServiceUnavailable, nil, e.faults.translate(c.request.Context(), err, c.version, coreMethods))
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

// handle hands it on to backends. Without any, and without a session, nothing that a client tells or
// answers changes anything: requests are short then, and one that is under way cannot be
// cancelled, which the revisions allow for.
func (h *calls) handle(c *call) error {
	ctx := c.request.Context()
	backends := h.backends.now(ctx)
	if backends == nil || c.session == nil {
		return nil
	}
	switch {
	case c.msg.Kind == jsonrpc.Response:
		id, _ := jsonrpc.String(c.msg.ID)
		err := backends.Answer(ctx, c.client(), id, c.msg.Raw)
		if fault.Is(err, fault.NotFound) {
			return invalidRequest(fault.Public(err))
		}
		return err
	case c.msg.Method == mcpspec.NoteCancelled:
		return backends.Cancel(ctx, c.client(), c.msg.Raw)
	case c.msg.Method == mcpspec.NoteRootsChange:
		return backends.Tell(ctx, c.client(), c.msg.Raw)
	}
	return nil
}

func (h *lists) listTools(ctx context.Context, c *call) (result, error) {
	return h.listBackends(ctx, c, gateway.Tools, "tools")
}

func (h *lists) listPrompts(ctx context.Context, c *call) (result, error) {
	return h.listBackends(ctx, c, gateway.Prompts, "prompts")
}

// listBackends serves a list that only backends have entries of.
func (h *lists) listBackends(ctx context.Context, c *call, kind gateway.Kind, member string) (result, error) {
	from, err := c.place(nil)
	if err != nil {
		return result{}, err
	}
	if from.where == atSubscriptions {
		return result{}, errListCursor
	}
	cache := c.shared(true)
	cache.ttl = math.MaxInt64 // as long as the backends say
	page := newPage(member, from, h.pageSize, cache)
	return h.addBackends(ctx, c, &page, kind)
}

// backendTopics are those of all backends whose notifications a stream may have.
func (o *streamWriter) backendTopics(ctx context.Context) (topics []string) {
	backends := o.streams.backends.now(ctx)
	if backends == nil {
		return nil
	}
	for _, name := range backends.Backends(ctx, o.principal) {
		topics = append(topics, stream.TopicBackend(name))
	}
	return topics
}

var topicBackends = stream.TopicBackend("")

// sendOtherBackends follows the backends that there are now, and tells that their lists are
// others.
func (o *streamWriter) sendOtherBackends(ctx context.Context, cursor string) error {
	now := o.streams.log.Position()
	for _, topic := range o.backendTopics(ctx) {
		o.feed.Follow(topic, now)
	}
	return o.sendChanges(cursor, mcpspec.NoteToolsChange, mcpspec.NotePromptsChange, mcpspec.NoteResourcesChange)
}

// sendBackend sends what a backend told, if the stream asked for it and its principal may
// still see the backend.
func (o *streamWriter) sendBackend(ctx context.Context, d stream.Delivery) error {
	var n gateway.Notice
	if json.Unmarshal(d.Notice, &n) != nil {
		return nil // of another version
	}
	backends := o.streams.backends.now(ctx)
	if backends == nil || !slices.Contains(backends.Backends(ctx, o.principal), strings.TrimPrefix(d.Topic, topicBackends)) {
		return nil
	}
	if n.Method != mcpspec.NoteUpdated {
		return o.sendChanges(d.Cursor, n.Method)
	}
	uri, _ := jsonrpc.String(jsonrpc.Member(n.Params, "uri"))
	t, ok := o.targets[uri]
	if !ok || stream.TopicBackend(t.backend) != d.Topic {
		return nil
	}
	var members, meta []byte
	for key, value := range jsonrpc.Members(n.Params) {
		if string(key) == "_meta" {
			meta = bytes.TrimSuffix(bytes.TrimPrefix(value, []byte("{")), []byte("}"))
			continue
		}
		if members != nil {
			members = append(members, ',')
		}
		members = append(append(jsonrpc.AppendString(members, string(key)), ':'), value...)
	}
	var more func([]byte) []byte
	if len(bytes.TrimSpace(meta)) > 0 {
		more = func(b []byte) []byte { return append(b, meta...) }
	}
	return o.send(mcpspec.NoteUpdated, func(b []byte) []byte { return append(b, members...) }, more, d.Cursor)
}

// want tells the backends of a stream's targets that somebody reads them, until
// the function that it returns is called.
func (o *streamWriter) want(ctx context.Context, holder string, until time.Time) (end func(), err error) {
	var all []gateway.Wanted
	end = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reserve/2)
		defer cancel()
		for _, w := range all {
			if err := o.streams.backends.all.Unwant(ctx, w); err != nil {
				o.streams.faults.log(ctx, "a subscription at a backend was left to expire", err)
			}
		}
	}
	for _, t := range o.targets {
		if t.backend == "" {
			continue
		}
		w := gateway.Wanted{Workspace: o.principal.Workspace, Backend: t.backend, URI: t.uri, Holder: holder, Until: until}
		if err := o.streams.backends.all.Want(ctx, w); err != nil {
			end()
			return nil, err
		}
		all = append(all, w)
	}
	return end, nil
}

// unwantAll tells the backends of what a session was subscribed to that it is over.
func (h *sessionMethods) unwantAll(ctx context.Context, sess *session, uris []subscribed) {
	for _, u := range uris {
		if u.Backend == "" || h.backends.all == nil {
			continue
		}
		w := gateway.Wanted{Workspace: sess.Workspace, Backend: u.Backend, URI: u.URI, Holder: sess.key}
		if err := h.backends.all.Unwant(ctx, w); err != nil {
			h.faults.log(ctx, "a subscription at a backend was left to expire", err)
		}
	}
}
