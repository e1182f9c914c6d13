package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// This file lets a client with a session call a backend of 2026-07-28, which answers with input_required when it needs the client. The
// gateway sends the backend's questions to the client as requests on the call's stream. The answers may arrive at any instance, so they are
// passed through the store to the instance that makes the call. That instance then repeats the call with the answers.

// Limits on how often a backend may ask for input in one call, and with how many questions.
const (
	maxRounds = 50
	maxInputs = 50 // questions in one round
)

// The interval at which a call looks for answers in the store grows from firstLook to lastLook.
const (
	firstLook = 50 * time.Millisecond
	lastLook  = 250 * time.Millisecond
)

// longestLater limits the pause before the gateway repeats a call when the backend wants a retry but asks no question.
const longestLater = 5 * time.Second

// inputRoundsBridge implements [bridge] for a client with a session and a backend of 2026-07-28.
type inputRoundsBridge struct {
	x      *exchange
	kept   []store.Key     // the items in the store for this call's questions and answers
	input  json.RawMessage // the backend's current input_required result
	inputs []*input        // the questions of all rounds
	later  time.Duration   // the latest pause before the gateway repeated the call without having asked a question
}

func (b *inputRoundsBridge) sendCall(ctx context.Context) error {
	defer func() { b.x.gateway.elicitations.cleanUp(b.kept, b.inputs) }()
	params, header := b.params(), b.x.mirrorHeaders()
	if err := b.x.addParameters(header); err != nil {
		return err
	}
	for asked := 0; asked < maxRounds; {
		b.input = nil
		err := b.x.withoutSession(ctx, params, header)
		if err == nil && b.input != nil {
			had := len(b.inputs)
			params, err = b.supplyInput(ctx, params)
			if len(b.inputs) > had {
				asked++
			}
		}
		if err != nil || b.x.responded {
			return err
		}
		b.x.floor = b.x.progress
	}
	return b.x.callError(fmt.Errorf("gateway: the backend asks for input in more than %d rounds", maxRounds))
}

func (b *inputRoundsBridge) params() json.RawMessage {
	params := b.x.params()
	// Remove a requestState, because the gateway never sends one to a client with a session. A state that such a client sends was meant
	// for another client.
	if translate.MultiRound[b.x.call.Method] {
		params = translate.WithoutRounds(params)
	}
	return translate.ToStateless(params, b.x.with.Version, describeClient(b.x.call.Client, b.x.client))
}

func describeClient(c api.Client, to *upstream.Client) translate.Client {
	out := translate.Client{Info: c.Info, Capabilities: translate.WithoutTasks(c.Capabilities), Level: c.Level}
	if len(out.Info) == 0 {
		out.Info = to.Server
	}
	if len(out.Capabilities) == 0 {
		out.Capabilities = json.RawMessage(`{}`)
	}
	return out
}

// supplyInput asks the client for the input that the backend requested, and returns the params with which the call is repeated.
func (b *inputRoundsBridge) supplyInput(ctx context.Context, params json.RawMessage) (json.RawMessage, error) {
	if !translate.MultiRound[b.x.call.Method] {
		return nil, b.x.callError(errors.New("gateway: the backend asks for input, which the revision does not allow for this method"))
	}
	responses, err := b.askClient(ctx, jsonrpc.Member(b.input, "inputRequests"))
	if err != nil || b.x.responded {
		return nil, err
	}
	params = translate.WithoutRounds(params)
	if state := jsonrpc.Member(b.input, "requestState"); state != nil {
		params = jsonrpc.Insert(params, "requestState", state)
	}
	if responses != nil {
		params = jsonrpc.Insert(params, "inputResponses", responses)
	}
	return params, nil
}

type input struct {
	key, method string
	id          string // the id of the request to the client
	answer      json.RawMessage
}

// askClient sends the questions in requests to the client, waits for all answers, and returns them as inputResponses. It returns nil if
// there are no questions.
func (b *inputRoundsBridge) askClient(ctx context.Context, requests json.RawMessage) (json.RawMessage, error) {
	if lacks := translate.ListMissing(b.x.call.Capabilities, b.input); len(lacks) > 0 {
		e := translate.NewMissingError(b.x.entry.Backend, lacks)
		e.Code = jsonrpc.InvalidRequest
		return nil, e
	}
	var inputs []*input
	for key, request := range jsonrpc.Members(requests) {
		if b.x.call.ResponseOnly {
			return nil, &jsonrpc.Error{
				Code: jsonrpc.InvalidRequest, Message: "backend " + b.x.entry.Backend + " asks for input, which needs a request that accepts an event stream",
			}
		}
		in := &input{key: string(key)}
		in.method, _ = jsonrpc.String(jsonrpc.Member(request, "method"))
		if len(inputs) == maxInputs {
			return nil, b.x.callError(fmt.Errorf("gateway: the backend asks for more than %d inputs in one round", maxInputs))
		}
		inputs = append(inputs, in)
		var err error
		if in.id, err = b.x.gateway.elicitations.addRequest(ctx, b.x.call.Client, b.x.backend(), b.x.with, nil, nil); err != nil {
			return nil, err
		}
		b.kept = append(b.kept, elicitationKey(in.id))
		b.inputs = append(b.inputs, in)
		message := sessionRequest(in, jsonrpc.Member(request, "params"))
		if err := b.x.send(message, false); err != nil {
			return nil, err
		}
	}
	if len(inputs) == 0 { // the backend asks for a retry without asking a question
		b.later = min(max(b.later*3/2, lastLook), longestLater)
		if err := periodic.Sleep(ctx, b.later); err != nil {
			return nil, b.x.callError(err)
		}
		return nil, nil
	}
	b.later = 0
	for _, in := range inputs {
		b.x.questions.add(elicitationKey(in.id))
	}
	if err := b.await(ctx, inputs); err != nil {
		return nil, err
	}
	return b.buildResponses(inputs)
}

// sessionRequest turns a question of an input_required result into a request for a client with a session. The request uses in.id as its id
// and, if the user has to visit a URL, also as its elicitationId. 2026-07-28 does not have these two ids.
func sessionRequest(in *input, params json.RawMessage) json.RawMessage {
	if mode, _ := jsonrpc.String(jsonrpc.Member(params, "mode")); mode == "url" && jsonrpc.Member(params, "elicitationId") == nil {
		params = jsonrpc.Insert(params, "elicitationId", jsonrpc.Quote(in.id))
	}
	return jsonrpc.AppendRequest(nil, jsonrpc.Quote(in.id), in.method, params)
}

func (b *inputRoundsBridge) await(ctx context.Context, inputs []*input) error {
	for wait := firstLook; ; wait = min(wait*3/2, lastLook) {
		if err := periodic.Sleep(ctx, wait); err != nil {
			return b.x.callError(err)
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
		items, err := b.x.gateway.elicitations.db.Get(ctx, keys...)
		if err != nil {
			if fault.Is(err, fault.Unavailable) && ctx.Err() == nil {
				continue
			}
			return fault.Wrap(fault.Unavailable, err, "look for the client's answers")
		}
		for i, it := range items {
			if it == nil {
				return b.x.callError(errors.New("gateway: the client did not answer in time"))
			}
			var at []store.Key
			if open[i].answer, at, err = b.x.gateway.elicitations.readAnswer(ctx, open[i].id, it); err != nil {
				return err
			}
			b.kept = append(b.kept, at...)
		}
	}
}

// buildResponses builds the inputResponses of the next round from the client's answers. 2026-07-28 does not allow errors in
// inputResponses. So an error in answer to an elicitation becomes a cancellation by the user, and any other error ends the call and goes
// to the client as its response.
func (b *inputRoundsBridge) buildResponses(inputs []*input) (json.RawMessage, error) {
	out := []byte{'{'}
	for _, in := range inputs {
		result := jsonrpc.Member(in.answer, "result")
		if failure := jsonrpc.Member(in.answer, "error"); failure != nil || result == nil {
			if in.method != spec.MethodElicit {
				return nil, b.endWithError(failure)
			}
			result = json.RawMessage(`{"action":"cancel"}`)
		}
		out = jsonrpc.AppendMember(out, in.key, result)
	}
	return append(out, '}'), nil
}

func (b *inputRoundsBridge) endWithError(failure json.RawMessage) error {
	if failure == nil {
		return fault.New(fault.Invalid, "the client's answer has no result and no error")
	}
	body := append(append([]byte(`{"jsonrpc":"2.0","id":`), b.x.call.ID...), `,"error":`...)
	return b.x.send(append(append(body, failure...), '}'), true)
}

func (b *inputRoundsBridge) respond(m upstream.Message) error {
	if translate.InputRequired(m.Result) {
		b.input = m.Result // sendCall then gets the input from the client and repeats the call
		return nil
	}
	return b.x.sendFromStateless(m)
}
