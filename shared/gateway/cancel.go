package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// A client with a session cancels a call with a notification, which may arrive at another instance than the one that makes the call. A
// client of 2026-07-28 closes its connection instead. The gateway cancels its calls to backends in the same two ways.
//
// For a notification, Cancel stores a mark, which says that the client has cancelled the call, and forwards the notification to the
// backends with sessions. The instance that makes the call finds the mark and ends the call. It closes the connection to a stateless
// backend. It notifies a session-based backend again, because the first notification may have overtaken the request. If a client closes
// its connection, the gateway also notifies a session-based backend.
//
// If a client ends its session, the gateway cancels all calls of the session with one mark, because the client can no longer answer
// questions.

const (
	// A call looks for a cancellation mark in the store after firstMark, and then at growing intervals of up to lastMark. If the
	// notification arrives at the instance that makes the call, the call ends immediately.
	firstMark, lastMark = 500 * time.Millisecond, 5 * time.Second
	// cancelLife is how long the store keeps a cancellation mark. It exceeds lastMark, so that the running call has time to find the mark.
	cancelLife = time.Minute
	// markSkew is the tolerated difference between the clocks of instances. A cancellation mark also ends a call that began up to this much
	// later. So if a client cancels a call and uses the call's id again within a second, which the revisions forbid, the new call is
	// cancelled, too.
	markSkew = time.Second
	// requestLead is the minimum delay between a request and its cancellation, if the backend has not begun to answer the request. The
	// request and the cancellation use different connections. A busy backend may see the cancellation first, and then ignores it.
	requestLead = time.Second
	notifyTime  = 5 * time.Second // limits a notification to a backend
)

var (
	errCancelled = errors.New("gateway: the client has cancelled the call")
	errRemoved   = errors.New("gateway: the backend was removed while it waited for an answer")
)

// everyCall is the id in the key of the mark that cancels all calls of a session. The ids of single calls are numbers (see [requestID]).
var everyCall = json.RawMessage("all")

// cancelKey returns the key of the mark that cancels a call. The parameter id is the id under which the backend gets the call (see
// [requestID]), or [everyCall] to cancel all calls of the session.
func cancelKey(c api.Client, id json.RawMessage) store.Key {
	return store.Key{Table: store.Sessions, Partition: "c#" + c.Session, Sort: string(id)}
}

// cancelSession cancels all calls of a client's session. It ends the calls of this instance directly, and writes a mark with which other
// instances end their calls.
func (g *Gateway) cancelSession(ctx context.Context, c api.Client) error {
	key := cancelKey(c, everyCall)
	err := g.writeMark(ctx, key)
	g.running.Range(func(mark, cancel any) bool {
		if mark.(store.Key).Partition == key.Partition {
			(*cancel.(*context.CancelCauseFunc))(errCancelled)
		}
		return true
	})
	return err
}

func (g *Gateway) writeMark(ctx context.Context, key store.Key) error {
	at := strconv.AppendInt(nil, time.Now().UnixMilli(), 10)
	err := g.options.DB.Write(ctx, store.Put(store.Item{Key: key, Value: at, Expires: time.Now().Add(cancelLife)}))
	return fault.Wrap(fault.Unavailable, err, "note a cancellation")
}

// Cancel cancels the call that a client's notifications/cancelled names, whichever instance makes it. It ignores a notification without a
// request id or without a session, because it cannot tell whose request to cancel.
func (g *Gateway) Cancel(ctx context.Context, c api.Client, body json.RawMessage) error {
	params := jsonrpc.Member(body, "params")
	id := jsonrpc.Member(params, "requestId")
	if id == nil || len(id) > jsonrpc.MaxID || c.Session == "" {
		return nil
	}
	hashed := requestID(c, id)
	key := cancelKey(c, hashed)
	if err := g.writeMark(ctx, key); err != nil {
		return err
	}
	err := g.Notify(ctx, c, jsonrpc.Replace(body, "params", jsonrpc.Replace(params, "requestId", hashed)))
	if cancel, ok := g.running.Load(key); ok {
		(*cancel.(*context.CancelCauseFunc))(errCancelled)
	}
	return err
}

// watchForEnd returns a context that ends when the client cancels the call, or when the backend is removed while the client still has to
// answer a question. The function end stops the watch and waits for its goroutine. A client without a session cancels a call by closing
// its connection, which ends ctx.
func (x *exchange) watchForEnd(ctx context.Context) (watched context.Context, end func()) {
	if x.call.Session == "" {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	x.gateway.running.Store(x.mark, &cancel)
	began, done := time.Now(), make(chan struct{})
	first := time.AfterFunc(firstMark, func() {
		defer close(done)
		for wait := firstMark; ; {
			if x.hasMark(ctx, began) {
				cancel(errCancelled)
				return
			}
			removed := x.gateway.FindByServer(ctx, x.call.Principal, x.backend().ServerID()) == nil
			if removed && ctx.Err() == nil && x.questions.anyOpen(ctx, x.gateway.options.DB) {
				cancel(errRemoved)
				return
			}
			wait = min(wait*3/2, lastMark)
			if periodic.Sleep(ctx, wait) != nil {
				return
			}
		}
	})
	return ctx, func() {
		cancel(nil)
		if !first.Stop() {
			<-done
		}
		x.gateway.running.CompareAndDelete(x.mark, &cancel)
	}
}

// hasMark reports whether the client has cancelled the call, or ended its session, since the call began.
func (x *exchange) hasMark(ctx context.Context, began time.Time) bool {
	items, err := x.gateway.options.DB.Get(ctx, x.mark, cancelKey(x.call.Client, everyCall))
	return err == nil && slices.ContainsFunc(items, func(it *store.Item) bool {
		if it == nil {
			return false
		}
		at, err := strconv.ParseInt(string(it.Value), 10, 64)
		return err == nil && !time.UnixMilli(at).Before(began.Add(-markSkew))
	})
}

// endCause returns an error if the call ended because the client cancelled it or because the backend was removed, and otherwise nil.
func (x *exchange) endCause(watched context.Context) error {
	switch cause := context.Cause(watched); {
	case errors.Is(cause, errCancelled):
		return fault.Wrap(fault.Conflict, errCancelled, "the call was cancelled")
	case errors.Is(cause, errRemoved):
		return fault.Wrap(fault.Unavailable, errRemoved, "backend %s was removed; it may have done a part of the call", x.entry.Backend)
	}
	return nil
}

// abandon tells a session-based backend that the client no longer waits for the response.
func (g *Gateway) abandon(c *upstream.Client, s backendSession, id json.RawMessage) {
	ctx, cancel := context.WithTimeout(context.Background(), notifyTime)
	defer cancel()
	params := append(append([]byte(`{"requestId":`), id...), `,"reason":"no client waits for the response"}`...)
	if err := c.Send(ctx, s.request(jsonrpc.AppendNotification(nil, spec.NoteCancelled, params))); err != nil {
		g.options.Log.WarnContext(ctx, "cancellation not sent to backend", "backend", c.Observer.Name, "error", err)
	}
}

type questions struct {
	mu   sync.Mutex
	keys []store.Key
}

func (q *questions) add(key store.Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.keys = append(q.keys, key)
}

// anyOpen reports whether the client still has to answer one of the questions. It checks only the last [store.MaxGet] questions, because
// one Get cannot read more.
func (q *questions) anyOpen(ctx context.Context, db store.DB) bool {
	q.mu.Lock()
	last := slices.Clone(q.keys[max(0, len(q.keys)-store.MaxGet):])
	q.mu.Unlock()
	if len(last) == 0 {
		return false
	}
	items, err := db.Get(ctx, last...)
	return err == nil && slices.ContainsFunc(items, func(it *store.Item) bool { return it != nil })
}
