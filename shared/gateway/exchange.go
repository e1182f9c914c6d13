package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/periodic"
	"github.com/mcp-events/mcpevents/shared/sse"
)

// What comes from the backend within a call, on its way to the client. What changes between
// revisions is in package translate; here is what needs the call: which messages are for the client, and
// what a backend asks it in between (see rounds.go and inputrounds.go).

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
		if string(m.ID) != string(x.id) {
			x.backend().dropped(ctx, dropOther)
			return false, nil
		}
		x.pending = nil // it waits for no answers any more
		return true, x.respond(m)
	case m.ID != nil:
		return false, x.elicit(ctx, m)
	case passed[m.Method]:
		if m, ok := x.fits(m); ok {
			return false, x.send(m.Raw, false)
		}
	default:
		x.backend().dropped(ctx, dropOutOfPlace)
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
	if own == nil || !translate.SameToken(got, sent) {
		x.backend().dropped(context.Background(), dropProgress)
		return m, false
	}
	if string(got) != string(own) {
		m.Raw = jsonrpc.Replace(m.Raw, "params", jsonrpc.Replace(params, "progressToken", own))
	}
	return m, true
}

// respond hands the response on, under the client's own id and in the form of its revision.
func (x *exchange) respond(m upstream.Message) error {
	raw := jsonrpc.Replace(m.Raw, "id", x.call.ID)
	if m.Result == nil {
		return x.respondError(raw, m.Error)
	}
	result, way := m.Result, translate.Way{Client: x.call.Version, Backend: x.with.Version}
	switch {
	case !way.Client.Stateless() && !way.Backend.Stateless():
		return x.send(raw, true)
	case way.Backend.Stateless() && !way.Client.Stateless() && translate.InputRequired(result):
		x.input = result // for the next round
		return nil
	case way.Client.Stateless() && !way.Backend.Stateless():
		if len(x.refused) > 0 && string(jsonrpc.Member(result, "isError")) == "true" {
			return translate.Missing(x.entry.Backend, x.refused)
		}
	case way.Client.Stateless():
		if lacks := translate.Demanded(x.call.Capabilities, result); len(lacks) > 0 {
			return translate.Missing(x.entry.Backend, lacks)
		}
		if state := jsonrpc.Member(result, "requestState"); state != nil {
			text, ok := jsonrpc.String(state)
			if !ok {
				return x.failed(errors.New("gateway: the requestState is no string"))
			}
			result = jsonrpc.Replace(result, "requestState", jsonrpc.Quote(x.gateway.states.seal([]byte(text), x.belongs(), time.Now())))
		}
	}
	return x.send(jsonrpc.Replace(raw, "result", way.Result(x.call.Method, result)), true)
}

// respondError hands an error on, with a code that the client's revision has.
func (x *exchange) respondError(raw, failure json.RawMessage) error {
	way := translate.Way{Client: x.call.Version, Backend: x.with.Version}
	if way.Client.Stateless() && len(x.refused) > 0 {
		return translate.Missing(x.entry.Backend, x.refused)
	}
	out, code := way.Error(x.call.Method, raw)
	switch {
	case way.Client.Stateless() && !way.Backend.Stateless() && code == mcpspec.CodeNeedsURL:
		return x.needsURL(failure)
	case !way.Client.Stateless() && way.Backend.Stateless() && (code == mcpspec.CodeHeaderMismatch || code == mcpspec.CodeUnsupportedVersion):
		// Not the client's doing: what was known of the backend is no longer so.
		x.entry.view.Outdate()
	}
	return x.send(out, true)
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
	case x.with.Version.Stateless(): // has no requests of servers, and so no answers to them
		x.backend().dropped(ctx, dropOutOfPlace)
		return nil
	case m.Method == "ping":
		return x.reply(ctx, jsonrpc.AppendResult(nil, m.ID, json.RawMessage(`{}`)))
	case lacks != "" || x.call.Version.Stateless() && !translate.MultiRound[x.call.Method]:
		if lacks != "" {
			x.refused = append(x.refused, lacks)
		}
		return x.refuse(ctx, m, jsonrpc.MethodNotFound, "the client does not support "+m.Method)
	case x.call.Version.Stateless():
		return x.collect(ctx, m, params)
	case x.call.ResponseOnly:
		return x.refuse(ctx, m, jsonrpc.MethodNotFound, "the client takes no event stream, so that it cannot be asked "+m.Method)
	case len(x.kept) >= maxAsked:
		return x.refuse(ctx, m, jsonrpc.InvalidRequest, "the client is not asked more than "+strconv.Itoa(maxAsked)+" times in one call")
	}
	id, err := x.gateway.elicitations.ask(ctx, x.call.Client, x.backend(), x.with, m.ID)
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
	answer, err := x.client.Post(ctx, upstream.Request{Body: body, Version: x.with.Version, Session: x.with.ID})
	if err != nil {
		return x.failed(err)
	}
	answer.Close()
	return nil
}

func (x *exchange) backend() *backend { return x.entry.view.of }

// failed is what a caller sees of a backend's failure: not what it was, but that the call
// may have done something.
func (x *exchange) failed(err error) error {
	public := fault.New(fault.Unavailable, "backend %s failed; whether it did what it was asked is not known", x.entry.Backend)
	if x.call.Kind.Prefixed() { // a URI may say more than a log is to know
		err = fmt.Errorf("%s %s: %w", x.call.Method, x.entry.Own, err)
	}
	return errors.Join(public, err)
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
