package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// ErrAnswer reports that the backend answered with an error.
var ErrAnswer = errors.New("upstream: the backend answered with an error")

// ErrUnknownMethod reports that the backend does not know the method of the request. It wraps [ErrAnswer].
var ErrUnknownMethod = fmt.Errorf("%w: it does not know the method", ErrAnswer)

// StatusOf returns the status of a [StatusError] in err, or 0 if err does not contain one.
func StatusOf(err error) int {
	if status, ok := errors.AsType[*StatusError](err); ok {
		return status.Status
	}
	return 0
}

// IsRefused reports whether the backend answered with an error or an HTTP error status instead of a result.
func IsRefused(err error) bool { return StatusOf(err) != 0 || errors.Is(err, ErrAnswer) }

// ErrVersion reports that the backend does not serve the protocol version of the request. It wraps [ErrAnswer].
var ErrVersion = fmt.Errorf("%w: it does not serve the protocol version", ErrAnswer)

// MayRefuseRevision reports whether err may mean that the backend does not speak the revision of the request. Only 2026-07-28 has an
// error code for that. Servers of earlier revisions refuse requests of 2026-07-28 with many codes and texts, because these requests have
// no session.
func MayRefuseRevision(err error) bool {
	switch StatusOf(err) {
	case 0:
		return errors.Is(err, ErrAnswer)
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed:
		return true
	}
	return false
}

// FreshID returns a random id for one of the gateway's own requests. It is below 2^53, because some backends parse numbers as doubles.
func FreshID() json.RawMessage {
	return strconv.AppendUint(nil, rand.Uint64()>>11, 10)
}

// Known is a backend's description of itself, from its answer to server/discover or initialize.
type Known struct {
	Version      spec.Version
	Session      string          // the session that initialize began, or empty
	Capabilities json.RawMessage // the JSON that the backend sent
	Instructions string          // how to use the backend, for a model
}

func newKnown(version spec.Version, session string, result json.RawMessage) Known {
	instructions, _ := jsonrpc.String(jsonrpc.Member(result, "instructions"))
	return Known{version, session, jsonrpc.Member(result, "capabilities"), instructions}
}

// Ask sends one of the gateway's own requests and returns the result. It sets the body of r and, in 2026-07-28, the method header.
func (c *Client) Ask(ctx context.Context, r Request, method string, params json.RawMessage) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, c.AskTimeout)
	defer cancel()
	// The id is random because other requests may run in the same session.
	r.Body = jsonrpc.AppendRequest(nil, FreshID(), method, params)
	if r.Version.Stateless() {
		if r.Header == nil {
			r.Header = http.Header{}
		}
		r.Header[spec.HeaderMethod] = []string{method}
	}
	x, err := c.Post(ctx, r)
	if err != nil {
		if _, ok := errors.AsType[*malformedError](err); ok && c.Dropped != nil {
			c.Dropped(ctx, NotJSON)
		}
		return nil, err
	}
	defer x.Close()
	return x.Result(ctx)
}

// Result waits for the result of a request and ignores all other messages. It returns [ErrNoResponse] if the backend ends its answer
// without a response.
func (x *Exchange) Result(ctx context.Context) (json.RawMessage, error) {
	for {
		m, err := x.Next(ctx)
		switch {
		case err == io.EOF:
			return nil, fault.Wrap(fault.Unavailable, ErrNoResponse, "wait for a backend's answer")
		case err != nil:
			return nil, fault.Wrap(fault.Unavailable, err, "wait for a backend's answer")
		case !m.Response():
		case m.Error != nil:
			x.Finish()
			code, cause := jsonrpc.Member(m.Error, "code"), ErrAnswer
			switch string(code) {
			case strconv.Itoa(jsonrpc.MethodNotFound):
				cause = ErrUnknownMethod
			case strconv.Itoa(spec.CodeUnsupportedVersion):
				cause = ErrVersion
			}
			return nil, fault.Wrap(fault.Unavailable, cause, "a backend answered with the error %s", code)
		default:
			x.Finish()
			return m.Result, nil
		}
	}
}

// MetaParams returns params that contain only the _meta members that every request of a stateless revision needs. It declares no client
// capabilities, because there is no user whom the backend could ask.
func (c *Client) MetaParams(version spec.Version) json.RawMessage {
	return c.metaParams(version, json.RawMessage(`{}`))
}

// ListParams returns the params of a request for a list, which declare [ListCapabilities].
func (c *Client) ListParams(version spec.Version) json.RawMessage {
	return c.metaParams(version, ListCapabilities)
}

// ListCapabilities are the client capabilities that the gateway declares to read lists. Some servers list a tool that asks questions only
// for clients that can answer them. ListCapabilities does not contain roots, because some servers ask for the roots before they answer
// any request, and the gateway cannot answer that.
var ListCapabilities = json.RawMessage(`{"elicitation":{"form":{},"url":{}},"sampling":{"context":{},"tools":{}}}`)

func (c *Client) metaParams(version spec.Version, capabilities json.RawMessage) json.RawMessage {
	out := append([]byte(`{"_meta":{"`+spec.MetaVersion+`":`), jsonrpc.Quote(string(version))...)
	out = append(append(out, `,"`+spec.MetaCapabilities+`":`...), capabilities...)
	out = append(out, `,"`+spec.MetaClient+`":`...)
	return append(append(out, c.Server...), `}}`...)
}

// Discover asks a backend of 2026-07-28 for its protocol versions and capabilities.
func (c *Client) Discover(ctx context.Context) (k Known, err error) {
	const version = spec.V20260728
	result, err := c.Ask(ctx, Request{Version: version}, spec.MethodDiscover, c.MetaParams(version))
	if err != nil {
		return k, err
	}
	// A backend may answer server/discover although it does not support 2026-07-28, so look for that revision in the answer.
	for v := range jsonrpc.Elements(jsonrpc.Member(result, "supportedVersions")) {
		if text, _ := jsonrpc.String(v); text == string(version) {
			return newKnown(version, "", result), nil
		}
	}
	return k, fault.Wrap(fault.Unavailable, ErrAnswer, "the backend does not serve %s", version)
}

// Declared is the client's description of itself in initialize.
type Declared struct {
	Version            spec.Version
	Capabilities, Info json.RawMessage // if nil, there are no capabilities, and Info is [Client.Server]
	Holder             string          // the session's principal, or empty for the gateway itself
	// AnswersLate is set if the client can still answer a question after the call that carried the question has ended.
	AnswersLate bool
}

type declaredKey struct{}

// DeclaredIn returns the description that [Client.Initialize] has put into the context of its HTTP request. Package stdio needs the
// description, because it starts a process for each session.
func DeclaredIn(ctx context.Context) Declared {
	d, _ := ctx.Value(declaredKey{}).(Declared)
	return d
}

// Initialize begins a session with a backend that speaks a session-based revision.
func (c *Client) Initialize(ctx context.Context, d Declared) (k Known, err error) {
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, declaredKey{}, d), c.AskTimeout)
	defer cancel()
	if len(d.Capabilities) == 0 {
		d.Capabilities = json.RawMessage(`{}`)
	}
	if len(d.Info) == 0 {
		d.Info = c.Server
	}
	params := jsonrpc.Encode(map[string]json.RawMessage{
		"protocolVersion": jsonrpc.Quote(string(d.Version)), "capabilities": d.Capabilities, "clientInfo": d.Info,
	})
	x, err := c.Post(ctx, Request{Body: jsonrpc.AppendRequest(nil, json.RawMessage(`0`), spec.MethodInitialize, params)})
	if err != nil {
		return k, err
	}
	defer x.Close()
	result, err := x.Result(ctx)
	if err != nil {
		return k, err
	}
	text, ok := jsonrpc.String(jsonrpc.Member(result, "protocolVersion"))
	if version := spec.Version(text); !ok || version < spec.V20250326 || version.Stateless() {
		return k, fault.New(fault.Unavailable, "the backend answers initialize with the revision %.40q", text)
	}
	k = newKnown(spec.Version(text), x.Session, result)
	note := jsonrpc.AppendNotification(nil, spec.NoteInitialized, nil)
	if err := c.Send(ctx, Request{Body: note, Version: k.Version, Session: k.Session}); err != nil {
		// The session will not be used. If End fails, the backend lets the session expire.
		_ = c.End(context.WithoutCancel(ctx), k.Version, k.Session)
		return Known{}, err
	}
	return k, nil
}

// End ends a session at the backend. It does nothing if the session's id is empty.
func (c *Client) End(ctx context.Context, version spec.Version, session string) error {
	if session == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.AskTimeout)
	defer cancel()
	return c.checkStatus(ctx, http.MethodDelete, Request{Version: version, Session: session}, http.Header{})
}
