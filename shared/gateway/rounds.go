package gateway

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
)

// A client of 2026-07-28 calls a backend that puts its elicitations in between, as
// requests of its own. Such an elicitation ends the call here: the client gets it in an
// input_required result, and the backend is told that the call is cancelled. When the
// client comes back with the answers, the call is made again from the beginning, and
// the backend's elicitations are answered with what the client said, as long as they are the same
// ones in the same order. A new elicitation is the next round.
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
// All that the next round needs is in the requestState, sealed. What the backend did
// before its elicitation it does again in each round: that is the price of a client that
// keeps no connection.

// rounds is what a requestState holds.
type rounds struct {
	Answered []answered `json:"a,omitempty"`
	Asked    []asked    `json:"q,omitempty"`

	used []bool // which answers the backend had in this round
}

type asked struct {
	Key    string `json:"k"`
	Method string `json:"m"`
	Digest string `json:"d"` // of the params
}

type answered struct {
	Method   string          `json:"m"`
	Digest   string          `json:"d"`
	Response json.RawMessage `json:"r"`
}

// Bounds of one call.
const (
	maxElicitations = 100
	// gather is how long more elicitations are waited for that a backend puts at once.
	gather = 30 * time.Millisecond
)

// needsURLMethod stands for the elicitations of error -32042, which no request of the
// backend repeats.
const needsURLMethod = "error/-32042"

// inRounds calls a backend of the earlier revisions for a client of 2026-07-28.
func (x *exchange) inRounds(ctx context.Context) error {
	x.id = upstream.FreshID()
	if err := x.takeUp(); err != nil {
		return err
	}
	err := x.inSession(ctx, x.sessionBasedParams())
	if x.responded || x.gone || len(x.pending) == 0 {
		return err
	}
	return x.require()
}

// takeUp reads what the client brings from the rounds before.
func (x *exchange) takeUp() error {
	responses := jsonrpc.Member(x.call.Params, "inputResponses")
	if responses != nil && responses[0] != '{' {
		return fault.New(fault.Invalid, "inputResponses must be an object")
	}
	raw := jsonrpc.Member(x.call.Params, "requestState")
	if raw == nil {
		return nil // answers to nothing are nothing
	}
	sealed, _ := jsonrpc.String(raw)
	state, err := x.gateway.states.open(sealed, x.belongsToRounds(), time.Now())
	if err != nil {
		return err
	}
	if err := json.Unmarshal(state, &x.rounds); err != nil {
		return fault.Wrap(fault.Internal, err, "decode a requestState")
	}
	for _, q := range x.rounds.Asked {
		response := jsonrpc.Member(responses, q.Key)
		switch {
		case response == nil: // it is asked again
		case response[0] != '{':
			return fault.New(fault.Invalid, "inputResponses: %s must be an object", q.Key)
		case q.Method == needsURLMethod:
			if action, _ := jsonrpc.String(jsonrpc.Member(response, "action")); action != "accept" {
				return fault.New(fault.Invalid, "the call needs what the user did not accept")
			}
		default:
			x.rounds.Answered = append(x.rounds.Answered, answered{q.Method, q.Digest, response})
		}
	}
	x.rounds.Asked = nil
	x.rounds.used = make([]bool, len(x.rounds.Answered))
	return nil
}

// belongsToRounds tells these states from those that a backend made.
func (x *exchange) belongsToRounds() []byte { return append(x.belongs(), "rounds"...) }

// collect answers a backend's elicitation with what the client said, or keeps it for
// the client.
func (x *exchange) collect(ctx context.Context, m upstream.Message, params json.RawMessage) error {
	d := translate.QuestionDigest(params)
	for i, a := range x.rounds.Answered {
		if !x.rounds.used[i] && a.Method == m.Method && a.Digest == d {
			x.rounds.used[i] = true
			return x.reply(ctx, jsonrpc.AppendResult(nil, m.ID, a.Response))
		}
	}
	if len(x.rounds.Answered)+len(x.pending) >= maxElicitations {
		return x.refuse(ctx, m, jsonrpc.InvalidRequest, "the client is not asked more than "+strconv.Itoa(maxElicitations)+" times in one call")
	}
	x.pending = append(x.pending, m)
	if len(x.pending) == 1 {
		time.AfterFunc(gather, x.stop)
	}
	return nil
}

// require asks the client for what the backend asked.
func (x *exchange) require() error {
	requests := []byte{'{'}
	for _, m := range x.pending {
		params := jsonrpc.Member(m.Raw, "params")
		key := x.ask(m.Method, translate.QuestionDigest(params))
		requests = translate.AppendInput(requests, key, m.Method, params)
	}
	return x.sendRequired(append(requests, '}'))
}

// ask notes an elicitation for the next round and returns its key.
func (x *exchange) ask(method, digest string) string {
	key := "input-" + strconv.Itoa(len(x.rounds.Answered)+len(x.rounds.Asked)+1)
	x.rounds.Asked = append(x.rounds.Asked, asked{key, method, digest})
	return key
}

// sendRequired ends a round.
func (x *exchange) sendRequired(requests json.RawMessage) error {
	state, err := json.Marshal(x.rounds)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode a requestState")
	}
	b := append([]byte(`{"resultType":"input_required","inputRequests":`), requests...)
	b = append(append(b, `,"requestState":`...), jsonrpc.Quote(x.gateway.states.seal(state, x.belongsToRounds(), time.Now()))...)
	return x.send(jsonrpc.AppendResult(nil, x.call.ID, append(b, '}')), true)
}

// needsURL makes of error -32042 the demand that the user visits its URLs.
func (x *exchange) needsURL(failure json.RawMessage) error {
	requests := []byte{'{'}
	for params := range jsonrpc.Elements(jsonrpc.Member(jsonrpc.Member(failure, "data"), "elicitations")) {
		mode, _ := jsonrpc.String(jsonrpc.Member(params, "mode"))
		if mode != "url" || len(x.rounds.Asked) >= maxElicitations {
			continue
		}
		if n := translate.Lacking(x.call.Capabilities, mcpspec.MethodElicit, params); n != "" && !slices.Contains(x.refused, n) {
			x.refused = append(x.refused, n)
		}
		requests = translate.AppendInput(requests, x.ask(needsURLMethod, translate.QuestionDigest(params)), mcpspec.MethodElicit, params)
	}
	switch {
	case len(x.refused) > 0:
		return translate.Missing(x.entry.Backend, x.refused)
	case len(x.rounds.Asked) == 0 || !translate.MultiRound[x.call.Method]:
		message, _ := jsonrpc.String(jsonrpc.Member(failure, "message"))
		return &jsonrpc.Error{Code: jsonrpc.InternalError, Message: message}
	}
	return x.sendRequired(append(requests, '}'))
}
