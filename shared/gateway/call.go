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

// Call finds the backend of what is called and hands its messages on until the
// response. An error is returned only when nothing was sent that answers the request.
func (g *Gateway) Call(ctx context.Context, c api.Call) error {
	e, ok := g.lists.serves(ctx, g.backends.shown(ctx, c.Client), c.Kind, c.Name)
	if !ok {
		return unknown(c.Kind.String(), c.Name)
	}
	if jsonrpc.Repeats(c.Params) {
		// The backend might read another one than is checked here.
		return fault.New(fault.Invalid, "params have a member twice")
	}
	ctx, cancel := context.WithTimeout(ctx, g.options.CallTimeout)
	defer cancel()
	known, err := e.view.known(ctx)
	if known == nil {
		return err
	}
	x := &exchange{
		gateway: g, call: c, entry: e, known: known, client: e.view.of.caller(c.Token), sessions: g.sessions,
		with: backendSession{Version: known.version},
	}
	switch client, backend := c.Version.Stateless(), known.version.Stateless(); {
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
	if err != nil && !x.responded && x.ended() != nil {
		return x.ended()
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && fault.Is(err, fault.Unavailable) { // whatever was under way
		public := fault.New(fault.Unavailable, "the call to backend %s took longer than it may; whether it did what it was asked is not known", e.Backend)
		return errors.Join(public, err)
	}
	return err
}

// way is how a call is made, and what is done with that of its answer which is not the same in all revisions.
// There are four, by the revisions of the client and the backend: [sessionWay], [statelessWay], [roundsWay]
// and [inputRoundsWay].
type way interface {
	// make puts the call to the backend, as often as it takes, until the client has its response or an error is returned.
	make(ctx context.Context) error
	// elicit takes a request of the backend: it puts it to the client, at once or in the response, answers it here, or drops it.
	elicit(ctx context.Context, m upstream.Message) error
	// withdraw handles that the backend cancels its request of that id.
	withdraw(ctx context.Context, id json.RawMessage, m upstream.Message) error
	// respond takes the response, which has the client's own id. It hands it on in the form of the client's revision, unless
	// it demands what make supplies.
	respond(m upstream.Message) error
}

// requestID is the id of a client's request at the backend. It is made of the client's own, so
// that any instance knows it when the request is cancelled, and small enough to survive a backend that
// reads numbers as doubles.
func requestID(c api.Client, id json.RawMessage) json.RawMessage {
	h := sha256.Sum256([]byte(c.Session + "\x00" + string(id)))
	return strconv.AppendUint(nil, binary.BigEndian.Uint64(h[:8])>>12, 10)
}
