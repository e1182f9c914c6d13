package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/sse"
	"github.com/mcp-events/mcpevents/shared/store"
)

// Call is a request of a client that a backend answers.
type Call struct {
	Client
	Kind Kind
	// Name is what is called, as the client names it; Member of params holds it.
	Name, Member string
	Method       string
	ID, Params   json.RawMessage
	// Header are the mirrored headers of revision 2026-07-28.
	Header http.Header
	// ResponseOnly is set for a client that takes no event stream. It cannot be asked
	// anything within the call, and whoever tries is told so at once.
	ResponseOnly bool
	// Send takes each message for the client, the response last. An error means that
	// the client is gone.
	Send func(message json.RawMessage, response bool) error
}

// Has reports whether a backend of the principal has something of that name.
func (g *Gateway) Has(ctx context.Context, c Client, kind Kind, name string) bool {
	_, ok := g.serves(ctx, c, kind, name)
	return ok
}

// Call finds the backend of what is called and hands its messages on until the
// response. An error is returned only when nothing was sent that answers the request.
func (g *Gateway) Call(ctx context.Context, c Call) error {
	e, ok := g.serves(ctx, c.Client, c.Kind, c.Name)
	if !ok {
		return unknown(kinds[c.Kind].what, c.Name)
	}
	if jsonrpc.Repeats(c.Params) {
		// The backend might read another one than is checked here.
		return fault.New(fault.Invalid, "params have a member twice")
	}
	ctx, cancel := context.WithTimeout(ctx, g.options.CallTimeout)
	defer cancel()
	known, err := e.backend.as(ctx, c.Client).known(ctx)
	if known == nil {
		return err
	}
	x := &exchange{gateway: g, call: c, backend: e.backend, own: e.own, entry: e}
	defer x.close()
	err = x.make(ctx, known)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && fault.Is(err, fault.Unavailable) { // whatever was under way
		told := fault.New(fault.Unavailable, "the call to backend %s took longer than it may; whether it did what it was asked is not known", x.backend.Name)
		return errors.Join(told, err)
	}
	return err
}

// make makes the call in the revisions of both sides.
func (x *exchange) make(ctx context.Context, known *learned) error {
	ctx, x.stop = context.WithCancel(ctx)
	defer x.stop()
	if x.call.stateless() {
		if err := x.call.checkParameters(x.entry); err != nil {
			return err
		}
	}
	switch {
	case x.call.stateless() && stateless(known.version):
		return x.callStateless(ctx, known)
	case x.call.stateless():
		return x.inRounds(ctx)
	case stateless(known.version):
		return x.withInputs(ctx, known)
	}
	x.id = requestID(x.call.Client, x.call.ID)
	return x.inSession(ctx, x.call.withName(x.own, x.call.Params))
}

// exchange is one call under way.
type exchange struct {
	gateway *Gateway
	call    Call
	backend *backend
	own     string // the name at the backend
	entry   Entry
	with    backendSession
	id      json.RawMessage // of the request at the backend
	kept    []store.Key     // what the store holds of the elicitations to the client

	// See revisions.go, rounds.go and inputrounds.go.
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

// close forgets what was asked and not answered: the call is over.
func (x *exchange) close() {
	ctx, cancel := context.WithTimeout(context.Background(), tidyTime)
	defer cancel()
	x.gateway.elicitations.drop(ctx, x.kept)
	for _, in := range x.inputs {
		if in.answer == nil {
			x.gateway.elicitations.dropLate(ctx, in.id)
		}
	}
}

// requestID is the id of a client's request at the backend. It is made of the client's own, so
// that any instance knows it when the request is cancelled, and small enough to survive a backend that
// reads numbers as doubles.
func requestID(c Client, id json.RawMessage) json.RawMessage {
	h := sha256.Sum256([]byte(c.Session + "\x00" + string(id)))
	return strconv.AppendUint(nil, binary.BigEndian.Uint64(h[:8])>>12, 10)
}

// inSession calls a backend of the earlier revisions. A session that it has
// forgotten is begun again, once. The backend is told when nobody waits for it any more.
func (x *exchange) inSession(ctx context.Context, params json.RawMessage) error {
	for again := false; ; again = true {
		var err error
		if x.with, err = x.gateway.sessions.of(ctx, x.call.Client, x.backend); err != nil {
			return err
		}
		answer, err := x.client().Post(ctx, upstream.Request{
			Body: jsonrpc.AppendRequest(nil, x.id, x.call.Method, params), Version: x.with.Version, Session: x.with.ID,
		})
		if errors.Is(err, upstream.ErrSession) && !again {
			if err := x.gateway.sessions.forget(ctx, x.call.Client, x.backend, x.with); err != nil {
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
			x.abandon()
		}
		return err
	}
}

// withName is params with the name that the backend knows.
func (c Call) withName(own string, params json.RawMessage) json.RawMessage {
	return jsonrpc.Replace(params, c.Member, c.nameAs(own))
}

// callStateless calls a backend of revision 2026-07-28 for a client of the same.
func (x *exchange) callStateless(ctx context.Context, known *learned) error {
	x.with = backendSession{Version: known.version}
	x.id = freshID()
	params := x.call.withName(x.own, x.call.Params)
	h := http.Header{mcpspec.HeaderMethod: {x.call.Method}}
	for name, values := range x.call.Header {
		h[name] = values
	}
	h[mcpspec.HeaderName] = []string{mcpspec.EncodeHeader(x.own)}
	if raw := jsonrpc.Member(params, "requestState"); raw != nil {
		sealed, _ := jsonrpc.String(raw)
		state, err := x.gateway.states.open(sealed, x.belongs(), time.Now())
		if err != nil {
			return err
		}
		params = jsonrpc.Replace(params, "requestState", jsonrpc.Quote(string(state)))
	}
	answer, err := x.client().Post(ctx, upstream.Request{
		Body: jsonrpc.AppendRequest(nil, x.id, x.call.Method, params), Version: known.version, Header: h,
	})
	if err != nil {
		return x.failed(err)
	}
	return x.relay(ctx, answer)
}

func (x *exchange) belongs() []byte {
	return bound(x.call.Principal, x.call.Method, x.backend.Name, x.own, x.call.digest())
}

func (x *exchange) client() *upstream.Client { return x.backend.caller(x.call.Token) }

// nameAs is the value of the member that names what is called.
func (c Call) nameAs(own string) []byte {
	if c.Member == "ref" {
		return jsonrpc.Replace(jsonrpc.Member(c.Params, "ref"), "name", jsonrpc.Quote(own))
	}
	return jsonrpc.Quote(own)
}

// failed is what a caller is told of a backend's failure: not what it was, but that the call
// may have done something.
func (x *exchange) failed(err error) error {
	told := fault.New(fault.Unavailable, "backend %s failed; whether it did what it was asked is not known", x.backend.Name)
	if kinds[x.call.Kind].prefixed { // a URI may say more than a log is to know
		err = fmt.Errorf("%s %s: %w", x.call.Method, x.own, err)
	}
	return errors.Join(told, err)
}

// maxResumes bounds how often one call goes on at a backend that ends its stream.
const maxResumes = 100

// relay hands messages on until the response.
func (x *exchange) relay(ctx context.Context, answer *upstream.Exchange) error {
	defer func() { answer.Close() }()
	for resumed := 0; ; {
		raw, err := answer.Next()
		if _, ok := errors.AsType[*upstream.Garbage](err); ok {
			x.backend.dropped(ctx, dropGarbage)
			continue
		}
		if err != nil && answer.EventID != "" && ctx.Err() == nil && resumed < maxResumes && !errors.Is(err, sse.ErrTooLarge) {
			// The backend has ended the connection, not the call (2025-11-25, Resumability).
			resumed++
			next, rerr := x.resume(ctx, answer.EventID)
			if rerr != nil {
				return x.failed(rerr)
			}
			answer.Close()
			answer = next
			continue
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("gateway: the stream ended before the response")
			}
			return x.failed(err)
		}
		done, err := x.message(ctx, raw)
		if done && err == nil {
			answer.Finish()
		}
		if done || err != nil {
			return err
		}
	}
}

// resume goes on with a call's stream, after the pause that lets a backend end many.
func (x *exchange) resume(ctx context.Context, last string) (*upstream.Exchange, error) {
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	answer, err := x.client().Get(ctx, upstream.Request{Version: x.with.Version, Session: x.with.ID}, last)
	if err == nil && answer.EventID == "" {
		answer.EventID = last
	}
	return answer, err
}

// passed are the notifications that a backend may send within a call.
var passed = map[string]bool{
	mcpspec.NoteProgress: true, mcpspec.NoteMessage: true, mcpspec.NoteElicited: true,
	mcpspec.NoteTaskStatus: true,
}

// message hands one message on.
func (x *exchange) message(ctx context.Context, raw json.RawMessage) (done bool, err error) {
	m, ok := upstream.Read(raw)
	switch {
	case !ok:
		x.backend.dropped(ctx, dropNoMessage)
	case m.Response():
		if string(m.ID) != string(x.id) {
			x.backend.dropped(ctx, dropOther)
			return false, nil
		}
		x.pending = nil // it waits for no answers any more
		return true, x.respond(m)
	case m.ID != nil:
		return false, x.elicit(ctx, m)
	case passed[m.Method]:
		if m, ok = x.fits(m); ok {
			return false, x.send(m.Raw, false)
		}
	default:
		x.backend.dropped(ctx, dropOutOfPlace)
	}
	return false, nil
}

// send hands a message to the client.
func (x *exchange) send(message json.RawMessage, response bool) error {
	err := x.call.Send(message, response)
	x.responded = x.responded || response
	x.gone = x.gone || err != nil
	return err
}

// maxAsked bounds how often a client with a session is asked in one call: each time is an item of the store.
const maxAsked = 1000

// elicit puts a backend's request to the client, or answers it here.
func (x *exchange) elicit(ctx context.Context, m upstream.Message) error {
	params := jsonrpc.Member(m.Raw, "params")
	lacks := translate.Lacking(x.call.Capabilities, m.Method, params)
	switch {
	case stateless(x.with.Version): // has no requests of servers, and so no answers to them
		x.backend.dropped(ctx, dropOutOfPlace)
		return nil
	case m.Method == "ping":
		return x.reply(ctx, jsonrpc.AppendResult(nil, m.ID, json.RawMessage(`{}`)))
	case lacks != "" || x.call.stateless() && !translate.MultiRound[x.call.Method]:
		if lacks != "" {
			x.refused = append(x.refused, lacks)
		}
		return x.refuse(ctx, m, jsonrpc.MethodNotFound, "the client does not support "+m.Method)
	case x.call.stateless():
		return x.collect(ctx, m, params)
	case x.call.ResponseOnly:
		return x.refuse(ctx, m, jsonrpc.MethodNotFound, "the client takes no event stream, so that it cannot be asked "+m.Method)
	case len(x.kept) >= maxAsked:
		return x.refuse(ctx, m, jsonrpc.InvalidRequest, "the client is not asked more than "+strconv.Itoa(maxAsked)+" times in one call")
	}
	id, err := x.gateway.elicitations.ask(ctx, x.call.Client, x.backend, x.with, m.ID)
	if err != nil {
		return err
	}
	x.kept = append(x.kept, elicitationKey(id))
	return x.send(jsonrpc.Replace(m.Raw, "id", jsonrpc.Quote(id)), false)
}

// refuse answers a backend's request with an error.
func (x *exchange) refuse(ctx context.Context, m upstream.Message, code int, why string) error {
	return x.reply(ctx, jsonrpc.AppendError(nil, m.ID, &jsonrpc.Error{Code: code, Message: why}))
}

// reply answers a backend's request in the client's place.
func (x *exchange) reply(ctx context.Context, body []byte) error {
	answer, err := x.client().Post(ctx, upstream.Request{Body: body, Version: x.with.Version, Session: x.with.ID})
	if err != nil {
		return x.failed(err)
	}
	answer.Close()
	return nil
}
