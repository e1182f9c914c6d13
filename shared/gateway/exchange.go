package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/periodic"
	"github.com/mcp-events/mcpevents/shared/sse"
	"github.com/mcp-events/mcpevents/shared/store"
)

// exchange is what goes on with the backend in one call: the request, and what comes of it on its way to the client.
// What changes between revisions is in package translate, and what has to be done about it in [way].
type exchange struct {
	way      way
	sessions *sessions
	call     api.Call
	entry    entry // what is called
	client   *upstream.Client
	with     backendSession

	id        json.RawMessage // of the request at the backend
	token     json.RawMessage // the progress token at the backend, where it is not the client's
	responded bool            // the client has its response
	gone      bool            // the client has gone
}

// sessionWay is the way between a client and a backend that both have sessions.
type sessionWay struct {
	x            *exchange
	elicitations *elicitations
	kept         []store.Key // what the store holds of the elicitations to the client
}

func (w *sessionWay) make(ctx context.Context) error {
	defer func() { w.elicitations.over(w.kept, nil) }()
	w.x.id = requestID(w.x.call.Client, w.x.call.ID)
	return w.x.inSession(ctx, w.x.params())
}

// maxAsked bounds how often a client with a session is asked in one call: each time is an item of the store.
const maxAsked = 1000

func (w *sessionWay) elicit(ctx context.Context, m upstream.Message) error {
	x := w.x
	switch {
	case translate.Lacking(x.call.Capabilities, m.Method, jsonrpc.Member(m.Raw, "params")) != "":
		return x.refuse(ctx, m, jsonrpc.MethodNotFound, "the client does not support "+m.Method)
	case x.call.ResponseOnly:
		return x.refuse(ctx, m, jsonrpc.MethodNotFound, "the client takes no event stream, so that it cannot be asked "+m.Method)
	case len(w.kept) >= maxAsked:
		return x.refuse(ctx, m, jsonrpc.InvalidRequest, "the client is not asked more than "+strconv.Itoa(maxAsked)+" times in one call")
	}
	id, err := w.elicitations.ask(ctx, x.call.Client, x.backend(), x.with, m.ID)
	if err != nil {
		return err
	}
	w.kept = append(w.kept, elicitationKey(id))
	return x.send(jsonrpc.Replace(m.Raw, "id", jsonrpc.Quote(id)), false)
}

func (w *sessionWay) respond(m upstream.Message) error { return w.x.send(m.Raw, true) }

// inSession calls a backend of the earlier revisions. A session that it has
// forgotten is begun again, once. The backend is notified when the client does not wait any more.
func (x *exchange) inSession(ctx context.Context, params json.RawMessage) error {
	for again := false; ; again = true {
		var err error
		if x.with, err = x.sessions.of(ctx, x.call.Client, x.backend()); err != nil {
			return err
		}
		answer, err := x.client.Post(ctx, upstream.Request{
			Body: jsonrpc.AppendRequest(nil, x.id, x.call.Method, params), Version: x.with.Version, Session: x.with.ID,
		})
		if errors.Is(err, upstream.ErrSession) && !again {
			if err := x.sessions.forget(ctx, x.call.Client, x.backend(), x.with); err != nil {
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

// withoutSession calls a backend of revision 2026-07-28.
func (x *exchange) withoutSession(ctx context.Context, params json.RawMessage, header http.Header) error {
	x.id = upstream.FreshID()
	answer, err := x.client.Post(ctx, upstream.Request{
		Body: jsonrpc.AppendRequest(nil, x.id, x.call.Method, params), Version: x.with.Version, Header: header,
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

// maxResumes bounds how often one call goes on at a backend that ends its stream.
const maxResumes = 100

// relay hands messages on until the response.
func (x *exchange) relay(ctx context.Context, answer *upstream.Exchange) error {
	defer func() { answer.Close() }()
	for resumed := 0; ; {
		m, err := answer.Next(ctx)
		if err != nil && answer.EventID != "" && ctx.Err() == nil && resumed < maxResumes && !errors.Is(err, sse.ErrTooLarge) {
			// The backend has ended the connection, not the call (2025-11-25, Resumability).
			resumed++
			next, rerr := x.resume(ctx, answer.EventID)
			if rerr != nil {
				return x.failed(rerr)
			}
			answer.GoesOn(next)
			answer = next
			continue
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("gateway: the stream ended before the response")
			}
			return x.failed(err)
		}
		done, err := x.handle(ctx, m)
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
	if err := periodic.Sleep(ctx, time.Second); err != nil {
		return nil, err
	}
	answer, err := x.client.Get(ctx, upstream.Request{Version: x.with.Version, Session: x.with.ID}, last)
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

// handle hands one message on.
func (x *exchange) handle(ctx context.Context, m upstream.Message) (done bool, err error) {
	switch {
	case m.Response():
		if !jsonrpc.SameID(m.ID, x.id) {
			x.backend().dropped(ctx, dropOther)
			return false, nil
		}
		m.Raw = jsonrpc.Replace(m.Raw, "id", x.call.ID)
		return true, x.way.respond(m)
	case m.Method == "ping" && m.ID != nil && !x.with.Version.Stateless():
		return false, x.reply(ctx, jsonrpc.AppendResult(nil, m.ID, json.RawMessage(`{}`)))
	case m.ID != nil:
		return false, x.way.elicit(ctx, m)
	case passed[m.Method]:
		if m, ok := x.fits(m); ok {
			return false, x.send(m.Raw, false)
		}
	default:
		return false, x.outOfPlace(ctx)
	}
	return false, nil
}

// fits makes of a notification within a call the one for the client. It reports false for
// what the client did not ask for, or its revision does not have.
func (x *exchange) fits(m upstream.Message) (upstream.Message, bool) {
	params := jsonrpc.Member(m.Raw, "params")
	switch {
	case m.Method == mcpspec.NoteProgress:
		return x.ownProgress(m, params)
	case !x.call.Version.Stateless():
		return m, true
	case m.Method == mcpspec.NoteMessage:
		level, _ := jsonrpc.String(jsonrpc.Member(params, "level"))
		return m, x.call.Level != "" && mcpspec.SevereAs(level, x.call.Level)
	}
	return m, x.with.Version.Stateless()
}

// ownProgress gives a progress message the client's token, as the client wrote it. One with
// another token is of another call, or of none.
func (x *exchange) ownProgress(m upstream.Message, params json.RawMessage) (upstream.Message, bool) {
	own := jsonrpc.Member(jsonrpc.Member(x.call.Params, "_meta"), "progressToken")
	sent := own
	if x.token != nil {
		sent = x.token
	}
	got := jsonrpc.Member(params, "progressToken")
	if own == nil || !jsonrpc.SameID(got, sent) {
		x.backend().dropped(context.Background(), dropProgress)
		return m, false
	}
	if string(got) != string(own) {
		m.Raw = jsonrpc.Replace(m.Raw, "params", jsonrpc.Replace(params, "progressToken", own))
	}
	return m, true
}

// outOfPlace drops a message that does not belong to a call: a notification other than those that are passed, or any
// request of a backend of 2026-07-28, where servers make none and take no answers.
func (x *exchange) outOfPlace(ctx context.Context) error {
	x.backend().dropped(ctx, dropOutOfPlace)
	return nil
}

// translated is a response in the form of the client's revision, and the code of an error as it was.
func (x *exchange) translated(m upstream.Message) (response json.RawMessage, code int) {
	between := translate.Way{Client: x.call.Version, Backend: x.with.Version}
	if m.Result == nil {
		return between.Error(x.call.Method, m.Raw)
	}
	return jsonrpc.Replace(m.Raw, "result", between.Result(x.call.Method, m.Result)), 0
}

// send hands a message to the client.
func (x *exchange) send(message json.RawMessage, response bool) error {
	err := x.call.Send(message, response)
	x.responded = x.responded || response
	x.gone = x.gone || err != nil
	return err
}

// refuse answers a backend's request with an error.
func (x *exchange) refuse(ctx context.Context, m upstream.Message, code int, why string) error {
	return x.reply(ctx, jsonrpc.AppendError(nil, m.ID, &jsonrpc.Error{Code: code, Message: why}))
}

// reply answers a backend's request in the client's place.
func (x *exchange) reply(ctx context.Context, body []byte) error {
	if err := x.client.Send(ctx, upstream.Request{Body: body, Version: x.with.Version, Session: x.with.ID}); err != nil {
		return x.failed(err)
	}
	return nil
}

func (x *exchange) backend() *backend { return x.entry.view.of }

// belongs is what a requestState of the call is bound to: who calls what, with all of params but what changes between
// rounds.
func (x *exchange) belongs() []byte {
	digest := translate.Digest(jsonrpc.Without(x.call.Params, func(name string) bool {
		return name == "_meta" || name == "inputResponses" || name == "requestState"
	}))
	return bound(x.call.Principal, x.call.Method, x.entry.Backend, x.entry.Own, digest)
}

// failed is what a caller sees of a backend's failure: not what it was, but that the call
// may have done something.
func (x *exchange) failed(err error) error {
	public := fault.New(fault.Unavailable, "backend %s failed; whether it did what it was asked is not known", x.entry.Backend)
	if x.call.Kind.Prefixed() { // a URI may say more than a log is to know
		err = fmt.Errorf("%s %s: %w", x.call.Method, x.entry.Own, err)
	}
	return errors.Join(public, err)
}
