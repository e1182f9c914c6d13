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
	"github.com/mcp-events/mcpevents/shared/gateway/backends"
	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// exchange is one call, from its request to its end. Package translate knows the differences between revisions, and a [way]
// applies them. The states of a call are:
//
//	          the stream ends: resumed
//	              ┌───────┐
//	              ▼       │
//	──▶ begun ──▶ called ─┴──the response──▶ answered
//	      │        │  ▲ │
//	      │  asks  │  │ └──cancelled, failed, client gone, timeout──▶ ended: the backend is notified
//	      │        ▼  │ the answer, or the backend withdraws its question
//	      │       waiting ──the backend is removed──▶ ended
//	      └──cancelled while the session begins──▶ ended: the backend is not called
type exchange struct {
	way      way
	gateway  *Gateway
	sessions *sessions
	call     api.Call
	entry    backends.Entry       // the tool, prompt or resource
	info     *backends.ServerInfo // about the backend
	client   *upstream.Client
	with     backendSession
	watched  context.Context // set by [exchange.watch]

	id        json.RawMessage // the request's id at the backend
	token     json.RawMessage // the progress token at the backend, if it differs from the client's
	answered  bool            // the backend has responded
	responded bool            // the client has its response
	gone      bool            // the client has disconnected
	asked     questions       // keys of the questions to the client

	progress float64 // the greatest value so far
	floor    float64 // the greatest value of earlier rounds
	rounds   int     // completed rounds
}

// sessionWay implements [way] for a client and a backend that both have sessions.
type sessionWay struct {
	x            *exchange
	elicitations *elicitations
	open         []question // all questions to the client in this call
}

// question is a backend's request to the client. It has one id at the backend and another one at the client.
type question struct{ theirs, ours json.RawMessage }

func (w *sessionWay) make(ctx context.Context) error {
	defer func() {
		var kept []store.Key
		for _, q := range w.open {
			kept = append(kept, q.key())
		}
		w.elicitations.cleanUp(kept, nil)
	}()
	w.x.id = requestID(w.x.call.Client, w.x.call.ID)
	return w.x.inSession(ctx, w.x.params())
}

// maxAsked limits how often a backend may ask a client with a session in one call, because each question is an item in the store.
const maxAsked = 1000

func (w *sessionWay) elicit(ctx context.Context, m upstream.Message) error {
	x := w.x
	switch {
	case translate.Lacking(x.call.Capabilities, m.Method, jsonrpc.Member(m.Raw, "params")) != "":
		return x.refuse(ctx, m, jsonrpc.MethodNotFound, "the client does not support "+m.Method)
	case x.call.ResponseOnly:
		return x.refuse(ctx, m, jsonrpc.MethodNotFound, "the client does not accept an event stream, so it cannot answer "+m.Method)
	case len(w.open) >= maxAsked:
		return x.refuse(ctx, m, jsonrpc.InvalidRequest, "a call can ask the client at most "+strconv.Itoa(maxAsked)+" times")
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
		// Tokens of two backends may be equal, and a progress notification names no request. So the client gets our unique id
		// as the token.
		meta = jsonrpc.Replace(meta, "progressToken", q.ours)
		m.Raw = jsonrpc.Replace(m.Raw, "params", jsonrpc.Replace(params, "_meta", meta))
	}
	return x.send(jsonrpc.Replace(m.Raw, "id", q.ours), false)
}

func (q question) key() store.Key {
	id, _ := jsonrpc.String(q.ours)
	return elicitationKey(id)
}

// withdraw tells the client, under the id that the client knows, that the backend has cancelled its request. If the client
// still answers, the answer counts as one to an unknown request.
func (w *sessionWay) withdraw(ctx context.Context, id json.RawMessage, m upstream.Message) error {
	for _, q := range w.open {
		if jsonrpc.SameID(q.theirs, id) {
			w.elicitations.drop(ctx, []store.Key{q.key()})
			params := jsonrpc.Replace(jsonrpc.Member(m.Raw, "params"), "requestId", q.ours)
			return w.x.send(jsonrpc.Replace(m.Raw, "params", params), false)
		}
	}
	return w.x.dropMisplaced(ctx)
}

func (w *sessionWay) respond(m upstream.Message) error { return w.x.send(m.Raw, true) }

// inSession calls a backend of a session-based revision. If the backend has forgotten the session, inSession retries once in a
// new one. If the call ends without a response, inSession notifies the backend, unless the backend never received the request.
func (x *exchange) inSession(ctx context.Context, params json.RawMessage) error {
	for again := false; ; again = true {
		began := time.Now()
		begun, err := x.begin(ctx)
		if err != nil {
			return err
		}
		if begun && x.call.Session != "" && x.hasMark(ctx, began) {
			return fault.Wrap(fault.Conflict, errCancelled, "the call was cancelled")
		}
		if ctx.Err() != nil {
			return x.callError(ctx.Err())
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
		abandon := ctx.Err() != nil // the request may have been sent
		if err != nil {
			err = x.callError(err)
			if abandon { // the client is gone, and the backend may not have seen the request
				time.Sleep(time.Until(posted.Add(requestLead)))
			}
		} else {
			err = x.relay(ctx, answer)
			abandon = !x.responded && (err != nil || ctx.Err() != nil || x.gone)
		}
		if abandon && !x.answered {
			x.gateway.abandon(x.client, x.with, x.id)
		}
		return err
	}
}

// begin finds or begins the session for the call. It completes even if the client cancels, because an interrupted handshake
// could leave an unused session at the backend.
func (x *exchange) begin(ctx context.Context) (begun bool, err error) {
	whole := context.WithoutCancel(ctx)
	if ends, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		whole, cancel = context.WithDeadline(whole, ends)
		defer cancel()
	}
	x.with, begun, err = x.sessions.getOrBegin(whole, x.call.Client, x.backend())
	return begun, err
}

// questions collects the store keys of the questions of one call.
type questions struct {
	mu   sync.Mutex
	keys []store.Key
}

func (q *questions) add(key store.Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.keys = append(q.keys, key)
}

// open reports whether the client still has to answer one of the most recent questions.
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
		return x.callError(err)
	}
	return x.relay(ctx, answer)
}

// params returns the params of the call with the name that the backend uses.
func (x *exchange) params() json.RawMessage {
	own := jsonrpc.Quote(x.entry.Own)
	if x.call.Member == "ref" {
		own = jsonrpc.Replace(jsonrpc.Member(x.call.Params, "ref"), "name", own)
	}
	return jsonrpc.Replace(x.call.Params, x.call.Member, own)
}

const (
	// maxFruitless limits how many times in a row a call is resumed without receiving an event.
	maxFruitless = 10
	// resumePause is the pause before resuming a call if the backend sent no retry field.
	resumePause = time.Second
)

// relay forwards the backend's messages up to the response.
func (x *exchange) relay(ctx context.Context, answer *upstream.Exchange) error {
	defer func() { answer.Close() }()
	for fruitless := 0; ; {
		m, err := answer.Next(ctx)
		if err != nil && answer.EventID != "" && ctx.Err() == nil && !errors.Is(err, sse.ErrTooLarge) {
			// The backend has closed the connection, but the call continues (2025-11-25, Resumability).
			if fruitless++; answer.Events > 0 {
				fruitless = 0
			}
			if fruitless >= maxFruitless {
				return x.callError(err)
			}
			next, rerr := x.resume(ctx, answer)
			if rerr != nil {
				return x.callError(rerr)
			}
			answer.ContinueWith(next)
			answer = next
			continue
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("gateway: the stream ended before the response")
			}
			return x.callError(err)
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

// resume reconnects to a call's stream after the pause that the backend asked for: "The client MUST respect the retry field"
// (2025-11-25, Transports).
func (x *exchange) resume(ctx context.Context, last *upstream.Exchange) (*upstream.Exchange, error) {
	if err := periodic.Sleep(ctx, cmp.Or(last.Retry, resumePause)); err != nil {
		return nil, err
	}
	answer, err := x.client.Get(ctx, upstream.Request{Version: x.with.Version, Session: x.with.ID}, last.EventID)
	if err != nil {
		return nil, err
	}
	if answer.Status >= http.StatusBadRequest { // the body explains it in JSON
		answer.Close()
		return nil, &upstream.StatusError{Status: answer.Status}
	}
	answer.EventID, answer.Retry = last.EventID, last.Retry
	return answer, nil
}

// Reasons for dropping a message within a call; see [backends.Backend.CountDrop].
const (
	dropOther      = "it answers another request"
	dropProgress   = "it is the progress of another request"
	dropOutOfPlace = "its method does not belong into a call"
)

// passThrough has the notifications that a backend may send within a call.
var passThrough = map[string]bool{
	spec.NoteProgress: true, spec.NoteMessage: true, spec.NoteElicited: true,
	spec.NoteTaskStatus: true,
}

// handle processes one message of the backend.
func (x *exchange) handle(ctx context.Context, m upstream.Message) (done bool, err error) {
	switch {
	case m.Response():
		if !jsonrpc.SameID(m.ID, x.id) {
			x.backend().CountDrop(ctx, dropOther)
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
	case passThrough[m.Method]:
		if m, ok := x.adaptNotification(m); ok {
			return false, x.send(m.Raw, false)
		}
	default:
		return false, x.dropMisplaced(ctx)
	}
	return false, nil
}

// adaptNotification returns a notification in the form that the client expects. It reports false if the client did not ask
// for it or if the client's revision does not have it.
func (x *exchange) adaptNotification(m upstream.Message) (upstream.Message, bool) {
	params := jsonrpc.Member(m.Raw, "params")
	switch {
	case m.Method == spec.NoteProgress:
		return x.adaptProgress(m, params)
	case !x.call.Version.Stateless():
		return m, true
	case m.Method == spec.NoteMessage:
		level, _ := jsonrpc.String(jsonrpc.Member(params, "level"))
		return m, x.call.Level != "" && spec.SevereAs(level, x.call.Level)
	}
	return m, x.with.Version.Stateless()
}

// adaptProgress replaces the token of a progress notification by the client's, byte for byte. It drops a
// notification with an unknown token, because it does not belong to this call.
func (x *exchange) adaptProgress(m upstream.Message, params json.RawMessage) (upstream.Message, bool) {
	own := jsonrpc.Member(jsonrpc.Member(x.call.Params, "_meta"), "progressToken")
	sent := own
	if x.token != nil {
		sent = x.token
	}
	got := jsonrpc.Member(params, "progressToken")
	if own == nil || !jsonrpc.SameID(got, sent) {
		x.backend().CountDrop(context.Background(), dropProgress)
		return m, false
	}
	value, err := strconv.ParseFloat(string(jsonrpc.Member(params, "progress")), 64)
	if err == nil && x.rounds > 0 && value <= x.floor {
		return m, false // "MUST increase with each notification", but a repeated call starts from the beginning
	}
	x.progress = max(x.progress, value)
	if string(got) != string(own) {
		m.Raw = jsonrpc.Replace(m.Raw, "params", jsonrpc.Replace(params, "progressToken", own))
	}
	return m, true
}

// dropMisplaced drops a message that is not allowed within a call: a notification that is not in passThrough, or any request
// from a backend of 2026-07-28, where servers send no requests.
func (x *exchange) dropMisplaced(ctx context.Context) error {
	x.backend().CountDrop(ctx, dropOutOfPlace)
	return nil
}

// translateResponse returns the response in the form of the client's revision. For an error it also returns the original code.
func (x *exchange) translateResponse(m upstream.Message) (response json.RawMessage, code int) {
	between := translate.Way{Client: x.call.Version, Backend: x.with.Version}
	if m.Result == nil {
		return between.Error(x.call.Method, m.Raw)
	}
	return jsonrpc.Replace(m.Raw, "result", between.Result(x.call.Method, m.Result)), 0
}

// recheckVersion makes the next call ask for the backend's version and lists again if the error code suggests that they
// changed, for example because the server was rolled back.
func (x *exchange) recheckVersion(code int) {
	if code == spec.CodeHeaderMismatch || code == spec.CodeUnsupportedVersion {
		x.entry.View.Outdate()
		x.entry.View.Forget(x.info)
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

// reply answers a backend's request on behalf of the client.
func (x *exchange) reply(ctx context.Context, body []byte) error {
	if err := x.client.Send(ctx, upstream.Request{Body: body, Version: x.with.Version, Session: x.with.ID}); err != nil {
		return x.callError(err)
	}
	return nil
}

func (x *exchange) backend() *backends.Backend { return x.entry.View.Backend() }

// stateBinding returns the data to which a requestState is bound: the principal, the method, the name, and all params except
// those that change between rounds.
func (x *exchange) stateBinding() []byte {
	digest := translate.Digest(jsonrpc.Without(x.call.Params, func(name string) bool {
		return name == "_meta" || name == "inputResponses" || name == "requestState"
	}))
	return bindState(x.call.Principal, x.call.Method, x.entry.Backend, x.entry.Own, digest)
}

// callError hides the cause of a failed call from the client, and warns it that the call may have had an effect. The cause is
// for the log.
func (x *exchange) callError(err error) error {
	public := fault.New(fault.Unavailable, "backend %s failed; the call may still have taken effect", x.entry.Backend)
	if x.call.Kind.Prefixed() { // a URI may contain data that must not be logged
		err = fmt.Errorf("%s %s: %w", x.call.Method, x.entry.Own, err)
	}
	return errors.Join(public, err)
}
