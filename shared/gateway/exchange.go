package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// exchange is one call, from its request to its end. Package translate knows the differences between revisions, and [way] acts on
// them. A call is in one of these states:
//
//	          the stream ends: resumed
//	              ┌───────┐
//	              ▼       │
//	──▶ begun ──▶ called ─┴──the response──▶ answered
//	      │        │  ▲ │
//	      │  asks  │  │ └──cancelled, failed, the client is gone, the time is over──▶ ended: the backend is notified
//	      │        ▼  │ the answer, or the backend withdraws its question
//	      │       waiting ──the backend is removed──▶ ended
//	      └──cancelled while the session begins──▶ ended: the backend is not called
type exchange struct {
	way      way
	gateway  *Gateway
	sessions *sessions
	call     api.Call
	entry    entry  // the tool, prompt or resource
	known    *known // of the backend
	client   *upstream.Client
	with     backendSession
	watched  context.Context // see [exchange.watch]

	id        json.RawMessage // of the request at the backend
	token     json.RawMessage // the progress token at the backend, where it is not the client's
	answered  bool            // the backend has responded
	responded bool            // the client has its response
	gone      bool            // the client has gone
	asked     questions       // what the client was asked

	progress float64 // the greatest so far
	floor    float64 // the greatest of earlier rounds
	rounds   int     // that are over
}

// sessionWay is the way between a client and a backend that both have sessions.
type sessionWay struct {
	x            *exchange
	elicitations *elicitations
	open         []question // to the client
}

// question is a request of the backend to the client, with the id that each of them sees.
type question struct{ theirs, ours json.RawMessage }

func (w *sessionWay) make(ctx context.Context) error {
	defer func() {
		var kept []store.Key
		for _, q := range w.open {
			kept = append(kept, q.key())
		}
		w.elicitations.over(kept, nil)
	}()
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
	case len(w.open) >= maxAsked:
		return x.refuse(ctx, m, jsonrpc.InvalidRequest, "the client is not asked more than "+strconv.Itoa(maxAsked)+" times in one call")
	}
	params := jsonrpc.Member(m.Raw, "params")
	meta := jsonrpc.Member(params, "_meta")
	token := jsonrpc.Member(meta, "progressToken")
	id, err := w.elicitations.ask(ctx, x.call.Client, x.backend(), x.with, m.ID, token)
	if err != nil {
		return err
	}
	q := question{m.ID, jsonrpc.Quote(id)}
	w.open = append(w.open, q)
	x.asked.add(q.key())
	if token != nil {
		// Tokens of several backends may be equal, and progress arrives without a request. Our id says whose it is.
		meta = jsonrpc.Replace(meta, "progressToken", q.ours)
		m.Raw = jsonrpc.Replace(m.Raw, "params", jsonrpc.Replace(params, "_meta", meta))
	}
	return x.send(jsonrpc.Replace(m.Raw, "id", q.ours), false)
}

func (q question) key() store.Key {
	id, _ := jsonrpc.String(q.ours)
	return elicitationKey(id)
}

// withdraw passes on that the backend does not wait for an answer any more, under the id that the client knows. An answer that
// arrives after that is one to an unknown request.
func (w *sessionWay) withdraw(ctx context.Context, id json.RawMessage, m upstream.Message) error {
	for _, q := range w.open {
		if jsonrpc.SameID(q.theirs, id) {
			w.elicitations.drop(ctx, []store.Key{q.key()})
			params := jsonrpc.Replace(jsonrpc.Member(m.Raw, "params"), "requestId", q.ours)
			return w.x.send(jsonrpc.Replace(m.Raw, "params", params), false)
		}
	}
	return w.x.outOfPlace(ctx)
}

func (w *sessionWay) respond(m upstream.Message) error { return w.x.send(m.Raw, true) }

// inSession calls a backend of the earlier revisions. A session that it has forgotten is begun again, once. The backend is notified
// if the call ends without its response, unless it never had the request.
func (x *exchange) inSession(ctx context.Context, params json.RawMessage) error {
	for again := false; ; again = true {
		began := time.Now()
		begun, err := x.begin(ctx)
		if err != nil {
			return err
		}
		if begun && x.call.Session != "" && x.marked(ctx, began) {
			return fault.Wrap(fault.Conflict, errCancelled, "the call was cancelled")
		}
		if ctx.Err() != nil {
			return x.failed(ctx.Err())
		}
		posted := time.Now()
		answer, err := x.client.Post(ctx, upstream.Request{
			Body: jsonrpc.AppendRequest(nil, x.id, x.call.Method, params), Version: x.with.Version, Session: x.with.ID,
		})
		if errors.Is(err, upstream.ErrSession) && !again {
			if err := x.sessions.forget(ctx, x.call.Client, x.backend(), x.with); err != nil {
				return err
			}
			continue
		}
		abandon := ctx.Err() != nil // it may have been sent
		if err != nil {
			err = x.failed(err)
			if abandon { // the client is gone, and the backend may not have seen the request
				time.Sleep(time.Until(posted.Add(requestLead)))
			}
		} else {
			err = x.relay(ctx, answer)
			abandon = !x.responded && (err != nil || ctx.Err() != nil || x.gone)
		}
		if abandon && !x.answered {
			x.backend().abandon(x.client, x.with, x.id)
		}
		return err
	}
}

// begin finds or begins the session of the call. A cancellation does not interrupt that, because the backend might keep a session that
// is not used.
func (x *exchange) begin(ctx context.Context) (begun bool, err error) {
	whole := context.WithoutCancel(ctx)
	if ends, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		whole, cancel = context.WithDeadline(whole, ends)
		defer cancel()
	}
	x.with, begun, err = x.sessions.of(whole, x.call.Client, x.backend())
	return begun, err
}

// questions are the keys of the questions of a call.
type questions struct {
	mu   sync.Mutex
	keys []store.Key
}

func (q *questions) add(key store.Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.keys = append(q.keys, key)
}

// open reports whether one of the last questions is still open.
func (q *questions) open(ctx context.Context, db store.DB) bool {
	q.mu.Lock()
	last := slices.Clone(q.keys[max(0, len(q.keys)-store.MaxGet):])
	q.mu.Unlock()
	if len(last) == 0 {
		return false
	}
	items, err := db.Get(ctx, last...)
	return err == nil && slices.ContainsFunc(items, func(it *store.Item) bool { return it != nil })
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

const (
	// maxFruitless bounds how often in a row a call is resumed without an event.
	maxFruitless = 10
	// resumePause is the pause before a call is resumed if the backend does not ask for another one.
	resumePause = time.Second
)

// relay hands messages on until the response.
func (x *exchange) relay(ctx context.Context, answer *upstream.Exchange) error {
	defer func() { answer.Close() }()
	for fruitless := 0; ; {
		m, err := answer.Next(ctx)
		if err != nil && answer.EventID != "" && ctx.Err() == nil && !errors.Is(err, sse.ErrTooLarge) {
			// The backend has ended the connection, not the call (2025-11-25, Resumability).
			if fruitless++; answer.Events > 0 {
				fruitless = 0
			}
			if fruitless >= maxFruitless {
				return x.failed(err)
			}
			next, rerr := x.resume(ctx, answer)
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
		if done {
			x.answered = true
		}
		if done && err == nil {
			answer.Finish()
		}
		if done || err != nil {
			return err
		}
	}
}

// resume continues a call's stream after the pause that the backend asked for: "The client MUST respect the retry field" (2025-11-25,
// Transports).
func (x *exchange) resume(ctx context.Context, last *upstream.Exchange) (*upstream.Exchange, error) {
	if err := periodic.Sleep(ctx, cmp.Or(last.Retry, resumePause)); err != nil {
		return nil, err
	}
	answer, err := x.client.Get(ctx, upstream.Request{Version: x.with.Version, Session: x.with.ID}, last.EventID)
	if err != nil {
		return nil, err
	}
	if answer.Status >= http.StatusBadRequest { // with a reason in JSON
		answer.Close()
		return nil, &upstream.StatusError{Status: answer.Status}
	}
	answer.EventID, answer.Retry = last.EventID, last.Retry
	return answer, nil
}

// passed are the notifications that a backend may send within a call.
var passed = map[string]bool{
	spec.NoteProgress: true, spec.NoteMessage: true, spec.NoteElicited: true,
	spec.NoteTaskStatus: true,
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
	case m.Method == spec.NoteCancelled && !x.with.Version.Stateless():
		return false, x.way.withdraw(ctx, jsonrpc.Member(jsonrpc.Member(m.Raw, "params"), "requestId"), m)
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
	case m.Method == spec.NoteProgress:
		return x.ownProgress(m, params)
	case !x.call.Version.Stateless():
		return m, true
	case m.Method == spec.NoteMessage:
		level, _ := jsonrpc.String(jsonrpc.Member(params, "level"))
		return m, x.call.Level != "" && spec.SevereAs(level, x.call.Level)
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
	value, err := strconv.ParseFloat(string(jsonrpc.Member(params, "progress")), 64)
	if err == nil && x.rounds > 0 && value <= x.floor {
		return m, false // "MUST increase with each notification", and a repeated call starts from the beginning
	}
	x.progress = max(x.progress, value)
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

// unsettle makes the next call ask the backend again what it is, if the code of its error says that it is not what it was: it may be
// an older version of the server now.
func (x *exchange) unsettle(code int) {
	if code == spec.CodeHeaderMismatch || code == spec.CodeUnsupportedVersion {
		x.entry.view.Outdate()
		x.entry.view.forget(x.known)
	}
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
