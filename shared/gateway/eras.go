package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
)

// Clients and backends need not be of one era. Between the revisions with sessions
// (up to 2025-11-25) and 2026-07-28 this changes on the way:
//
//	                     client 2026, backend 2025     client 2025, backend 2026
//	requests             _meta of the era goes         _meta and headers of the era come
//	what a backend asks  rounds.go                     inputs.go
//	results              resultType, caching come      resultType goes
//	errors               -32002, -32042 are mapped     -32020 to -32022, -32602 are mapped
//
// All else is the bytes that came.

// metaOfRequests are the members of _meta that only 2026-07-28 has.
var metaOfRequests = []string{mcpspec.MetaVersion, mcpspec.MetaCapabilities, mcpspec.MetaClient, mcpspec.MetaLogLevel}

// multiRound are the methods that 2026-07-28 lets ask for input.
var multiRound = map[string]bool{mcpspec.MethodToolsCall: true, mcpspec.MethodPromptsGet: true, mcpspec.MethodRead: true}

// need is a capability of a client, such as "elicitation.url"; empty for none.
type need string

// lacking is what a client would have to declare to be asked this, if it did not. A method
// that no client knows is lacking itself.
func lacking(capabilities json.RawMessage, method string, params json.RawMessage) need {
	switch method {
	case mcpspec.MethodRoots:
		return undeclared(capabilities, "roots")
	case mcpspec.MethodSample:
		if jsonrpc.Member(params, "tools") != nil || jsonrpc.Member(params, "toolChoice") != nil {
			return undeclared(capabilities, "sampling.tools")
		}
		return undeclared(capabilities, "sampling")
	case mcpspec.MethodElicit:
		if mode, _ := jsonrpc.String(jsonrpc.Member(params, "mode")); mode == "url" {
			return undeclared(capabilities, "elicitation.url")
		}
		// Without a mode, the capability means forms (2025-11-25, Elicitation).
		if undeclared(capabilities, "elicitation.url") == "" {
			return undeclared(capabilities, "elicitation.form")
		}
		return undeclared(capabilities, "elicitation")
	}
	return need(method)
}

func undeclared(capabilities json.RawMessage, n need) need {
	at := capabilities
	for part := range strings.SplitSeq(string(n), ".") {
		if at = jsonrpc.Member(at, part); at == nil {
			return n
		}
	}
	return ""
}

// missing is the error of a call that needs more of a client than it declared.
func missing(backend string, needs []need) *jsonrpc.Error {
	required := map[string]map[string]struct{}{}
	for _, n := range needs {
		if strings.Contains(string(n), "/") {
			continue // no client can declare it
		}
		name, mode, deeper := strings.Cut(string(n), ".")
		if required[name] == nil {
			required[name] = map[string]struct{}{}
		}
		if deeper {
			required[name][mode] = struct{}{}
		}
	}
	return &jsonrpc.Error{
		Code: mcpspec.CodeMissingCapability, Message: "backend " + backend + " asks for what the client does not declare",
		Data: map[string]any{"requiredCapabilities": required},
	}
}

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
	if own == nil || !sameToken(got, sent) {
		x.backend.dropped(context.Background(), dropProgress)
		return m, false
	}
	if string(got) != string(own) {
		m.Raw = upstream.Replace(m.Raw, "params", upstream.Replace(params, "progressToken", own))
	}
	return m, true
}

// sameToken reports whether a progress token is the one that was sent, though the backend may write
// it in another way: other escapes, or a number as a double.
func sameToken(got, sent json.RawMessage) bool {
	if string(got) == string(sent) {
		return true
	}
	if len(got) == 0 || len(got) > jsonrpc.MaxID {
		return false
	}
	if text, ok := jsonrpc.String(got); ok {
		same, ok := jsonrpc.String(sent)
		return ok && same == text
	}
	one, err := strconv.ParseFloat(string(got), 64)
	other, err2 := strconv.ParseFloat(string(sent), 64)
	return err == nil && err2 == nil && one == other
}

// respond hands the response on, under the client's own id and in the form of its era.
func (x *exchange) respond(m upstream.Message) error {
	raw := upstream.Replace(m.Raw, "id", x.call.ID)
	switch {
	case m.Result == nil:
		return x.respondError(raw, m.Error)
	case m.Result[0] != '{':
		return x.send(raw, true)
	case !x.call.stateless() && !stateless(x.with.Version):
		return x.send(raw, true)
	case !x.call.stateless():
		return x.respondLegacy(raw, m.Result)
	case !stateless(x.with.Version):
		return x.respondModern(raw, m.Result)
	}
	result := m.Result
	if lacks := demanded(x.call.Capabilities, result); len(lacks) > 0 {
		return missing(x.backend.Name, lacks)
	}
	if state := jsonrpc.Member(result, "requestState"); state != nil {
		text, ok := jsonrpc.String(state)
		if !ok {
			return x.failed(errors.New("gateway: the requestState is no string"))
		}
		result = upstream.Replace(result, "requestState", quote(x.gateway.states.seal([]byte(text), x.belongs(), time.Now())))
	}
	if jsonrpc.Member(result, "resultType") == nil {
		result = insert(result, "resultType", json.RawMessage(`"complete"`))
	}
	return x.send(upstream.Replace(raw, "result", result), true)
}

// demanded is what the client would have to declare to be asked what a result asks for.
func demanded(capabilities, result json.RawMessage) []need {
	var lacks []need
	for _, request := range jsonrpc.Members(jsonrpc.Member(result, "inputRequests")) {
		method, _ := jsonrpc.String(jsonrpc.Member(request, "method"))
		if n := lacking(capabilities, method, jsonrpc.Member(request, "params")); n != "" && !slices.Contains(lacks, n) {
			lacks = append(lacks, n)
		}
	}
	return lacks
}

// respondModern gives the result of a backend with sessions what 2026-07-28 demands of it.
func (x *exchange) respondModern(raw, result json.RawMessage) error {
	if len(x.refused) > 0 && string(jsonrpc.Member(result, "isError")) == "true" {
		return missing(x.backend.Name, x.refused)
	}
	result = upstream.Without(result, func(name string) bool { return name == "resultType" })
	if x.call.Method == mcpspec.MethodRead && jsonrpc.Member(result, "ttlMs") == nil {
		result = upstream.Without(result, func(name string) bool { return name == "cacheScope" || name == "ttlMs" })
		result = insert(insert(result, "cacheScope", json.RawMessage(`"private"`)), "ttlMs", json.RawMessage(`0`))
	}
	return x.send(upstream.Replace(raw, "result", insert(result, "resultType", json.RawMessage(`"complete"`))), true)
}

// respondLegacy takes off a result what only 2026-07-28 has. A demand for input is
// kept for the next round.
func (x *exchange) respondLegacy(raw, result json.RawMessage) error {
	if kind, _ := jsonrpc.String(jsonrpc.Member(result, "resultType")); kind == "input_required" {
		x.input = result
		return nil
	}
	structured := jsonrpc.Member(result, "structuredContent")
	result = upstream.Without(result, func(name string) bool {
		// Up to 2025-11-25 it is an object; the content says the same in text.
		return name == "resultType" || name == "structuredContent" && structured != nil && structured[0] != '{'
	})
	return x.send(upstream.Replace(raw, "result", result), true)
}

// respondError hands an error on, with a code that the client's revision has.
func (x *exchange) respondError(raw, failure json.RawMessage) error {
	var code int
	_ = json.Unmarshal(jsonrpc.Member(failure, "code"), &code) // 0 is none of these
	to := code
	switch {
	case x.call.stateless():
		if len(x.refused) > 0 {
			return missing(x.backend.Name, x.refused)
		}
		switch {
		case code == mcpspec.CodeNeedsURL && !stateless(x.with.Version):
			return x.needsURL(failure)
		case code == mcpspec.CodeNeedsURL:
			to = jsonrpc.InternalError
		case code == mcpspec.CodeResourceNotFound:
			to = jsonrpc.InvalidParams
		}
	case stateless(x.with.Version):
		switch code {
		case jsonrpc.InvalidParams:
			if x.call.Method == mcpspec.MethodRead && jsonrpc.Member(jsonrpc.Member(failure, "data"), "uri") != nil {
				to = mcpspec.CodeResourceNotFound
			}
		case mcpspec.CodeMissingCapability:
			to = jsonrpc.InvalidRequest
		case mcpspec.CodeHeaderMismatch, mcpspec.CodeUnsupportedVersion:
			// Not the client's doing: what was known of the backend is no longer so.
			x.backend.as(context.Background(), x.call.Client).outdate()
			to = jsonrpc.InternalError
		}
	}
	if to != code {
		raw = upstream.Replace(raw, "error", upstream.Replace(failure, "code", strconv.AppendInt(nil, int64(to), 10)))
	}
	return x.send(raw, true)
}

// legacyParams are params as a backend with sessions knows them. The progress token becomes
// one of our own, since several clients may share the session.
func (x *exchange) legacyParams() json.RawMessage {
	params := upstream.Without(x.named(x.call.Params), func(name string) bool {
		return name == "inputResponses" || name == "requestState"
	})
	meta := jsonrpc.Member(params, "_meta")
	if jsonrpc.Member(meta, "progressToken") != nil {
		x.token = quote("gw_" + string(x.id))
		meta = upstream.Replace(meta, "progressToken", x.token)
	}
	meta = upstream.Without(meta, func(name string) bool { return slices.Contains(metaOfRequests, name) })
	return upstream.Replace(params, "_meta", meta)
}

// modernParams are params as a backend of 2026-07-28 wants them.
func (x *exchange) modernParams() json.RawMessage {
	params := x.named(x.call.Params)
	meta := upstream.Without(jsonrpc.Member(params, "_meta"), func(name string) bool { return slices.Contains(metaOfRequests, name) })
	if x.call.Level != "" {
		meta = insert(meta, mcpspec.MetaLogLevel, quote(x.call.Level))
	}
	info := x.call.Info
	if len(info) == 0 {
		info = x.gateway.options.Server
	}
	declared := x.call.Capabilities
	if len(declared) == 0 {
		declared = json.RawMessage(`{}`)
	}
	meta = insert(insert(insert(meta, mcpspec.MetaClient, info), mcpspec.MetaCapabilities, declared), mcpspec.MetaVersion, quote(x.with.Version))
	params = upstream.Without(params, func(name string) bool { return name == "_meta" })
	return insert(params, "_meta", meta)
}

// modernHeader repeats what a request of 2026-07-28 has to repeat in headers.
func (x *exchange) modernHeader() (http.Header, error) {
	h := http.Header{mcpspec.HeaderMethod: {x.call.Method}}
	if x.call.Member != "ref" {
		h[mcpspec.HeaderName] = []string{mcpspec.EncodeHeader(x.own)}
	}
	return h, x.addParameters(h)
}

// For is the entry as a client of the revision can read it. Up to 2025-11-25 the output of a
// tool is an object, and client libraries refuse the whole list for one that is not.
func (e Entry) For(version string) json.RawMessage {
	output := jsonrpc.Member(e.JSON, "outputSchema")
	if output == nil || stateless(version) {
		return e.JSON
	}
	if kind, _ := jsonrpc.String(jsonrpc.Member(output, "type")); kind == "object" {
		return e.JSON
	}
	return upstream.Without(e.JSON, func(name string) bool { return name == "outputSchema" })
}
