package method

import (
	"context"
	"net/http"
	"time"
)

// How long a call runs depends on its revision and on what it does. At the end of a shutdown, the server also ends the calls that
// still run:
//
//	kind of call                       if the client disconnects   time limit                             at the end of a shutdown
//	stateless revisions                its context ends            the request's deadline                 it continues
//	in a session                       it continues                [DetachedFor], or the deadline         its context ends
//	notification, response, DELETE     it continues                [NoticeFor], or the deadline           its context ends
//	to a backend, stateless            its context ends            [CallReserve] before the deadline      it is answered with an error
//	to a backend, in a session         it continues                [CallReserve] before the deadline      it is answered with an error
//
// Streams have limits of their own; see Admission in package streams.
//
// In the revisions with sessions, a disconnect does not cancel a request (2025-11-25, Transports, "Sending Messages to the Server"). Only
// Lambda sets a deadline for the request; a stand-alone server does not. While an answer is written, [sse.Writer] and [Send] move the
// connection's write deadline forward.

const (
	// DetachedFor is how long a request may run whose client may have disconnected.
	DetachedFor = time.Minute
	// NoticeFor is how long a notification, a response or the end of a session may run. A client that cancels a call or ends its
	// session often closes the connection right after it has sent that message.
	NoticeFor = 10 * time.Second
	// CallReserve is the time between the end of a call to a backend and the end of the Lambda invocation. It suffices for notifying the
	// backend that the client no longer waits (at most five seconds), for two seconds of cleaning up, and for answering the client.
	CallReserve = 9 * time.Second
)

// life holds what decides how long a call runs.
type life struct {
	cutOff   context.Context // ends when the server cuts off calls
	detached bool
	client   context.Context // ends when the client of a detached call disconnects; nil for a part of a batch
	deadline time.Time       // when the platform ends the invocation; zero for a server
}

// NewCall returns the call of a request. cutOff ends when the server must cut off its calls.
func NewCall(r *http.Request, cutOff context.Context) *Call {
	return &Call{Request: r, life: life{cutOff: cutOff}}
}

// DetachRequest returns the request with a context that continues for the given time after the client has disconnected. Without a body,
// net/http ends a request's context as soon as the client closes the connection.
func DetachRequest(r *http.Request, limit time.Duration) (detached *http.Request, stop func()) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), limit)
	return r.WithContext(ctx), cancel
}

// Detach lets the call continue for the given time when its client disconnects. It has no effect on a call that is detached already. The
// caller calls stop when the call has been served.
func (c *Call) Detach(limit time.Duration) (stop func()) {
	if c.life.detached {
		return func() {}
	}
	ctx := c.Request.Context()
	c.life.detached, c.life.client = true, ctx
	until := time.Now().Add(limit)
	if c.life.deadline, _ = ctx.Deadline(); !c.life.deadline.IsZero() && c.life.deadline.Before(until) {
		until = c.life.deadline
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
	c.Request = c.Request.WithContext(ctx)
	attached := context.AfterFunc(c.life.cutOff, cancel)
	return func() {
		attached()
		cancel()
	}
}

// JoinBatch makes a detached call the pattern for the parts of a batch. The parts share the time of the whole batch, and do not react to a
// disconnect one by one.
func (c *Call) JoinBatch() { c.life.client = nil }

// Connection returns a context that ends when the client disconnects, also for a detached call.
func (c *Call) Connection() context.Context {
	if c.life.client != nil {
		return c.life.client
	}
	return c.Request.Context()
}

// OnDisconnect calls f if the client disconnects while the call is being served. After that, stop must be called.
func (c *Call) OnDisconnect(f func()) (stop func() bool) {
	if c.life.client == nil {
		return func() bool { return true }
	}
	return context.AfterFunc(c.life.client, f)
}

// backendContext returns the context of a call to a backend. If the server cuts the call off, cutOff runs before the context ends.
func (c *Call) backendContext(cutOff func()) (ctx context.Context, end func()) {
	ctx, deadline := c.Request.Context(), c.life.deadline
	if c.Version.Stateless() {
		deadline, _ = ctx.Deadline()
	} else {
		ctx = context.WithoutCancel(ctx)
	}
	var cancel context.CancelFunc
	if deadline.IsZero() {
		ctx, cancel = context.WithCancel(ctx)
	} else {
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-CallReserve))
	}
	stop := context.AfterFunc(c.life.cutOff, func() {
		cutOff()
		cancel()
	})
	return ctx, func() {
		stop()
		cancel()
	}
}
