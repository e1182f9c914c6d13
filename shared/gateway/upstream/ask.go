package upstream

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"strconv"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// ErrAnswer reports that the backend answered with an error.
var ErrAnswer = errors.New("upstream: the backend answered with an error")

// ErrUnknownMethod reports that the backend answered that it does not know the method. It is an [ErrAnswer] too.
var ErrUnknownMethod = fmt.Errorf("%w: it does not know the method", ErrAnswer)

// Refused reports whether the backend answered, though not with what was asked for.
func Refused(err error) bool {
	_, ok := errors.AsType[*StatusError](err)
	return ok || errors.Is(err, ErrAnswer)
}

// FreshID is the id of a request that only its sender has to know. It
// survives readers of doubles.
func FreshID() json.RawMessage {
	n, _ := rand.Int(rand.Reader, big.NewInt(1<<53-1)) // never fails (Go 1.24)
	return n.Append(nil, 10)
}

// Known is what a backend says of itself.
type Known struct {
	Version      spec.Version
	Session      string          // that initialize began
	Capabilities json.RawMessage // as it sent them
}

// Ask makes a request on the gateway's own behalf, and returns the result. Of r it takes the
// revision and the session.
func (c *Client) Ask(ctx context.Context, r Request, method string, params json.RawMessage) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, c.AskTimeout)
	defer cancel()
	// Others may ask within the same session at the same time.
	r.Body = jsonrpc.AppendRequest(nil, FreshID(), method, params)
	if r.Version.Stateless() {
		r.Header = http.Header{spec.HeaderMethod: {method}}
	}
	x, err := c.Post(ctx, r)
	if err != nil {
		if _, ok := errors.AsType[*Garbage](err); ok && c.Dropped != nil {
			c.Dropped(ctx, NotJSON)
		}
		return nil, err
	}
	defer x.Close()
	return x.Result(ctx)
}

// Result waits for the result of a request; [ErrNoResponse] if the backend ends its answer without one.
// What else the backend has to say on the way is for no one.
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
			if string(code) == strconv.Itoa(jsonrpc.MethodNotFound) {
				cause = ErrUnknownMethod
			}
			return nil, fault.Wrap(fault.Unavailable, cause, "a backend answered with the error %s", code)
		default:
			x.Finish()
			return m.Result, nil
		}
	}
}

// Meta is params with what every request of a stateless revision has, and nothing else. The client has
// no capabilities: no one is there to be asked.
func (c *Client) Meta(version spec.Version) json.RawMessage {
	out := append([]byte(`{"_meta":{"`+spec.MetaVersion+`":`), jsonrpc.Quote(string(version))...)
	out = append(out, `,"`+spec.MetaCapabilities+`":{},"`+spec.MetaClient+`":`...)
	return append(append(out, c.Server...), `}}`...)
}

// Discover asks a backend of 2026-07-28 what it is.
func (c *Client) Discover(ctx context.Context) (k Known, err error) {
	const version = spec.V20260728
	result, err := c.Ask(ctx, Request{Version: version}, spec.MethodDiscover, c.Meta(version))
	if err != nil {
		return k, err
	}
	// It may answer in this revision and serve only others.
	for v := range jsonrpc.Elements(jsonrpc.Member(result, "supportedVersions")) {
		if text, _ := jsonrpc.String(v); text == string(version) {
			return Known{Version: version, Capabilities: jsonrpc.Member(result, "capabilities")}, nil
		}
	}
	return k, fault.Wrap(fault.Unavailable, ErrAnswer, "the backend does not serve %s", version)
}

// Declared is what initialize says of the client.
type Declared struct {
	Version            spec.Version
	Capabilities, Info json.RawMessage // nil is none, and what [Client] calls itself
}

// Initialize begins a session of the session-based revisions.
func (c *Client) Initialize(ctx context.Context, d Declared) (k Known, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.AskTimeout)
	defer cancel()
	if len(d.Capabilities) == 0 {
		d.Capabilities = json.RawMessage(`{}`)
	}
	if len(d.Info) == 0 {
		d.Info = c.Server
	}
	params, err := json.Marshal(map[string]json.RawMessage{
		"protocolVersion": jsonrpc.Quote(string(d.Version)), "capabilities": d.Capabilities, "clientInfo": d.Info,
	})
	if err != nil {
		return k, fault.Wrap(fault.Internal, err, "encode initialize")
	}
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
	k = Known{spec.Version(text), x.Session, jsonrpc.Member(result, "capabilities")}
	note := jsonrpc.AppendNotification(nil, spec.NoteInitialized, nil)
	if err := c.Send(ctx, Request{Body: note, Version: k.Version, Session: k.Session}); err != nil {
		// The session is not used. If it cannot be ended either, the backend forgets it.
		_ = c.End(context.WithoutCancel(ctx), k.Version, k.Session)
		return Known{}, err
	}
	return k, nil
}

// End ends a session, if there is one.
func (c *Client) End(ctx context.Context, version spec.Version, session string) error {
	if session == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.AskTimeout)
	defer cancel()
	x, err := c.do(ctx, http.MethodDelete, Request{Version: version, Session: session}, http.Header{})
	if err == nil {
		x.Close()
	}
	return err
}
