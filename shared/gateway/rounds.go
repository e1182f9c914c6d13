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

// A client of 2026-07-28 calls a backend that puts its elicitations in between, as
// requests of its own. Such an elicitation ends the call here: the client gets it in an
// input_required result, and the backend is notified that the call is cancelled. When the
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

// roundsWay is the way from a client of 2026-07-28 to a backend with sessions.
type roundsWay struct {
	x       *exchange
	states  *states
	stop    context.CancelFunc // ends the exchange at the backend
	rounds  rounds             // what the client was asked and answered in earlier rounds
	pending []upstream.Message // what it is to be asked next
	refused []translate.Need   // of what the backend asked, the client having no capability for it
}

func (w *roundsWay) make(ctx context.Context) error {
	ctx, w.stop = context.WithCancel(ctx)
	defer w.stop()
	w.x.id = upstream.FreshID()
	if err := w.takeUp(); err != nil {
		return err
	}
	err := w.x.inSession(ctx, w.params())
	if w.x.responded || w.x.gone || len(w.pending) == 0 {
		return err
	}
	return w.require()
}

// params are those of the call as a backend with sessions knows them.
func (w *roundsWay) params() json.RawMessage {
	token := jsonrpc.Quote("gw_" + string(w.x.id))
	params, replaced := translate.ToSessionBased(w.x.params(), token)
	if replaced {
		w.x.token = token
	}
	return params
}

// takeUp reads what the client brings from the rounds before.
func (w *roundsWay) takeUp() error {
	responses := jsonrpc.Member(w.x.call.Params, "inputResponses")
	if responses != nil && responses[0] != '{' {
		return fault.New(fault.Invalid, "inputResponses must be an object")
	}
	raw := jsonrpc.Member(w.x.call.Params, "requestState")
	if raw == nil {
		return nil // answers to nothing are nothing
	}
	sealed, _ := jsonrpc.String(raw)
	state, err := w.states.open(sealed, w.belongs(), time.Now())
	if err != nil {
		return err
	}
	if err := json.Unmarshal(state, &w.rounds); err != nil {
		return fault.Wrap(fault.Internal, err, "decode a requestState")
	}
	for _, q := range w.rounds.Asked {
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
			w.rounds.Answered = append(w.rounds.Answered, answered{q.Method, q.Digest, response})
		}
	}
	w.rounds.Asked = nil
	w.rounds.used = make([]bool, len(w.rounds.Answered))
	return nil
}

// belongs distinguishes these states from those that a backend made.
func (w *roundsWay) belongs() []byte { return append(w.x.belongs(), "rounds"...) }

// elicit answers a backend's elicitation with what the client said, or keeps it for
// the client.
func (w *roundsWay) elicit(ctx context.Context, m upstream.Message) error {
	params := jsonrpc.Member(m.Raw, "params")
	if lacks := translate.Lacking(w.x.call.Capabilities, m.Method, params); lacks != "" || !translate.MultiRound[w.x.call.Method] {
		if lacks != "" {
			w.refused = append(w.refused, lacks)
		}
		return w.x.refuse(ctx, m, jsonrpc.MethodNotFound, "the client does not support "+m.Method)
	}
	d := translate.QuestionDigest(params)
	for i, a := range w.rounds.Answered {
		if !w.rounds.used[i] && a.Method == m.Method && a.Digest == d {
			w.rounds.used[i] = true
			return w.x.reply(ctx, jsonrpc.AppendResult(nil, m.ID, a.Response))
		}
	}
	if len(w.rounds.Answered)+len(w.pending) >= maxElicitations {
		return w.x.refuse(ctx, m, jsonrpc.InvalidRequest, "the client is not asked more than "+strconv.Itoa(maxElicitations)+" times in one call")
	}
	w.pending = append(w.pending, m)
	if len(w.pending) == 1 {
		time.AfterFunc(gather, w.stop)
	}
	return nil
}

// require asks the client for what the backend asked.
func (w *roundsWay) require() error {
	requests := []byte{'{'}
	for _, m := range w.pending {
		params := jsonrpc.Member(m.Raw, "params")
		key := w.ask(m.Method, translate.QuestionDigest(params))
		requests = translate.AppendInput(requests, key, m.Method, params)
	}
	return w.sendRequired(append(requests, '}'))
}

// ask notes an elicitation for the next round and returns its key.
func (w *roundsWay) ask(method, digest string) string {
	key := "input-" + strconv.Itoa(len(w.rounds.Answered)+len(w.rounds.Asked)+1)
	w.rounds.Asked = append(w.rounds.Asked, asked{key, method, digest})
	return key
}

// sendRequired ends a round.
func (w *roundsWay) sendRequired(requests json.RawMessage) error {
	state, err := json.Marshal(w.rounds)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode a requestState")
	}
	b := append([]byte(`{"resultType":"input_required","inputRequests":`), requests...)
	b = append(append(b, `,"requestState":`...), jsonrpc.Quote(w.states.seal(state, w.belongs(), time.Now()))...)
	return w.x.send(jsonrpc.AppendResult(nil, w.x.call.ID, append(b, '}')), true)
}

// withdraw forgets a question that the client was not asked yet.
func (w *roundsWay) withdraw(_ context.Context, id json.RawMessage, _ upstream.Message) error {
	w.pending = slices.DeleteFunc(w.pending, func(m upstream.Message) bool { return jsonrpc.SameID(m.ID, id) })
	return nil
}

func (w *roundsWay) respond(m upstream.Message) error {
	w.pending = nil // the backend waits for no answers any more
	if len(w.refused) > 0 && (m.Result == nil || string(jsonrpc.Member(m.Result, "isError")) == "true") {
		return translate.Missing(w.x.entry.Backend, w.refused)
	}
	response, code := w.x.translated(m)
	if code == spec.CodeNeedsURL {
		return w.needsURL(m.Error)
	}
	return w.x.send(response, true)
}

// needsURL makes of error -32042 the demand that the user visits its URLs.
func (w *roundsWay) needsURL(failure json.RawMessage) error {
	requests := []byte{'{'}
	for params := range jsonrpc.Elements(jsonrpc.Member(jsonrpc.Member(failure, "data"), "elicitations")) {
		mode, _ := jsonrpc.String(jsonrpc.Member(params, "mode"))
		if mode != "url" || len(w.rounds.Asked) >= maxElicitations {
			continue
		}
		if n := translate.Lacking(w.x.call.Capabilities, spec.MethodElicit, params); n != "" && !slices.Contains(w.refused, n) {
			w.refused = append(w.refused, n)
		}
		requests = translate.AppendInput(requests, w.ask(needsURLMethod, translate.QuestionDigest(params)), spec.MethodElicit, params)
	}
	switch {
	case len(w.refused) > 0:
		return translate.Missing(w.x.entry.Backend, w.refused)
	case len(w.rounds.Asked) == 0 || !translate.MultiRound[w.x.call.Method]:
		message, _ := jsonrpc.String(jsonrpc.Member(failure, "message"))
		return &jsonrpc.Error{Code: jsonrpc.InternalError, Message: message}
	}
	return w.sendRequired(append(requests, '}'))
}
