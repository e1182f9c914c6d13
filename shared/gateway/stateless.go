package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// statelessWay implements [way] for a client and a backend that are both of revision 2026-07-28. It seals the backend's
// requestState on the way to the client, and opens it when the client returns it.
type statelessWay struct {
	x *exchange
}

func (w *statelessWay) make(ctx context.Context) error {
	params := w.x.params()
	h := http.Header{spec.HeaderMethod: {w.x.call.Method}}
	maps.Copy(h, w.x.call.Header)
	if _, named := spec.Mirrored[w.x.call.Method]; named {
		h[spec.HeaderName] = []string{spec.EncodeHeader(w.x.entry.Own)}
	}
	if raw := jsonrpc.Member(params, "requestState"); raw != nil {
		sealed, _ := jsonrpc.String(raw)
		state, err := w.x.gateway.states.open(sealed, w.x.stateBinding(), time.Now())
		if err != nil {
			return err
		}
		params = jsonrpc.Replace(params, "requestState", jsonrpc.Quote(string(state)))
	}
	return w.x.withoutSession(ctx, params, h)
}

func (w *statelessWay) elicit(ctx context.Context, _ upstream.Message) error {
	return w.x.dropMisplaced(ctx)
}

func (w *statelessWay) withdraw(ctx context.Context, _ json.RawMessage, _ upstream.Message) error {
	return w.x.dropMisplaced(ctx)
}

func (w *statelessWay) respond(m upstream.Message) error {
	if lacks := translate.Demanded(w.x.call.Capabilities, m.Result); len(lacks) > 0 {
		return translate.Missing(w.x.entry.Backend, lacks)
	}
	if state := jsonrpc.Member(m.Result, "requestState"); state != nil {
		text, ok := jsonrpc.String(state)
		if !ok {
			return w.x.callError(errors.New("gateway: the requestState is not a string"))
		}
		m.Result = jsonrpc.Replace(m.Result, "requestState", jsonrpc.Quote(w.x.gateway.states.seal([]byte(text), w.x.stateBinding(), time.Now())))
	}
	if err := w.x.adaptTask(&m); err != nil {
		return err
	}
	response, code := w.x.translateResponse(m)
	w.x.recheckVersion(code)
	return w.x.send(response, true)
}
