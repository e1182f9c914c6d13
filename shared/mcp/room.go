package mcp

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/sse"
)

// Leases bound the open streams of a principal and of all instances;
// those of shared/stream/lease do.
type Leases interface {
	Take(ctx context.Context, p auth.Principal, superseded func()) (release func(), err error)
}

// reserve is what a stream leaves of its request's deadline: two seconds before
// it is too late to end a stream on Lambda.
const reserve = 5 * time.Second

// room finds room for a stream. The context that it returns is the stream's: it ends
// with the request, at the maximum age, when the caller's token expires, when a
// newer stream takes its place, and when the endpoint closes. Without room the request
// is answered and leave is nil.
func (e *Endpoint) room(w http.ResponseWriter, r *http.Request, p auth.Principal, id json.RawMessage) (ctx context.Context, leave func()) {
	out, ok := e.enter()
	if !ok {
		e.full(w, id)
		return nil, nil
	}
	age := e.options.MaxAge
	if deadline, ok := r.Context().Deadline(); ok {
		age = min(age, time.Until(deadline)-reserve)
	}
	if !p.Expires.IsZero() {
		age = min(age, time.Until(p.Expires))
	}
	aged, stop := context.WithTimeoutCause(r.Context(), age, errAge)
	ctx, cancel := context.WithCancelCause(aged)
	detach := context.AfterFunc(e.ending, func() { cancel(errEnding) })
	end := func() {
		detach()
		cancel(nil)
		stop()
		out()
	}
	if e.options.Leases == nil {
		return ctx, end
	}
	release, err := e.options.Leases.Take(ctx, p, func() { cancel(errSuperseded) })
	if err != nil {
		end()
		if !fault.Is(err, fault.Exhausted) {
			e.log(r.Context(), "a stream got no lease", err)
		}
		e.full(w, id)
		return nil, nil
	}
	return ctx, func() {
		e.tidy(release)
		end()
	}
}

// farewell is how long a client may take for what it is sent, once the endpoint closes:
// one that does not read must not use up the time of the others.
const farewell = time.Second

// writer begins a stream on the response. Call done when nothing more is written.
func (e *Endpoint) writer(w http.ResponseWriter) (out *sse.Writer, done func() bool) {
	out = sse.NewWriter(w, e.options.WriteTimeout)
	out.Start()
	return out, context.AfterFunc(e.ending, func() { out.Hurry(farewell) })
}

// tidy does what a stream leaves behind in the store, while it is counted in. At a
// shutdown its response does not wait for that, for on Lambda there is half a second
// until the process is killed; [Endpoint.Close] does.
func (e *Endpoint) tidy(f func()) {
	if e.ending.Err() == nil {
		f()
		return
	}
	e.streams.Go(f)
}

// enter counts a stream in, or reports that there is no room for it here.
func (e *Endpoint) enter() (leave func(), ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended || e.options.MaxStreams > 0 && e.open.Load() >= e.options.MaxStreams {
		return nil, false
	}
	e.open.Add(1)
	e.streams.Add(1)
	return func() {
		e.open.Add(-1)
		e.streams.Done()
	}, true
}

// full answers a stream that there is no room for.
func (e *Endpoint) full(w http.ResponseWriter, id json.RawMessage) {
	w.Header().Set("Retry-After", "5")
	e.fail(w, http.StatusServiceUnavailable, id, &jsonrpc.Error{
		Code: codeUnavailable, Message: "no more streams can be opened here now", Data: map[string]any{"limit": "streams"},
	})
}
