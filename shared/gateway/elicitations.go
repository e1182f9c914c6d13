package gateway

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/backends"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// An elicitation, also called a question, is a request that a backend sends to a client within a call. The gateway gives it an
// unguessable id, under which the client answers. The data for forwarding the answer is in the store, because the answer may arrive at
// any instance. The gateway deletes the data when the backend has accepted the answer, or when the call ends.

type elicitation struct {
	Workspace string         `json:"ws"`
	Principal string         `json:"pr"`
	Session   string         `json:"s"` // the client's
	Backend   string         `json:"b"` // a [backend.serverID]
	With      backendSession `json:"w"`
	ID        []byte         `json:"id,omitempty"` // the backend's id, byte for byte; empty if the call itself waits for the answer, see inputrounds.go
	Token     []byte         `json:"t,omitempty"`  // the backend's progress token, byte for byte; the client uses the elicitation's id instead
	Parts     int            `json:"n,omitempty"`  // number of items that hold the answer; 0 until it arrives
	Claimed   int64          `json:"c,omitempty"`  // an instance may be sending an answer until this time, in milliseconds since 1970
}

type elicitations struct {
	db     store.DB
	log    *slog.Logger
	broken *metric.Undecodable
	// strays maps stray questions (see strays.go) to the ids under which clients know them. The keys come from [sessionBridge.strayID]. A
	// later call needs the id to forward the backend's cancellation of a question that an earlier call passed on.
	strays bounded.Map[string, json.RawMessage]
}

// elicitationPrefix begins every elicitation's id, so that the gateway rejects other ids without reading the store.
const elicitationPrefix = "gw_"

// elicitationLife limits how long the store keeps an elicitation, in case the process dies or cannot clean up.
const elicitationLife = time.Hour

// elicitationExpiry returns when the store may drop an elicitation. The context ctx belongs to the elicitation's call.
func elicitationExpiry(ctx context.Context) time.Time {
	until := time.Now().Add(elicitationLife)
	if ends, ok := ctx.Deadline(); ok && ends.Before(until) {
		return ends.Add(2 * time.Second) // allows for clock differences and the store's whole seconds
	}
	return until
}

func elicitationKey(id string) store.Key {
	return store.Key{Table: store.Sessions, Partition: "q#" + id, Sort: "-"}
}

// addRequest stores a backend's request and returns the id under which the client gets it. The parameter id is the request's id at the
// backend, and token is its progress token, or nil.
func (es *elicitations) addRequest(ctx context.Context, c api.Client, b *backends.Backend, with backendSession, id, token json.RawMessage) (string, error) {
	name := elicitationPrefix + rand.Text()
	value := jsonrpc.Encode(elicitation{
		Workspace: c.Principal.Workspace, Principal: c.Principal.ID, Session: c.Session, Backend: b.ServerID(), With: with, ID: id, Token: token,
	})
	err := es.db.Write(ctx, store.Put(store.Item{Key: elicitationKey(name), Value: value, Expires: elicitationExpiry(ctx)}))
	return name, fault.Wrap(fault.Unavailable, err, "keep a backend's request")
}

// tidyTime limits how long the cleanup of the store at the end of a call takes. Items that are left over expire.
const tidyTime = 2 * time.Second

func (es *elicitations) drop(ctx context.Context, keys []store.Key) {
	if len(keys) == 0 {
		return
	}
	ops := make([]store.Op, len(keys))
	for i, key := range keys {
		ops[i] = store.Delete(key)
	}
	if err := es.db.WriteAll(ctx, ops...); err != nil {
		es.log.WarnContext(ctx, "backend requests left to expire", "error", err)
	}
}

// dropLate deletes an answer that arrived after the call had looked for answers for the last time, but before the elicitation was
// deleted. An answer that arrives after the deletion is not stored, because storeAnswer finds no elicitation.
func (es *elicitations) dropLate(ctx context.Context, id string) {
	key := elicitationKey(id)
	page, err := es.db.Query(ctx, store.Query{Table: key.Table, Partition: key.Partition, Limit: 1000})
	if err != nil {
		es.log.WarnContext(ctx, "client answer left to expire", "error", err)
		return
	}
	var keys []store.Key
	for _, it := range page.Items {
		keys = append(keys, it.Key)
	}
	es.drop(ctx, keys)
}

// cleanUp deletes the data of a call that ends: the items with the keys in kept, and answers in the store that the call has not read.
func (es *elicitations) cleanUp(kept []store.Key, inputs []*input) {
	if len(kept) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), tidyTime)
	defer cancel()
	es.drop(ctx, kept)
	for _, in := range inputs {
		if in.answer == nil {
			es.dropLate(ctx, in.id)
		}
	}
}

// findElicitation returns the elicitation that the client knows under the given id, its backend and its item in the store. The error is a
// fault of kind NotFound if the id is unknown or if the elicitation was for another session.
func (g *Gateway) findElicitation(ctx context.Context, c api.Client, id string) (q elicitation, b *backends.Backend, item *store.Item, err error) {
	unknown := fault.New(fault.NotFound, "there is no request with this id to answer")
	if !strings.HasPrefix(id, elicitationPrefix) || len(id) > 64 {
		return q, nil, nil, unknown
	}
	if item, err = store.One(ctx, g.options.DB, elicitationKey(id), "find a backend's request"); err != nil {
		return q, nil, nil, err
	}
	if item == nil {
		return q, nil, nil, unknown
	}
	if json.Unmarshal(item.Value, &q) != nil {
		g.broken.Add(ctx, "request of a backend")
		return q, nil, nil, unknown
	}
	b = g.FindByServer(ctx, c.Principal, q.Backend)
	if b == nil || q.Session != c.Session || q.Workspace != c.Principal.Workspace || q.Principal != c.Principal.ID {
		return q, nil, nil, unknown
	}
	return q, b, item, nil
}

// Answer sends a client's answer, a result or an error, to the backend that asked. It returns a fault of kind NotFound, and does nothing,
// if the request is unknown or was for another session. If the backend does not accept the answer, it returns a fault of kind Unavailable,
// and the client can send the answer again.
func (g *Gateway) Answer(ctx context.Context, c api.Client, id string, body json.RawMessage) error {
	q, b, item, err := g.findElicitation(ctx, c, id)
	switch {
	case err != nil:
		return err
	case len(q.ID) == 0:
		return g.elicitations.storeAnswer(ctx, id, q, body, item.Expires)
	}
	return g.elicitations.answer(ctx, b.ClientFor(c.Token), item, q, body)
}

// Progress forwards a client's progress notification to the backend whose request the client is working on, for example a sampling request.
// It replaces the progress token with the one that the backend chose. If the request has already ended, Progress drops the notification
// without an error, because the request may have ended while the notification was on its way.
func (g *Gateway) Progress(ctx context.Context, c api.Client, body json.RawMessage) error {
	params := jsonrpc.Member(body, "params")
	id, _ := jsonrpc.String(jsonrpc.Member(params, "progressToken"))
	q, b, _, err := g.findElicitation(ctx, c, id)
	switch {
	case fault.Is(err, fault.NotFound):
		return nil
	case err != nil:
		return err
	case len(q.Token) == 0:
		return nil
	}
	g.notify(ctx, c, b, q.With, jsonrpc.Replace(body, "params", jsonrpc.Replace(params, "progressToken", q.Token)))
	return nil
}

// answer sends a client's answer to the backend. It first claims the backend's request in the store, so that only one of two concurrent
// answers is sent. It releases the claim if the backend does not accept the answer.
func (es *elicitations) answer(ctx context.Context, c *upstream.Client, item *store.Item, q elicitation, body json.RawMessage) error {
	busy := fault.New(fault.Unavailable, "another answer to this request is being sent to the backend")
	if time.Now().UnixMilli() < q.Claimed {
		return busy
	}
	write := func(ctx context.Context, claimed time.Time) error {
		q.Claimed = 0
		if !claimed.IsZero() {
			q.Claimed = claimed.UnixMilli()
		}
		next := *item
		next.Value, next.Version = jsonrpc.Encode(q), item.Version+1
		if err := es.db.Write(ctx, store.Put(next, store.VersionIs(item.Version))); err != nil {
			return err
		}
		item.Version++
		return nil
	}
	switch err := write(ctx, time.Now().Add(c.AskTimeout+tidyTime)); {
	case errors.Is(err, store.ErrConflict):
		return busy // if the conflict means that the call is over, the client gets NotFound when it repeats its answer
	case err != nil:
		return fault.Wrap(fault.Unavailable, err, "claim a backend's request")
	}
	sending, cancel := context.WithTimeout(ctx, c.AskTimeout)
	defer cancel()
	err := c.Send(sending, q.With.request(jsonrpc.Replace(body, "id", q.ID)))
	tidy, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTime)
	defer cancel()
	if err == nil {
		es.drop(tidy, []store.Key{item.Key})
		return nil
	}
	if err := write(tidy, time.Time{}); err != nil && !errors.Is(err, store.ErrConflict) {
		es.log.WarnContext(ctx, "claim left to expire", "error", err)
	}
	return fault.Wrap(fault.Unavailable, err, "send an answer to backend %s", c.Observer.Name)
}

// answerPart is how many bytes of an answer one item holds. A longer answer takes several items.
const answerPart = store.MaxItem - 1<<10

func partKey(id string, part int) store.Key {
	return store.Key{Table: store.Sessions, Partition: "q#" + id, Sort: "a#" + strconv.Itoa(part)}
}

// storeAnswer stores a client's answer for the instance that waits for it. It ignores all answers to a question but the first.
func (es *elicitations) storeAnswer(ctx context.Context, id string, q elicitation, body json.RawMessage, expires time.Time) error {
	if q.Parts > 0 {
		return nil // the client has sent two answers
	}
	var ops []store.Op
	for part := range slices.Chunk(body, answerPart) {
		ops = append(ops, store.Put(store.Item{Key: partKey(id, len(ops)), Value: part, Expires: expires}))
	}
	q.Parts = len(ops)
	item := store.Item{Key: elicitationKey(id), Value: jsonrpc.Encode(q), Version: 1, Expires: expires}
	err := es.db.Write(ctx, append(ops, store.Put(item, store.VersionIs(0)))...)
	if errors.Is(err, store.ErrConflict) {
		return nil // another answer was first, or the call is over
	}
	return fault.Wrap(fault.Unavailable, err, "keep a client's answer")
}

// storeAnswer stores a client's answer for the instance that waits for it. If a question gets several answers, storeAnswer keeps only the
// first one.
func (es *elicitations) readAnswer(ctx context.Context, id string, item *store.Item) (answer json.RawMessage, at []store.Key, err error) {
	var q elicitation
	if json.Unmarshal(item.Value, &q) != nil {
		es.broken.Add(ctx, "request of a backend")
		return nil, nil, fault.New(fault.Unavailable, "a request of a backend is gone")
	}
	if q.Parts == 0 {
		return nil, nil, nil
	}
	at = make([]store.Key, q.Parts)
	for i := range at {
		at[i] = partKey(id, i)
	}
	items, err := es.db.Get(ctx, at...)
	if err != nil {
		return nil, nil, fault.Wrap(fault.Unavailable, err, "read a client's answer")
	}
	for _, it := range items {
		if it == nil {
			return nil, nil, fault.New(fault.Unavailable, "a client's answer is gone")
		}
		answer = append(answer, it.Value...)
	}
	return answer, at, nil
}
