package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/backends"
	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// params returns the call's params with the backend's own name or task id instead of the one that the client uses.
func (x *exchange) params() json.RawMessage {
	switch {
	case x.task != nil:
		return jsonrpc.Replace(x.call.Params, x.call.Member, x.task)
	case x.call.Params == nil:
		return json.RawMessage(`{}`)
	case x.call.Member == "":
		return x.call.Params
	}
	own := jsonrpc.Quote(x.entry.Own)
	if x.call.Member == "ref" {
		own = jsonrpc.Replace(jsonrpc.Member(x.call.Params, "ref"), "name", own)
	}
	return jsonrpc.Replace(x.call.Params, x.call.Member, own)
}

// mirrorHeaders returns the headers that repeat the call's method and name, as 2026-07-28 requires.
func (x *exchange) mirrorHeaders() http.Header {
	h := http.Header{spec.HeaderMethod: {x.call.Method}}
	if _, named := spec.Mirrored[x.call.Method]; named {
		h[spec.HeaderName] = []string{spec.EncodeHeader(x.entry.Own)}
	}
	return h
}

func (x *exchange) headerParameters() ([]translate.Parameter, error) {
	if x.call.Method != spec.MethodToolsCall {
		return nil, nil
	}
	return translate.Parameters(x.entry.JSON)
}

// checkParameters returns an error unless the headers of a client's request repeat the tool's arguments correctly.
func (x *exchange) checkParameters() error {
	list, err := x.headerParameters()
	if err != nil {
		return nil // the tool's definition is invalid, so the gateway cannot check the headers and leaves that to the backend
	}
	arguments := jsonrpc.Member(x.call.Params, "arguments")
	for _, p := range list {
		want, expected := p.Text(arguments)
		values := x.call.Header[p.Header]
		if !expected && len(values) == 0 {
			continue
		}
		if !expected || len(values) != 1 || !p.Equal(values[0], want) {
			return &jsonrpc.Error{Code: spec.CodeHeaderMismatch, Message: "Header mismatch: " + p.Header + " does not repeat its argument"}
		}
	}
	return nil
}

func (x *exchange) addParameters(h http.Header) error {
	list, err := x.headerParameters()
	if err != nil {
		return err
	}
	arguments := jsonrpc.Member(x.call.Params, "arguments")
	for _, p := range list {
		if text, ok := p.Text(arguments); ok {
			h[p.Header] = []string{spec.EncodeHeader(text)}
		}
	}
	return nil
}

// Reasons for dropping a backend's message within a call; see [backends.Backend.CountDrop].
const (
	dropOther      = "it answers another request"
	dropProgress   = "it is the progress of another request"
	dropOutOfPlace = "its method does not belong into a call" // also the reason for any request from a backend of 2026-07-28
)

// passThrough has the notifications that a backend may send within a call, in addition to its extensions' notifications.
var passThrough = map[string]bool{spec.NoteProgress: true, spec.NoteMessage: true, spec.NoteElicited: true, spec.NoteTaskStatus: true}

// adaptNotification returns a notification in the form that the client expects. It returns false if the client did not ask for the
// notification, or if the client's revision does not have it.
func (x *exchange) adaptNotification(m upstream.Message) (upstream.Message, bool) {
	params := jsonrpc.Member(m.Raw, "params")
	switch {
	case m.Method == spec.NoteProgress:
		return x.adaptProgress(m, params)
	case !x.call.Version.Stateless() || !passThrough[m.Method]:
		return m, true
	case m.Method == spec.NoteMessage:
		level, _ := jsonrpc.String(jsonrpc.Member(params, "level"))
		return m, x.call.Level != "" && spec.SevereAs(level, x.call.Level)
	}
	return m, x.with.Version.Stateless()
}

// adaptProgress puts the client's own progress token, byte for byte, into a progress notification. It returns false for a notification
// with an unknown token, which does not belong to this call. It also returns false if the client got as much progress in an earlier
// round.
func (x *exchange) adaptProgress(m upstream.Message, params json.RawMessage) (upstream.Message, bool) {
	if !x.ownsProgress(params) {
		x.backend().CountDrop(context.Background(), dropProgress)
		return m, false
	}
	own, got := x.progressToken(), jsonrpc.Member(params, "progressToken")
	value, err := strconv.ParseFloat(string(jsonrpc.Member(params, "progress")), 64)
	if err == nil && value <= x.floor {
		// In the specification, progress "MUST increase with each notification", but a repeated call reports progress from the beginning.
		return m, false
	}
	x.progress = max(x.progress, value)
	if string(got) != string(own) {
		m.Raw = jsonrpc.Replace(m.Raw, "params", jsonrpc.Replace(params, "progressToken", own))
	}
	return m, true
}

func (x *exchange) progressToken() json.RawMessage {
	return jsonrpc.Member(jsonrpc.Member(x.call.Params, "_meta"), "progressToken")
}

func (x *exchange) ownsProgress(params json.RawMessage) bool {
	own := x.progressToken()
	sent := own
	if x.token != nil {
		sent = x.token
	}
	return own != nil && jsonrpc.SameID(jsonrpc.Member(params, "progressToken"), sent)
}

// translateResponse returns the response in the form of the client's revision. For an error, it also returns the backend's error code.
func (x *exchange) translateResponse(m upstream.Message) (response json.RawMessage, code int) {
	between := translate.Revisions{Client: x.call.Version, Backend: x.with.Version}
	if m.Result == nil {
		return between.Error(x.call.Method, m.Raw)
	}
	return jsonrpc.Replace(m.Raw, "result", x.addServer(between.Result(x.call.Method, m.Result))), 0
}

// addServer adds the gateway as the server to a result for a client of 2026-07-28, unless the result names the backend.
func (x *exchange) addServer(result json.RawMessage) json.RawMessage {
	if !x.call.Version.Stateless() {
		return result
	}
	return translate.AddServer(result, x.gateway.options.Server)
}

// isOutdated reports whether the error in a response suggests that the backend's version or lists have changed, for example because the
// server was upgraded or rolled back.
func (x *exchange) isOutdated(m upstream.Message) bool {
	code := string(jsonrpc.Member(m.Error, "code"))
	return code == strconv.Itoa(spec.CodeUnsupportedVersion) || code == strconv.Itoa(spec.CodeHeaderMismatch) && x.with.Version.Stateless()
}

func (x *exchange) sendFromStateless(m upstream.Message) error {
	if err := x.adaptTask(&m); err != nil {
		return err
	}
	response, _ := x.translateResponse(m)
	return x.send(response, true)
}

// send sends a message to the client, and records whether the client has its response or has disconnected.
func (x *exchange) send(message json.RawMessage, response bool) error {
	err := x.call.Send(message, response)
	x.responded = x.responded || response
	x.gone = x.gone || err != nil
	return err
}

func (x *exchange) refuse(ctx context.Context, m upstream.Message, code int, why string) error {
	return x.reply(ctx, jsonrpc.AppendError(nil, m.ID, &jsonrpc.Error{Code: code, Message: why}))
}

func (x *exchange) reply(ctx context.Context, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, x.client.AskTimeout)
	defer cancel()
	if err := x.client.Send(ctx, x.with.request(body)); err != nil {
		return x.callError(err)
	}
	return nil
}

func (x *exchange) backend() *backends.Backend { return x.entry.View.Backend() }

// stateBinding returns the data to which a requestState is bound: the principal, the method, the name, and all params that stay the same
// between rounds. So a client cannot use the requestState for another request.
func (x *exchange) stateBinding() []byte {
	digest := translate.Digest(jsonrpc.Without(x.call.Params, func(name string) bool {
		return name == "_meta" || name == "inputResponses" || name == "requestState"
	}))
	p := x.call.Principal
	b, _ := json.Marshal([]string{p.Workspace, p.ID, x.call.Method, x.entry.Backend, x.entry.Own, digest}) // cannot fail: these are strings
	return b
}

// unsentError returns the part of err that explains why a request was not sent, or nil if the request may have been sent. The client may
// see this part.
func unsentError(err error) error {
	if unsent, ok := errors.AsType[*upstream.UnsentError](err); ok {
		return unsent
	}
	return nil
}

// callError returns the error of a failed call. If the request may have been sent, the client learns only that the call may have taken
// effect, and the cause is for the log. Otherwise the client learns why the request was not sent.
func (x *exchange) callError(err error) error {
	if lacks := unsentError(err); lacks != nil {
		return lacks
	}
	public := fault.New(fault.Unavailable, "backend %s failed; the call may still have taken effect", x.entry.Backend)
	if x.call.Kind.Prefixed() { // a URI may contain data that must not be logged
		err = fmt.Errorf("%s %s: %w", x.call.Method, x.entry.Own, err)
	}
	return errors.Join(public, err)
}

// NotifyExtension forwards a client's notification to the backend that declares the notification's extension, if there is one.
func (g *Gateway) NotifyExtension(ctx context.Context, c api.Client, method string, params json.RawMessage) error {
	e, err := g.Find(ctx, c, api.Extensions, method)
	switch {
	case fault.Is(err, fault.Invalid):
		return nil
	case err != nil:
		return err
	case params == nil:
		params = json.RawMessage(`{}`)
	case jsonrpc.HasRepeatedMember(params): // the gateway checks only one of the two members, and the backend might read the other one
		return fault.New(fault.Invalid, "params have a member twice, or more than %d members", jsonrpc.MaxComparedMembers)
	}
	ctx, cancel := context.WithTimeout(ctx, notifyTime)
	defer cancel()
	info, err := e.View.LoadInfo(ctx)
	if info == nil {
		return err
	}
	b := e.View.Backend()
	client, r := b.ClientFor(c.Token), upstream.Request{Version: info.Version}
	switch {
	case !info.Version.Stateless():
		s, _, err := g.sessions.getOrBegin(ctx, c, b, false)
		if err != nil {
			return err
		}
		if r.Version, r.Session = s.Version, s.ID; c.Version.Stateless() {
			params, _ = translate.ToSessionBased(params, nil)
		}
	case !c.Version.Stateless():
		params = translate.ToStateless(params, info.Version, describeClient(c, client))
	}
	if info.Version.Stateless() {
		r.Header = http.Header{spec.HeaderMethod: {method}}
	}
	r.Body = jsonrpc.AppendNotification(nil, method, params)
	return fault.Wrap(fault.Unavailable, client.Send(ctx, r), "send a notification to backend %s", b.Name)
}
