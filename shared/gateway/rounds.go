package gateway

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// This file lets a client of 2026-07-28 call a backend that sends its elicitations as requests within the call. The gateway
// returns the elicitation to the client in an input_required result and cancels the call at the backend. When
// the client comes back with the answers, the gateway repeats the call from the beginning and answers the
// backend's elicitations from them, as long as the backend repeats the same ones. A new elicitation starts another round.
//
//	client            gateway                    backend
//	  │ call ───────────▶│ call ──────────────────▶│
//	  │                  │◀─────────── elicitation │
//	  │◀─ input_required │ cancelled ─────────────▶│
//	  │ call, answer ───▶│ call ──────────────────▶│
//	  │                  │◀─────────── elicitation │
//	  │                  │ answer ────────────────▶│
//	  │◀──────── result  │◀──────────────── result │
//
// The sealed requestState contains everything that the next round needs. The cost of this design is that the backend
// repeats in each round all work that it did before its elicitation. We accept it because the client sends its answers in a new
// request, which may reach another instance than the one with the connection to the backend.

// rounds is the content of a requestState: a call's questions and the client's answers.
type rounds struct {
	Answered []answered `json:"a,omitempty"` // the answers from all rounds so far
	Asked    []asked    `json:"q,omitempty"` // the questions that the client has to answer in the next round

	used []bool // which answers the backend has received in this round
}

type asked struct {
	Key    string `json:"k"`
	Method string `json:"m"`
	Digest string `json:"d"` // of the question's params
}

type answered struct {
	Method   string          `json:"m"`
	Digest   string          `json:"d"`
	Response json.RawMessage `json:"r"`
}

// Limits on the elicitations of one call.
const (
	maxElicitations = 100
	gather          = 30 * time.Millisecond // how long the gateway waits for further elicitations after the first one of a round
)

// needsURLMethod is recorded as the method of a question that the gateway made from error -32042 (URL elicitation required). The backend
// gets no answer to such a question, because it sent no request.
const needsURLMethod = "error/-32042"

// roundsBridge implements [bridge] for a client of 2026-07-28 and a backend with sessions.
type roundsBridge struct {
	x       *exchange
	stop    context.CancelFunc // ends the exchange with the backend
	rounds  rounds             // elicitations and answers of earlier rounds
	pending []upstream.Message // elicitations for the next round
	gather  *time.Timer        // ends the exchange when no further elicitations are awaited; nil before the first one
	refused []translate.Need   // capabilities that the backend needed and the client lacks
}

func (b *roundsBridge) sendCall(ctx context.Context) error {
	ctx, b.stop = context.WithCancel(ctx)
	defer b.stop()
	if err := b.loadRounds(); err != nil {
		return err
	}
	defer b.x.abandon() // deferred until the client has the question, because the backend may take seconds to accept the cancellation
	err := b.x.inSession(ctx, b.params())
	if b.x.responded || b.x.gone || len(b.pending) == 0 {
		return err
	}
	if err = b.requireInput(); err == nil && b.x.call.Answered != nil {
		b.x.call.Answered()
	}
	return err
}

func (b *roundsBridge) params() json.RawMessage {
	token := jsonrpc.Quote("gw_" + string(b.x.id))
	params, replaced := translate.ToSessionBased(b.x.params(), token)
	if replaced {
		b.x.token = token
	}
	return params
}

func (b *roundsBridge) loadRounds() error {
	responses := jsonrpc.Member(b.x.call.Params, "inputResponses")
	if responses != nil && responses[0] != '{' {
		return fault.New(fault.Invalid, "inputResponses must be an object")
	}
	raw := jsonrpc.Member(b.x.call.Params, "requestState")
	if raw == nil {
		return nil // the client sent no requestState, so this is the first round, which has no answers
	}
	sealed, _ := jsonrpc.String(raw)
	state, err := b.x.gateway.states.Open(sealed, b.stateBinding())
	if err != nil {
		return err
	}
	if err := json.Unmarshal(state, &b.rounds); err != nil {
		return fault.Wrap(fault.Internal, err, "decode a requestState")
	}
	for _, q := range b.rounds.Asked {
		response := jsonrpc.Member(responses, q.Key)
		switch {
		case response == nil: // the client did not answer this question, so the gateway asks it again
		case response[0] != '{':
			return fault.New(fault.Invalid, "inputResponses: %s must be an object", q.Key)
		case q.Method == needsURLMethod:
			if action, _ := jsonrpc.String(jsonrpc.Member(response, "action")); action != "accept" {
				return fault.New(fault.Invalid, "the call needs the user to accept a URL, but the user did not")
			}
		default:
			b.rounds.Answered = append(b.rounds.Answered, answered{q.Method, q.Digest, response})
		}
	}
	b.rounds.Asked = nil
	b.rounds.used = make([]bool, len(b.rounds.Answered))
	return nil
}

// stateBinding adds a suffix to [exchange.stateBinding], so that the gateway does not take a state of this bridge for the requestState of
// a backend.
func (b *roundsBridge) stateBinding() []byte { return append(b.x.stateBinding(), "rounds"...) }

// elicit answers a backend's request from the client's earlier answers, or keeps it so that the client can answer it in the next round.
func (b *roundsBridge) elicit(ctx context.Context, m upstream.Message, _ bool) error {
	params := jsonrpc.Member(m.Raw, "params")
	if lacks := translate.FindMissing(b.x.call.Capabilities, m.Method, params); lacks != "" || !translate.MultiRound[b.x.call.Method] {
		if lacks != "" {
			b.refused = append(b.refused, lacks)
		}
		return b.x.refuse(ctx, m, jsonrpc.MethodNotFound, "the client does not support "+m.Method)
	}
	if i := b.findAnswer(m); i >= 0 {
		b.rounds.used[i] = true
		return b.x.reply(ctx, jsonrpc.AppendResult(nil, m.ID, b.rounds.Answered[i].Response))
	}
	if len(b.rounds.Answered)+len(b.pending) >= maxElicitations {
		return b.x.refuse(ctx, m, jsonrpc.InvalidRequest, "a call can ask the client at most "+strconv.Itoa(maxElicitations)+" times")
	}
	b.pending = append(b.pending, m)
	if len(b.pending) == 1 {
		b.gather = time.AfterFunc(gather, b.stop)
	}
	return nil
}

func (b *roundsBridge) findAnswer(m upstream.Message) int {
	d := translate.QuestionDigest(jsonrpc.Member(m.Raw, "params"))
	for i, a := range b.rounds.Answered {
		if !b.rounds.used[i] && a.Method == m.Method && a.Digest == d {
			return i
		}
	}
	return -1
}

func (b *roundsBridge) requireInput() error {
	requests := []byte{'{'}
	for _, m := range b.pending {
		params := jsonrpc.Member(m.Raw, "params")
		key := b.recordQuestion(m.Method, translate.QuestionDigest(params))
		requests = translate.AppendInput(requests, key, m.Method, params)
	}
	return b.sendRequired(append(requests, '}'))
}

func (b *roundsBridge) recordQuestion(method, digest string) string {
	key := "input-" + strconv.Itoa(len(b.rounds.Answered)+len(b.rounds.Asked)+1)
	b.rounds.Asked = append(b.rounds.Asked, asked{key, method, digest})
	return key
}

func (b *roundsBridge) sendRequired(requests json.RawMessage) error {
	b.x.outcome = outcomeInput
	body := append([]byte(`{"resultType":"input_required","inputRequests":`), requests...)
	body = append(append(body, `,"requestState":`...), jsonrpc.Quote(b.x.gateway.states.Seal(jsonrpc.Encode(b.rounds), b.stateBinding()))...)
	return b.x.send(jsonrpc.AppendResult(nil, b.x.call.ID, b.x.addServer(append(body, '}'))), true)
}

// withdraw removes a pending elicitation that the backend has cancelled. If no other one is pending, the call continues, unless the
// gateway has already cancelled the call to ask the client. In this case, withdraw keeps the elicitation, because only the client's
// answer to it lets the gateway repeat the call.
func (b *roundsBridge) withdraw(_ context.Context, id json.RawMessage, _ upstream.Message) (found bool, err error) {
	i := findQuestion(b.pending, func(m upstream.Message) json.RawMessage { return m.ID }, id)
	if i < 0 {
		return false, nil
	}
	if len(b.pending) > 1 || b.gather.Stop() {
		b.pending = slices.Delete(b.pending, i, i+1)
	}
	return true, nil
}

func (b *roundsBridge) respond(m upstream.Message) error {
	b.pending = nil // the backend no longer waits for answers
	if b.gather != nil {
		b.gather.Stop()
	}
	if len(b.refused) > 0 && (m.Result == nil || string(jsonrpc.Member(m.Result, "isError")) == "true") {
		return translate.NewMissingError(b.x.entry.Backend, b.refused)
	}
	response, code := b.x.translateResponse(m)
	if code == spec.CodeNeedsURL {
		return b.needsURL(m.Error)
	}
	return b.x.send(response, true)
}

// needsURL turns a backend's error -32042 into an input_required result that asks the user to visit the URLs.
func (b *roundsBridge) needsURL(failure json.RawMessage) error {
	requests := []byte{'{'}
	for params := range jsonrpc.Elements(jsonrpc.Member(jsonrpc.Member(failure, "data"), "elicitations")) {
		mode, _ := jsonrpc.String(jsonrpc.Member(params, "mode"))
		if mode != "url" || len(b.rounds.Asked) >= maxElicitations {
			continue
		}
		if n := translate.FindMissing(b.x.call.Capabilities, spec.MethodElicit, params); n != "" && !slices.Contains(b.refused, n) {
			b.refused = append(b.refused, n)
		}
		requests = translate.AppendInput(requests, b.recordQuestion(needsURLMethod, translate.QuestionDigest(params)), spec.MethodElicit, params)
	}
	switch {
	case len(b.refused) > 0:
		return translate.NewMissingError(b.x.entry.Backend, b.refused)
	case len(b.rounds.Asked) == 0 || !translate.MultiRound[b.x.call.Method]:
		message, _ := jsonrpc.String(jsonrpc.Member(failure, "message"))
		return &jsonrpc.Error{Code: jsonrpc.InternalError, Message: message}
	}
	return b.sendRequired(append(requests, '}'))
}
