package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/store"
)

// Call finds the backend of what is called and hands its messages on until the
// response. An error is returned only when nothing was sent that answers the request.
func (g *Gateway) Call(ctx context.Context, c api.Call) error {
	e, ok := g.lists.serves(ctx, g.backends.shown(ctx, c.Client), c.Kind, c.Name)
	if !ok {
		return unknown(c.Kind.String(), c.Name)
	}
	if jsonrpc.Repeats(c.Params) {
		// The backend might read another one than is checked here.
		return fault.New(fault.Invalid, "params have a member twice")
	}
	ctx, cancel := context.WithTimeout(ctx, g.options.CallTimeout)
	defer cancel()
	known, err := e.view.known(ctx)
	if known == nil {
		return err
	}
	x := &exchange{gateway: g, call: c, entry: e, client: e.view.of.caller(c.Token)}
	defer x.close()
	err = x.make(ctx, known)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && fault.Is(err, fault.Unavailable) { // whatever was under way
		public := fault.New(fault.Unavailable, "the call to backend %s took longer than it may; whether it did what it was asked is not known", e.Backend)
		return errors.Join(public, err)
	}
	return err
}

// exchange is one call under way.
type exchange struct {
	gateway *Gateway
	call    api.Call
	entry   entry // what is called
	client  *upstream.Client
	with    backendSession
	id      json.RawMessage // of the request at the backend
	kept    []store.Key     // what the store holds of the elicitations to the client

	// See exchange.go, rounds.go and inputrounds.go.
	stop      context.CancelFunc // ends the exchange at the backend
	responded bool               // the client has its response
	gone      bool               // the client has gone
	token     json.RawMessage    // the progress token at the backend, where it is not the client's
	refused   []translate.Need   // of what the backend asked, the client having no capability for it
	rounds    rounds             // what the client was asked and answered in earlier rounds
	pending   []upstream.Message // what it is to be asked next
	input     json.RawMessage    // the backend's demand for input
	inputs    []*input           // what the client was asked for it
}

// make makes the call in the revisions of both sides.
func (x *exchange) make(ctx context.Context, known *known) error {
	ctx, x.stop = context.WithCancel(ctx)
	defer x.stop()
	client, backend := x.call.Version.Stateless(), known.version.Stateless()
	if client {
		if err := x.checkParameters(); err != nil {
			return err
		}
	}
	switch {
	case client && backend:
		return x.callStateless(ctx, known)
	case client:
		return x.inRounds(ctx)
	case backend:
		return x.withInputs(ctx, known)
	}
	x.id = requestID(x.call.Client, x.call.ID)
	return x.inSession(ctx, x.params())
}

// inSession calls a backend of the earlier revisions. A session that it has
// forgotten is begun again, once. The backend is notified when the client does not wait any more.
func (x *exchange) inSession(ctx context.Context, params json.RawMessage) error {
	for again := false; ; again = true {
		var err error
		if x.with, err = x.gateway.sessions.of(ctx, x.call.Client, x.backend()); err != nil {
			return err
		}
		answer, err := x.client.Post(ctx, upstream.Request{
			Body: jsonrpc.AppendRequest(nil, x.id, x.call.Method, params), Version: x.with.Version, Session: x.with.ID,
		})
		if errors.Is(err, upstream.ErrSession) && !again {
			if err := x.gateway.sessions.forget(ctx, x.call.Client, x.backend(), x.with); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			err = x.failed(err)
		} else {
			err = x.relay(ctx, answer)
		}
		if !x.responded && (ctx.Err() != nil || x.gone) {
			x.backend().abandon(x.client, x.with, x.id)
		}
		return err
	}
}

// callStateless calls a backend of revision 2026-07-28 for a client of the same.
func (x *exchange) callStateless(ctx context.Context, known *known) error {
	x.with = backendSession{Version: known.version}
	x.id = upstream.FreshID()
	params := x.params()
	h := http.Header{mcpspec.HeaderMethod: {x.call.Method}}
	maps.Copy(h, x.call.Header)
	h[mcpspec.HeaderName] = []string{mcpspec.EncodeHeader(x.entry.Own)}
	if raw := jsonrpc.Member(params, "requestState"); raw != nil {
		sealed, _ := jsonrpc.String(raw)
		state, err := x.gateway.states.open(sealed, x.belongs(), time.Now())
		if err != nil {
			return err
		}
		params = jsonrpc.Replace(params, "requestState", jsonrpc.Quote(string(state)))
	}
	answer, err := x.client.Post(ctx, upstream.Request{
		Body: jsonrpc.AppendRequest(nil, x.id, x.call.Method, params), Version: known.version, Header: h,
	})
	if err != nil {
		return x.failed(err)
	}
	return x.relay(ctx, answer)
}

// params are those of the call with the name that the backend knows.
func (x *exchange) params() json.RawMessage {
	own := jsonrpc.Quote(x.entry.Own)
	if x.call.Member == "ref" {
		own = jsonrpc.Replace(jsonrpc.Member(x.call.Params, "ref"), "name", own)
	}
	return jsonrpc.Replace(x.call.Params, x.call.Member, own)
}

// sessionBasedParams are params as a backend with sessions knows them.
func (x *exchange) sessionBasedParams() json.RawMessage {
	token := jsonrpc.Quote("gw_" + string(x.id))
	params, replaced := translate.ToSessionBased(x.params(), token)
	if replaced {
		x.token = token
	}
	return params
}

// statelessParams are params as a backend of 2026-07-28 wants them.
func (x *exchange) statelessParams() json.RawMessage {
	c := translate.Client{Info: x.call.Info, Capabilities: x.call.Capabilities, Level: x.call.Level}
	if len(c.Info) == 0 {
		c.Info = x.gateway.options.Server
	}
	if len(c.Capabilities) == 0 {
		c.Capabilities = json.RawMessage(`{}`)
	}
	return translate.ToStateless(x.params(), x.with.Version, c)
}

// statelessHeader repeats what a request of 2026-07-28 has to repeat in headers.
func (x *exchange) statelessHeader() (http.Header, error) {
	h := http.Header{mcpspec.HeaderMethod: {x.call.Method}}
	if x.call.Member != "ref" {
		h[mcpspec.HeaderName] = []string{mcpspec.EncodeHeader(x.entry.Own)}
	}
	return h, x.addParameters(h)
}

// requestID is the id of a client's request at the backend. It is made of the client's own, so
// that any instance knows it when the request is cancelled, and small enough to survive a backend that
// reads numbers as doubles.
func requestID(c api.Client, id json.RawMessage) json.RawMessage {
	h := sha256.Sum256([]byte(c.Session + "\x00" + string(id)))
	return strconv.AppendUint(nil, binary.BigEndian.Uint64(h[:8])>>12, 10)
}

// belongs is what a requestState of the call is bound to: all of params but what changes between rounds.
func (x *exchange) belongs() []byte {
	digest := translate.Digest(jsonrpc.Without(x.call.Params, func(name string) bool {
		return name == "_meta" || name == "inputResponses" || name == "requestState"
	}))
	return bound(x.call.Principal, x.call.Method, x.entry.Backend, x.entry.Own, digest)
}
