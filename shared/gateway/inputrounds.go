package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/periodic"
	"github.com/mcp-events/mcpevents/shared/store"
)

// A client with a session calls a backend of 2026-07-28, which answers with
// input_required when it needs the client. Its requests go to the client on the
// stream of the call; the answers may come in at any instance and wait in the store for
// the one that makes the call, which then makes it again with them.

// Bounds of one call.
const (
	maxRounds = 50
	maxInputs = 50 // requests in one round
)

// How often the store is asked for answers.
const (
	firstLook = 50 * time.Millisecond
	lastLook  = 250 * time.Millisecond
)

// withInputs calls a backend of 2026-07-28 for a client with a session.
func (x *exchange) withInputs(ctx context.Context, known *known) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer x.watch(ctx, cancel)()
	x.with = backendSession{Version: known.version}
	params := x.statelessParams()
	header, err := x.statelessHeader()
	if err != nil {
		return err
	}
	for range maxRounds {
		x.id, x.input = upstream.FreshID(), nil
		answer, err := x.client.Post(ctx, upstream.Request{
			Body: jsonrpc.AppendRequest(nil, x.id, x.call.Method, params), Version: known.version, Header: header,
		})
		if err == nil {
			err = x.relay(ctx, answer)
		} else {
			err = x.failed(err)
		}
		if err == nil && x.input != nil {
			params, err = x.supply(ctx, params)
		}
		switch {
		case errors.Is(context.Cause(ctx), errCancelled):
			return fault.Wrap(fault.Conflict, errCancelled, "the call was cancelled")
		case err != nil || x.responded:
			return err
		}
	}
	return x.failed(fmt.Errorf("gateway: it asks for input in more than %d rounds", maxRounds))
}

// supply asks the client for what the backend wants and returns the params of the next round.
func (x *exchange) supply(ctx context.Context, params json.RawMessage) (json.RawMessage, error) {
	if !translate.MultiRound[x.call.Method] {
		return nil, x.failed(errors.New("gateway: it asks for input where the revision does not let it"))
	}
	responses, err := x.put(ctx, jsonrpc.Member(x.input, "inputRequests"))
	if err != nil || x.responded {
		return nil, err
	}
	params = translate.WithoutRounds(params)
	if state := jsonrpc.Member(x.input, "requestState"); state != nil {
		params = jsonrpc.Insert(params, "requestState", state)
	}
	if responses != nil {
		params = jsonrpc.Insert(params, "inputResponses", responses)
	}
	return params, nil
}

// input is one request of a round.
type input struct {
	key, method string
	id          string // that the client sees
	answer      json.RawMessage
}

// put puts the requests to the client and waits for all answers.
func (x *exchange) put(ctx context.Context, requests json.RawMessage) (json.RawMessage, error) {
	if lacks := translate.Demanded(x.call.Capabilities, x.input); len(lacks) > 0 {
		e := translate.Missing(x.entry.Backend, lacks)
		e.Code = jsonrpc.InvalidRequest
		return nil, e
	}
	var inputs []*input
	for key, request := range jsonrpc.Members(requests) {
		if x.call.ResponseOnly {
			return nil, &jsonrpc.Error{
				Code: jsonrpc.InvalidRequest, Message: "backend " + x.entry.Backend + " asks for input, which needs a request that accepts an event stream",
			}
		}
		in := &input{key: string(key)}
		in.method, _ = jsonrpc.String(jsonrpc.Member(request, "method"))
		if len(inputs) == maxInputs {
			return nil, x.failed(fmt.Errorf("gateway: it asks for more than %d inputs at once", maxInputs))
		}
		inputs = append(inputs, in)
		var err error
		if in.id, err = x.gateway.elicitations.ask(ctx, x.call.Client, x.backend(), x.with, nil); err != nil {
			return nil, err
		}
		x.kept = append(x.kept, elicitationKey(in.id))
		x.inputs = append(x.inputs, in)
		message := sessionRequest(in, jsonrpc.Member(request, "params"))
		if err := x.send(message, false); err != nil {
			return nil, err
		}
	}
	if len(inputs) == 0 { // the backend only wants to be asked again, later
		if err := periodic.Sleep(ctx, lastLook); err != nil {
			return nil, x.failed(err)
		}
		return nil, nil
	}
	if err := x.await(ctx, inputs); err != nil {
		return nil, err
	}
	return x.responses(inputs)
}

// sessionRequest is a request as clients with sessions know it: it has an id, and an
// elicitation by URL one more.
func sessionRequest(in *input, params json.RawMessage) json.RawMessage {
	if mode, _ := jsonrpc.String(jsonrpc.Member(params, "mode")); mode == "url" && jsonrpc.Member(params, "elicitationId") == nil {
		params = jsonrpc.Insert(params, "elicitationId", jsonrpc.Quote(in.id))
	}
	return jsonrpc.AppendRequest(nil, jsonrpc.Quote(in.id), in.method, params)
}

// await waits until all elicitations have their answers.
func (x *exchange) await(ctx context.Context, inputs []*input) error {
	for wait := firstLook; ; wait = min(wait*3/2, lastLook) {
		if err := periodic.Sleep(ctx, wait); err != nil {
			return x.failed(err)
		}
		var open []*input
		var keys []store.Key
		for _, in := range inputs {
			if in.answer == nil {
				open, keys = append(open, in), append(keys, elicitationKey(in.id))
			}
		}
		if len(open) == 0 {
			return nil
		}
		items, err := x.gateway.options.DB.Get(ctx, keys...)
		if err != nil {
			if fault.Is(err, fault.Unavailable) && ctx.Err() == nil {
				continue
			}
			return fault.Wrap(fault.Unavailable, err, "look for the client's answers")
		}
		for i, it := range items {
			if it == nil {
				return x.failed(errors.New("gateway: the client did not answer in time"))
			}
			var at []store.Key
			if open[i].answer, at, err = x.gateway.elicitations.kept(ctx, open[i].id, it); err != nil {
				return err
			}
			x.kept = append(x.kept, at...)
		}
	}
}

// responses makes of the answers the inputResponses of the next round. This revision has no
// errors there: for an elicitation the user cancelled, and for all else the call ends
// with the client's own error.
func (x *exchange) responses(inputs []*input) (json.RawMessage, error) {
	out := []byte{'{'}
	for i, in := range inputs {
		result := jsonrpc.Member(in.answer, "result")
		if failure := jsonrpc.Member(in.answer, "error"); failure != nil || result == nil {
			if in.method != mcpspec.MethodElicit {
				return nil, x.refusal(failure)
			}
			result = json.RawMessage(`{"action":"cancel"}`)
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(jsonrpc.AppendString(out, in.key), ':'), result...)
	}
	return append(out, '}'), nil
}

// refusal ends the call with the error that the client answered.
func (x *exchange) refusal(failure json.RawMessage) error {
	if failure == nil {
		return fault.New(fault.Invalid, "the client answered with neither a result nor an error")
	}
	body := append(append([]byte(`{"jsonrpc":"2.0","id":`), x.call.ID...), `,"error":`...)
	return x.send(append(append(body, failure...), '}'), true)
}
