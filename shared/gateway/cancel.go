package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/store"
)

// A client of the earlier revisions cancels a call by a notification, which may come
// in at another instance than the one that makes the call; one of 2026-07-28 by closing its
// connection. To backends it is the same the other way round. So a notification goes
// on to the backends with sessions, and leaves a mark in the store for calls to backends
// without; and a closed connection becomes a notification.

const (
	// cancelLook is how often a call looks for its mark.
	cancelLook = 500 * time.Millisecond
	// cancelLife is how long a mark is kept. A call begins before it is cancelled.
	cancelLife = time.Minute
	// notifyTime bounds the notification of a backend whose response no client waits for any more.
	notifyTime = 5 * time.Second
)

var errCancelled = errors.New("gateway: the client has cancelled the call")

func cancelKey(c api.Client, id json.RawMessage) store.Key {
	return store.Key{Table: store.Sessions, Partition: "c#" + c.Session, Sort: string(requestID(c, id))}
}

// Cancel passes the notifications/cancelled of a client with a session on, whichever instance
// makes the call. One that names no request, or comes
// without a session, is dropped: it is not known whose request it means.
func (g *Gateway) Cancel(ctx context.Context, c api.Client, body json.RawMessage) error {
	params := jsonrpc.Member(body, "params")
	id := jsonrpc.Member(params, "requestId")
	if id == nil || len(id) > jsonrpc.MaxID || c.Session == "" {
		return nil
	}
	err := g.options.DB.Write(ctx, store.Put(store.Item{Key: cancelKey(c, id), Expires: time.Now().Add(cancelLife)}))
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "note a cancellation")
	}
	return g.Notify(ctx, c, jsonrpc.Replace(body, "params", jsonrpc.Replace(params, "requestId", requestID(c, id))))
}

// watch ends a call when its client cancels it: then there is an item with the key. The function that it returns ends
// the watch, and waits for that.
func watch(ctx context.Context, db store.DB, key store.Key, cancel context.CancelCauseFunc) (end func()) {
	ctx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(cancelLook)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if items, err := db.Get(ctx, key); err == nil && items[0] != nil {
				cancel(errCancelled)
				return
			}
		}
	}()
	return func() { stop(); <-done }
}

// abandon notifies a backend with sessions that the client does not wait for the response any more.
func (b *backend) abandon(c *upstream.Client, s backendSession, id json.RawMessage) {
	ctx, cancel := context.WithTimeout(context.Background(), notifyTime)
	defer cancel()
	params := append(append([]byte(`{"requestId":`), id...), `,"reason":"no client waits for the response"}`...)
	err := c.Send(ctx, upstream.Request{
		Body: jsonrpc.AppendNotification(nil, mcpspec.NoteCancelled, params), Version: s.Version, Session: s.ID,
	})
	if err != nil {
		b.options.Log.WarnContext(ctx, "cancellation not sent to backend", "backend", b.Name, "error", err)
	}
}
