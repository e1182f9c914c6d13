package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"strconv"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// Call sends the client's request to the backend that serves the name, and relays the backend's messages up to the
// response. If Call returns an error, it has not sent a response to the client.
func (g *Gateway) Call(ctx context.Context, c api.Call) error {
	e, err := g.Find(ctx, c.Client, c.Kind, c.Name)
	if err != nil {
		return err
	}
	if jsonrpc.Repeats(c.Params) {
		// The backend might use the other one of the two members, which was not checked here.
		return fault.New(fault.Invalid, "params have a member twice")
	}
	ctx, cancel := context.WithTimeout(ctx, g.options.CallTimeout)
	defer cancel()
	info, err := e.View.LoadInfo(ctx)
	if info == nil {
		return err
	}
	x := &exchange{
		gateway: g, call: c, entry: e, info: info, client: e.View.Backend().ClientFor(c.Token), sessions: g.sessions,
		with: backendSession{Version: info.Version},
	}
	switch client, backend := c.Version.Stateless(), info.Version.Stateless(); {
	case client && backend:
		x.way = &statelessWay{x, g.states}
	case client:
		x.way = &roundsWay{x: x, states: g.states}
	case backend:
		x.way = &inputRoundsWay{x: x, elicitations: g.elicitations}
	default:
		x.way = &sessionWay{x: x, elicitations: g.elicitations}
	}
	if c.Version.Stateless() {
		if err := x.checkParameters(); err != nil {
			return err
		}
	}
	ctx, end := x.watch(ctx)
	defer end()
	err = x.way.make(ctx)
	if err != nil && !x.responded && x.endCause() != nil {
		return x.endCause()
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && fault.Is(err, fault.Unavailable) {
		public := fault.New(fault.Unavailable, "the call to backend %s timed out; it may still have taken effect", e.Backend)
		return errors.Join(public, err)
	}
	return err
}

// way makes a call and handles those of the backend's messages that differ between revisions. There are four
// implementations, one for each combination of a session-based or stateless client and backend: [sessionWay],
// [statelessWay], [roundsWay] and [inputRoundsWay].
type way interface {
	// make sends the call to the backend, several times if needed, until the client has a response or an error occurs.
	make(ctx context.Context) error
	// elicit handles a request of the backend. It asks the client immediately, asks it in the response, answers the backend
	// itself, or drops the request.
	elicit(ctx context.Context, m upstream.Message) error
	// withdraw handles the backend's cancellation of its own request with the given id.
	withdraw(ctx context.Context, id json.RawMessage, m upstream.Message) error
	// respond handles the response, whose id is already the client's. It sends the response to the client, translated to the
	// client's revision, unless the backend demands input that make can supply.
	respond(m upstream.Message) error
}

// requestID returns the id under which the backend gets the client's request. It is a hash of the client's session and
// id, so that any instance can compute it again to cancel the request. It has 52 bits, so that it
// survives backends that parse numbers as doubles.
func requestID(c api.Client, id json.RawMessage) json.RawMessage {
	h := sha256.Sum256([]byte(c.Session + "\x00" + string(id)))
	return strconv.AppendUint(nil, binary.BigEndian.Uint64(h[:8])>>12, 10)
}
