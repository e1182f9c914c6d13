package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
)

// Clients and backends need not speak revisions of one kind. What changes on the way is in
// package translate; here is what needs the call: what a backend asks the client in between (see
// rounds.go and inputrounds.go) and which of its messages are for the client.

// fits makes of a notification within a call the one for the client. It reports false for
// what the client did not ask for, or its revision does not have.
func (x *exchange) fits(m upstream.Message) (upstream.Message, bool) {
	params := jsonrpc.Member(m.Raw, "params")
	switch {
	case m.Method == mcpspec.NoteProgress:
		return x.ownProgress(m, params)
	case !x.call.stateless():
		return m, true
	case m.Method == mcpspec.NoteMessage:
		level, _ := jsonrpc.String(jsonrpc.Member(params, "level"))
		return m, x.call.Level != "" && mcpspec.SevereAs(level, x.call.Level)
	}
	return m, stateless(x.with.Version)
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
		x.backend.dropped(context.Background(), dropProgress)
		return m, false
	}
	if string(got) != string(own) {
		m.Raw = jsonrpc.Replace(m.Raw, "params", jsonrpc.Replace(params, "progressToken", own))
	}
	return m, true
}

// way is between the revisions of both sides.
func (x *exchange) way() translate.Way {
	return translate.Way{Client: mcpspec.Version(x.call.Version), Backend: mcpspec.Version(x.with.Version)}
}

// respond hands the response on, under the client's own id and in the form of its revision.
func (x *exchange) respond(m upstream.Message) error {
	raw := jsonrpc.Replace(m.Raw, "id", x.call.ID)
	if m.Result == nil {
		return x.respondError(raw, m.Error)
	}
	result, way := m.Result, x.way()
	switch {
	case way.Backend.Stateless() && !way.Client.Stateless() && translate.InputRequired(result):
		x.input = result // for the next round
		return nil
	case way.Client.Stateless() && !way.Backend.Stateless():
		if len(x.refused) > 0 && string(jsonrpc.Member(result, "isError")) == "true" {
			return translate.Missing(x.backend.Name, x.refused)
		}
	case way.Client.Stateless():
		if lacks := translate.Demanded(x.call.Capabilities, result); len(lacks) > 0 {
			return translate.Missing(x.backend.Name, lacks)
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
	way := x.way()
	if way.Client.Stateless() && len(x.refused) > 0 {
		return translate.Missing(x.backend.Name, x.refused)
	}
	out, code := way.Error(x.call.Method, raw)
	switch {
	case way.Client.Stateless() && !way.Backend.Stateless() && code == mcpspec.CodeNeedsURL:
		return x.needsURL(failure)
	case !way.Client.Stateless() && way.Backend.Stateless() && (code == mcpspec.CodeHeaderMismatch || code == mcpspec.CodeUnsupportedVersion):
		// Not the client's doing: what was known of the backend is no longer so.
		x.backend.as(context.Background(), x.call.Client).outdate()
	}
	return x.send(out, true)
}

// sessionBasedParams are params as a backend with sessions knows them.
func (x *exchange) sessionBasedParams() json.RawMessage {
	token := jsonrpc.Quote("gw_" + string(x.id))
	params, replaced := translate.ToSessionBased(x.call.withName(x.own, x.call.Params), token)
	if replaced {
		x.token = token
	}
	return params
}

// statelessParams are params as a backend of 2026-07-28 wants them.
func (x *exchange) statelessParams() json.RawMessage {
	c := translate.Client{Info: x.call.Info, Capabilities: x.call.Capabilities, Level: x.call.Level}
	if len(c.Info) == 0 {
		c.Info = x.gateway.options.Server
	}
	if len(c.Capabilities) == 0 {
		c.Capabilities = json.RawMessage(`{}`)
	}
	return translate.ToStateless(x.call.withName(x.own, x.call.Params), mcpspec.Version(x.with.Version), c)
}

// statelessHeader repeats what a request of 2026-07-28 has to repeat in headers.
func (x *exchange) statelessHeader() (http.Header, error) {
	h := http.Header{mcpspec.HeaderMethod: {x.call.Method}}
	if x.call.Member != "ref" {
		h[mcpspec.HeaderName] = []string{mcpspec.EncodeHeader(x.own)}
	}
	return h, x.call.addParameters(x.entry, h)
}

// For is the entry as a client of the revision can read it.
func (e Entry) For(version string) json.RawMessage {
	return translate.Tool(e.JSON, mcpspec.Version(version))
}
