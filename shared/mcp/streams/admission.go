package streams

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// Leases limit the number of open streams of each principal, and the total number of open streams of all principals at all instances.
// Package shared/events/stream/lease implements Leases.
//
// Take reserves a lease for a new stream, or returns an error if no further stream can be opened now. If a newer stream later gets this
// lease, Leases call the function superseded, which ends the stream. The caller calls release when the stream has ended.
type Leases interface {
	Take(ctx context.Context, p auth.Principal, superseded func()) (release func(), err error)
}

// reserve is the time between the end of a stream and the deadline of its request. On Lambda, ending a stream takes up to three
// seconds; the other two are a margin.
const reserve = 5 * time.Second

// Admission admits, counts and ends streams.
type Admission struct {
	maxAge, writeTimeout time.Duration
	leases               Leases
	faults               method.Faults

	mu      sync.Mutex // guards end, so that no stream is added to streams while Close waits for them
	ending  context.Context
	end     context.CancelCauseFunc
	streams sync.WaitGroup
	open    atomic.Int64
}

// NewAdmission returns an Admission. Nil leases do not limit the number of streams.
func NewAdmission(maxAge, writeTimeout time.Duration, leases Leases, f method.Faults) *Admission {
	a := &Admission{maxAge: maxAge, writeTimeout: writeTimeout, leases: leases, faults: f}
	a.ending, a.end = context.WithCancelCause(context.Background())
	return a
}

// Count returns the number of open streams.
func (a *Admission) Count() int64 { return a.open.Load() }

// Close ends every stream. It waits until the streams have ended and cleaned up in the store, or until ctx ends.
func (a *Admission) Close(ctx context.Context) error {
	a.mu.Lock()
	a.end(errEnding)
	a.mu.Unlock()
	return fault.Wrap(fault.Unavailable, periodic.Wait(ctx, &a.streams), "wait for the open streams to end")
}

// Admit admits a stream and returns its context. The context ends with the request, at the maximum age, when the caller's token expires,
// when a newer stream replaces this one, or when the endpoint closes. The caller calls leave when the stream has ended.
//
// If no further stream can be opened now, Admit answers the request itself and returns a nil leave.
func (a *Admission) Admit(w http.ResponseWriter, r *http.Request, c *method.Call) (ctx context.Context, leave func()) {
	out, ok := a.enter()
	if !ok {
		a.faults.Metrics.LimitReached(quota.Streams)
		answerFull(w, c.Msg.ID)
		return nil, nil
	}
	age, aged := a.maxAge, errAge
	if deadline, ok := r.Context().Deadline(); ok {
		age = min(age, time.Until(deadline)-reserve)
	}
	if !c.Principal.Expires.IsZero() {
		if left := time.Until(c.Principal.Expires); left < age {
			age, aged = left, errExpired
		}
	}
	timed, stop := context.WithTimeoutCause(r.Context(), age, aged)
	ctx, cancel := context.WithCancelCause(timed)
	detach := context.AfterFunc(a.ending, func() { cancel(errEnding) })
	end := func() {
		detach()
		cancel(nil)
		stop()
		out()
	}
	if a.leases == nil {
		return ctx, end
	}
	release, err := a.leases.Take(ctx, c.Principal, func() {
		a.faults.Metrics.LimitReached(quota.Streams)
		cancel(errSuperseded)
	})
	if err != nil {
		end()
		a.faults.Metrics.LimitReached(fault.LimitOf(err))
		if fault.LimitOf(err) == "" {
			a.faults.LogError(r.Context(), "stream lease failed", err)
		}
		answerFull(w, c.Msg.ID)
		return nil, nil
	}
	return ctx, func() {
		a.cleanUp(release)
		end()
	}
}

// endTime is how long each client may take to read the last messages when the endpoint closes. It is short so that a client
// that does not read does not delay the shutdown.
const endTime = time.Second

// writer begins a stream on the response. When the endpoint closes, the write timeout becomes endTime. The caller calls done before
// the handler returns, because net/http may panic if the deadline of a response is set later.
func (a *Admission) writer(w http.ResponseWriter) (out *sse.Writer, done func()) {
	out = sse.NewWriter(w, a.writeTimeout)
	out.Start()
	hurried := make(chan struct{})
	stop := context.AfterFunc(a.ending, func() {
		out.Hurry(endTime)
		close(hurried)
	})
	return out, func() {
		if !stop() {
			<-hurried
		}
	}
}

// cleanUp runs f, which removes the records of an ended stream from the store. [Admission.Close] waits for f. During a
// shutdown, f runs in its own goroutine so that the response can end first, because Lambda kills the process half a second
// after it announces the shutdown.
func (a *Admission) cleanUp(f func()) {
	if a.ending.Err() == nil {
		f()
		return
	}
	a.streams.Go(f)
}

// enter counts a stream, or returns false if the endpoint is closing.
func (a *Admission) enter() (leave func(), ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ending.Err() != nil {
		return nil, false
	}
	a.open.Add(1)
	a.streams.Add(1)
	return func() {
		a.open.Add(-1)
		a.streams.Done()
	}, true
}

func answerFull(w http.ResponseWriter, id json.RawMessage) {
	w.Header().Set("Retry-After", "5")
	method.SendError(w, http.StatusServiceUnavailable, id, &jsonrpc.Error{
		Code: method.CodeUnavailable, Message: "no further streams can be opened now; try again", Data: map[string]any{"limit": quota.Streams},
	})
}
