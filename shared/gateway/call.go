package gateway

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/backends"
	"github.com/mcp-events/mcpevents/shared/gateway/rules"
	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Call sends a client's request to the backend that has the tool, prompt or resource it names, and relays the backend's messages up to the
// response. If Call returns an error, the client has not received a response.
func (g *Gateway) Call(ctx context.Context, c api.Call) error {
	r := record{call: &c, began: time.Now()}
	err := g.makeCall(ctx, c, &r)
	g.write(ctx, r, err)
	return err
}

func (g *Gateway) makeCall(ctx context.Context, c api.Call, r *record) error {
	e, task, err := g.findEntry(ctx, c)
	r.backend = e.Backend
	if err != nil {
		return err
	}
	if jsonrpc.HasRepeatedMember(c.Params) {
		// If a member of params occurred twice, the gateway would check only one of the two, and the backend might use the other one.
		return fault.New(fault.Invalid, "params have a member twice, or more than %d members", jsonrpc.MaxComparedMembers)
	}
	if err := rules.CheckNames(c.Params, c.Member, c.Kind == api.Templates); err != nil {
		return err
	}
	if err := checkToken(jsonrpc.Member(c.Params, "_meta")); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, g.options.CallTimeout)
	defer cancel()
	info, err := e.View.LoadInfo(ctx)
	if info == nil {
		return err
	}
	x := newExchange(g, c, e, info)
	defer func() { r.outcome, r.gone = x.outcome, x.gone }()
	if x.task = task; task != nil && !info.Version.Stateless() {
		return errNoTask // only 2026-07-28 has tasks, so this is not the server that created the task
	}
	if c.Version.Stateless() {
		if err := x.checkParameters(); err != nil {
			return err
		}
	}
	ctx, end := x.watchForEnd(ctx)
	defer end()
	err = x.bridge.sendCall(ctx)
	if info.Version.Stateless() && upstream.MayRefuseRevision(err) {
		e.View.Doubt(info)
	}
	if cause := x.endCause(ctx); err != nil && !x.responded && cause != nil {
		return cause
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && fault.Is(err, fault.Unavailable) {
		public := fault.New(fault.Unavailable, "the call to backend %s timed out; it may still have taken effect", e.Backend)
		return errors.Join(public, err)
	}
	return err
}

// checkToken limits the length of the progress token in _meta, because every progress notification of the call repeats it.
func checkToken(meta json.RawMessage) error {
	if n := len(jsonrpc.Member(meta, "progressToken")); n > jsonrpc.MaxID {
		return fault.New(fault.Invalid, "progressToken has %d bytes (allowed: up to %d)", n, jsonrpc.MaxID)
	}
	return nil
}

// A bridge makes a call and handles the backend's response, for one combination of the client's and the backend's revision. Each revision
// can be session-based or stateless, so there are four implementations: [sessionBridge], [statelessBridge], [roundsBridge] and
// [inputRoundsBridge].
type bridge interface {
	// sendCall sends the call to the backend, several times if needed, until the client has a response or an error occurs.
	sendCall(ctx context.Context) error
	// respond handles the backend's response, which already has the id of the client's request. It translates the response to the
	// client's revision and sends it to the client. If the response demands input, respond may keep it instead, so that sendCall gets the
	// input and repeats the call.
	respond(m upstream.Message) error
}

// An asker handles the requests that a session-based backend sends within a call, for example an elicitation. [sessionBridge] and
// [roundsBridge] implement it. Backends of 2026-07-28 send no requests.
type asker interface {
	// elicit handles a backend's request. Depending on the client's revision, it forwards the request to the client, keeps it for an
	// input_required result, or answers it itself. If stray is true, the request may belong to another call, see strays.go.
	elicit(ctx context.Context, m upstream.Message, stray bool) error
	// withdraw handles the backend's cancellation of its own request with this id. If the call has no such request, found is false.
	withdraw(ctx context.Context, id json.RawMessage, m upstream.Message) (found bool, err error)
}

// exchange is one call, from its request to its end. Package translate knows the differences between revisions, and a [bridge]
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
	bridge bridge
	asker  asker // nil if the backend is stateless

	// The call and its destination. These fields do not change.
	gateway *Gateway
	call    api.Call
	entry   backends.Entry  // the tool, prompt or resource
	task    json.RawMessage // the backend's id of the task, if the call is about a task
	info    *backends.ServerInfo
	client  *upstream.Client

	// These fields describe the request that the backend gets. inSession, withoutSession and roundsBridge set them.
	with  backendSession // if the backend is stateless, only the field Version is set
	id    json.RawMessage
	token json.RawMessage // the progress token that the backend gets, if it differs from the client's

	// mu guards the fields below and the bridge while another goroutine reads the session's GET stream, see strays.go.
	mu      sync.Mutex
	sharing bool   // other calls still ran in the backend session when this call called leave
	leave   func() // ends the reception of messages from the GET stream; may be called several times

	// The state of the call after the messages that the backend has sent so far.
	answered  bool    // the backend has responded
	responded bool    // the client has its response
	outcome   string  // the outcome that the backend's response reports; empty before the response
	progress  float64 // the greatest progress that the client has been sent
	floor     float64 // the greatest progress that the client got in earlier rounds (repetitions of the call); lower values are dropped

	// These fields are for a call that ends without a response, see cancel.go.
	mark      store.Key // the key under which the store has the client's cancellation of this call; zero if the client has no session
	questions questions
	gone      bool // the client has disconnected
	abandoned bool // the call has ended without a response, and the backend does not know that yet
}

func newExchange(g *Gateway, c api.Call, e backends.Entry, info *backends.ServerInfo) *exchange {
	x := &exchange{
		gateway: g, call: c, entry: e, info: info, client: e.View.Backend().ClientFor(c.Token), with: backendSession{Version: info.Version}, floor: math.Inf(-1), leave: func() {},
		id: upstream.FreshID(), // random, because several clients without sessions may share one session with the backend
	}
	if c.Session != "" {
		x.id = requestID(c.Client, c.ID)
		x.mark = cancelKey(c.Client, x.id)
	}
	switch client, backend := c.Version.Stateless(), info.Version.Stateless(); {
	case client && backend:
		x.bridge = &statelessBridge{x}
	case backend:
		x.bridge = &inputRoundsBridge{x: x}
	case client:
		b := &roundsBridge{x: x}
		x.bridge, x.asker = b, b
	default:
		b := &sessionBridge{x: x}
		x.bridge, x.asker = b, b
	}
	return x
}

// inSession calls a backend of a session-based revision. If the backend has forgotten the session, inSession repeats the call once in a
// new session. If the call ends without a response, the caller must notify the backend with [exchange.abandon].
func (x *exchange) inSession(ctx context.Context, params json.RawMessage) error {
	for again := false; ; again = true {
		began := time.Now()
		var begun bool
		var err error
		if x.with, begun, err = x.gateway.sessions.getOrBegin(ctx, x.call.Client, x.backend(), true); err != nil {
			if upstream.MayRefuseRevision(err) {
				x.entry.View.Doubt(x.info)
			}
			return err
		}
		if begun && x.call.Session != "" && x.hasMark(ctx, began) {
			return fault.Wrap(fault.Conflict, errCancelled, "the call was cancelled")
		}
		if ctx.Err() != nil {
			return x.callError(ctx.Err())
		}
		x.leave = sync.OnceFunc(x.receiveStrays(ctx))
		posted := time.Now()
		answer, err := x.client.Post(ctx, x.with.request(jsonrpc.AppendRequest(nil, x.id, x.call.Method, params)))
		if errors.Is(err, upstream.ErrSession) && !again {
			x.leave()
			if err := x.gateway.sessions.forget(ctx, x.call.Client, x.backend(), x.with); err != nil {
				return err
			}
			continue
		}
		abandon := ctx.Err() != nil // the caller must cancel the request at the backend, which may have received it even if Post failed
		if err != nil {
			x.leave()
			err = x.callError(err)
			if abandon { // wait, because the backend would ignore a cancellation that arrives before the request
				time.Sleep(time.Until(posted.Add(requestLead)))
			}
		} else {
			err = x.relay(ctx, answer)
			x.leave()
			abandon = !x.responded && (err != nil || ctx.Err() != nil || x.gone)
		}
		x.abandoned = abandon && !x.answered
		return err
	}
}

// abandon tells the backend that the client no longer waits for the response. It does nothing if there was a response, or if the backend
// never received the request.
func (x *exchange) abandon() {
	if x.abandoned {
		x.gateway.abandon(x.client, x.with, x.id)
	}
}

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

const (
	maxFruitless = 10          // how many times in a row the gateway resumes a call without receiving an event
	resumePause  = time.Second // the pause before resuming a call if the backend sent no retry field
)

// relay forwards the backend's messages to the client, up to and including the response. If the stream breaks, relay resumes it.
func (x *exchange) relay(ctx context.Context, answer *upstream.Exchange) error {
	defer func() { answer.Close() }()
	for fruitless := 0; ; {
		m, err := answer.Next(ctx)
		if err != nil && answer.EventID != "" && ctx.Err() == nil && !errors.Is(err, sse.ErrTooLarge) {
			// The events have ids, so the call can continue in a resumed stream. The backend may have closed the connection for that
			// (2025-11-25, Resumability).
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
			switch {
			case !errors.Is(err, io.EOF):
			case answer.Status >= http.StatusBadRequest: // the answer had an error status and no response to the request
				err = &upstream.StatusError{Status: answer.Status}
			default:
				err = errors.New("gateway: the stream ended before the response")
			}
			return x.callError(err)
		}
		done, err := x.handleLocked(ctx, m)
		if done && err == nil {
			if x.responded && x.call.Answered != nil {
				x.call.Answered()
			}
			x.leave() // leave before relay returns, because the client may already make its next call in the session
			answer.Finish()
		}
		if done || err != nil {
			return err
		}
	}
}

// resume reconnects to a call's stream after the pause that the backend has asked for: "The client MUST respect the retry field"
// (2025-11-25, Transports).
func (x *exchange) resume(ctx context.Context, last *upstream.Exchange) (*upstream.Exchange, error) {
	if err := periodic.Sleep(ctx, cmp.Or(last.Retry, resumePause)); err != nil {
		return nil, err
	}
	answer, err := x.client.Get(ctx, x.with.request(nil), last.EventID)
	if err != nil {
		return nil, err
	}
	if answer.Status >= http.StatusBadRequest { // the backend refuses to resume the stream
		answer.Close()
		return nil, &upstream.StatusError{Status: answer.Status}
	}
	answer.EventID, answer.Retry = last.EventID, last.Retry
	return answer, nil
}

func (x *exchange) handleLocked(ctx context.Context, m upstream.Message) (done bool, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	done, err = x.handle(ctx, m)
	x.answered = x.answered || done
	return done, err
}

// handle processes one message of the backend. The result done is true if it was the call's response. The caller holds the lock.
func (x *exchange) handle(ctx context.Context, m upstream.Message) (done bool, err error) {
	m = x.relateTask(m.WithoutOwn())
	switch {
	case m.Response():
		if !jsonrpc.SameID(m.ID, x.id) {
			x.backend().CountDrop(ctx, dropOther)
			return false, nil
		}
		m.Raw = jsonrpc.Replace(m.Raw, "id", x.call.ID)
		x.outcome = outcomeOf(m)
		if x.isOutdated(m) {
			x.entry.View.Doubt(x.info)
		}
		return true, x.bridge.respond(m)
	case m.Method == "ping" && m.ID != nil && x.asker != nil:
		return false, x.reply(ctx, jsonrpc.AppendResult(nil, m.ID, json.RawMessage(`{}`)))
	case m.ID != nil && x.asker != nil:
		return false, x.asker.elicit(ctx, m, x.backend().Command != nil)
	case m.Method == spec.NoteCancelled && x.asker != nil:
		found, err := x.asker.withdraw(ctx, jsonrpc.Member(jsonrpc.Member(m.Raw, "params"), "requestId"), m)
		if !found {
			x.backend().CountDrop(ctx, dropOutOfPlace)
		}
		return false, err
	case m.ID == nil && (passThrough[m.Method] || x.hasMethod(m.Method)):
		if m, ok := x.adaptNotification(m); ok {
			return false, x.send(m.Raw, false)
		}
	case m.ID == nil && api.IsListChange(m.Method):
		x.backend().ReportListChange(ctx, m.Method)
	default:
		x.backend().CountDrop(ctx, dropOutOfPlace)
	}
	return false, nil
}

func (x *exchange) hasMethod(method string) bool {
	ok, _ := x.entry.View.Extends(x.call.Principal, x.info, method)
	return ok
}

// requestID returns the id under which the backend gets the client's request. It is a hash of the client's session and the id that the
// client chose, so that any instance can compute it again to cancel the request. It has 52 bits, because some backends parse numbers as
// doubles.
func requestID(c api.Client, id json.RawMessage) json.RawMessage {
	h := sha256.Sum256([]byte(c.Session + "\x00" + string(id)))
	return strconv.AppendUint(nil, binary.BigEndian.Uint64(h[:8])>>12, 10)
}

// sessionBridge implements [bridge] for a client and a backend that both have sessions.
type sessionBridge struct {
	x     *exchange
	asked []question // all questions to the client in this call
}

// question is a backend's request to the client. The backend gave it the id theirs. The gateway passes it on with the id ours, which is
// unique for the client.
type question struct {
	theirs, ours json.RawMessage
	stray        bool // the backend may wait for the answer even after the end of the call, see strays.go
}

func (b *sessionBridge) sendCall(ctx context.Context) error {
	defer func() {
		var kept []store.Key
		for _, q := range b.asked {
			if !q.stray || !b.x.sharing && !b.x.answered {
				kept = append(kept, q.key())
			}
		}
		b.x.gateway.elicitations.cleanUp(kept, nil)
	}()
	defer b.x.abandon()
	return b.x.inSession(ctx, b.x.params())
}

// maxAsked limits how often a backend may ask a client with a session in one call, because each question is an item in the store.
const maxAsked = 1000

func (b *sessionBridge) elicit(ctx context.Context, m upstream.Message, stray bool) error {
	x := b.x
	switch {
	case translate.FindMissing(x.call.Capabilities, m.Method, jsonrpc.Member(m.Raw, "params")) != "":
		return x.refuse(ctx, m, jsonrpc.MethodNotFound, "the client does not support "+m.Method)
	case x.call.ResponseOnly:
		return x.refuse(ctx, m, jsonrpc.MethodNotFound, "the client does not accept an event stream, so it cannot answer "+m.Method)
	case len(b.asked) >= maxAsked:
		return x.refuse(ctx, m, jsonrpc.InvalidRequest, "a call can ask the client at most "+strconv.Itoa(maxAsked)+" times")
	}
	params := jsonrpc.Member(m.Raw, "params")
	meta := jsonrpc.Member(params, "_meta")
	if err := checkToken(meta); err != nil { // limits the token's length, because addRequest stores it
		return x.refuse(ctx, m, jsonrpc.InvalidParams, err.Error())
	}
	token := jsonrpc.Member(meta, "progressToken")
	id, err := b.x.gateway.elicitations.addRequest(ctx, x.call.Client, x.backend(), x.with, m.ID, token)
	if err != nil {
		return err
	}
	q := question{m.ID, jsonrpc.Quote(id), stray}
	b.asked = append(b.asked, q)
	if stray {
		b.x.gateway.elicitations.strays.Put(b.strayID(m.ID), q.ours)
	}
	x.questions.add(q.key())
	if token != nil {
		// Two backends may use the same progress token, and the client's progress notification names only the token. So the client gets the
		// question's id, which is unique, as the token.
		meta = jsonrpc.Replace(meta, "progressToken", q.ours)
		m.Raw = jsonrpc.Replace(m.Raw, "params", jsonrpc.Replace(params, "_meta", meta))
	}
	return x.send(jsonrpc.Replace(m.Raw, "id", q.ours), false)
}

func (q question) key() store.Key {
	id, _ := jsonrpc.String(q.ours)
	return elicitationKey(id)
}

// withdraw forwards the backend's cancellation of a request to the client, with the id under which the client knows the request. If the
// client answers it anyway, [Gateway.Answer] treats the request as unknown.
func (b *sessionBridge) withdraw(ctx context.Context, id json.RawMessage, m upstream.Message) (found bool, err error) {
	i := findQuestion(b.asked, func(q question) json.RawMessage { return q.theirs }, id)
	q := question{}
	if i >= 0 {
		q = b.asked[i]
	} else if q.ours, found = b.x.gateway.elicitations.strays.Get(b.strayID(id)); !found || b.x.call.ResponseOnly {
		return false, nil
	}
	b.x.gateway.elicitations.drop(ctx, []store.Key{q.key()})
	params := jsonrpc.Replace(jsonrpc.Member(m.Raw, "params"), "requestId", q.ours)
	return true, b.x.send(jsonrpc.Replace(m.Raw, "params", params), false)
}

// strayID returns the key under which the map elicitations.strays has a question. The parameter theirs is the question's id at the
// backend. The key includes the session, because a backend may use the same id in two sessions.
func (b *sessionBridge) strayID(theirs json.RawMessage) string {
	return b.x.backend().ServerID() + " " + b.x.with.ID + " " + string(theirs)
}

// findQuestion returns the index of the question with an id, or -1. It looks for the exact id first, because [jsonrpc.SameID] cannot
// distinguish all numbers beyond 2^53.
func findQuestion[Q any](questions []Q, idOf func(Q) json.RawMessage, id json.RawMessage) int {
	i := slices.IndexFunc(questions, func(q Q) bool { return bytes.Equal(idOf(q), id) })
	if i < 0 {
		i = slices.IndexFunc(questions, func(q Q) bool { return jsonrpc.SameID(idOf(q), id) })
	}
	return i
}

func (b *sessionBridge) respond(m upstream.Message) error {
	if m.Error != nil {
		m.Raw, _ = b.x.translateResponse(m)
	}
	return b.x.send(m.Raw, true)
}

// statelessBridge implements [bridge] for a client and a backend that are both of revision 2026-07-28. It encrypts the backend's
// requestState on the way to the client, and decrypts it when the client returns it.
type statelessBridge struct {
	x *exchange
}

func (b *statelessBridge) sendCall(ctx context.Context) error {
	params := b.x.params()
	header := b.x.mirrorHeaders()
	maps.Copy(header, b.x.call.Header)
	if raw := jsonrpc.Member(params, "requestState"); raw != nil {
		sealed, _ := jsonrpc.String(raw)
		state, err := b.x.gateway.states.Open(sealed, b.x.stateBinding())
		if err != nil {
			return err
		}
		params = jsonrpc.Replace(params, "requestState", jsonrpc.Quote(string(state)))
	}
	return b.x.withoutSession(ctx, params, header)
}

func (b *statelessBridge) respond(m upstream.Message) error {
	if lacks := translate.ListMissing(b.x.call.Capabilities, m.Result); len(lacks) > 0 {
		return translate.NewMissingError(b.x.entry.Backend, lacks)
	}
	if state := jsonrpc.Member(m.Result, "requestState"); state != nil {
		text, ok := jsonrpc.String(state)
		if !ok {
			return b.x.callError(errors.New("gateway: the requestState is not a string"))
		}
		m.Result = jsonrpc.Replace(m.Result, "requestState", jsonrpc.Quote(b.x.gateway.states.Seal([]byte(text), b.x.stateBinding())))
	}
	return b.x.sendFromStateless(m)
}
