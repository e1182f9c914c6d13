package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// checkURIs completes the options of a subscription to URIs, or says what is wrong with them.
func (c *Client) checkURIs(o *SubscribeOptions) (err error) {
	switch {
	case o.Mode == "" && c.options.Webhooks != nil:
		o.Mode = ModeWebhook
	case o.Mode == "":
		o.Mode = ModePush
	}
	switch {
	case o.Arguments != nil || o.TTL != 0 || o.Rotate != 0:
		return fault.New(fault.Invalid, "arguments, TTL and Rotate are for event types, not for URIs")
	case o.Mode != ModeWebhook && o.Mode != ModePush:
		return fault.New(fault.Invalid, "mode %q does not go with URIs (allowed: webhook, push)", o.Mode)
	case o.Mode == ModeWebhook && c.options.Webhooks == nil:
		return c.can(ModeWebhook)
	}
	o.arguments, err = json.Marshal(o.URIs)
	return fault.Wrap(fault.Invalid, err, "encode the URIs")
}

// register receives URIs by a webhook of SEP-1803, and deregisters it at the end.
func (c *Client) register(f *flow) error {
	k := &hook{flow: f, url: c.options.Webhooks.URL, over: make(chan error, 1), registered: make(chan struct{})}
	c.options.Webhooks.register(k)
	defer c.options.Webhooks.remove(k)
	var result struct {
		Subscription struct {
			URI    string `json:"uri"`
			Secret struct {
				Type  string `json:"type"`
				Key   string `json:"key"`
				Value string `json:"value"`
			} `json:"webhookSecret"`
		} `json:"subscription"`
	}
	// All tries have one idempotency key, so a try finds the registration of an earlier one whose answer was lost.
	params := map[string]any{"uris": f.sub.URIs, "targetUri": k.url, "_meta": map[string]any{metaIdempotency: rand.Text()}}
	if err := c.persist(f.ctx, func() error {
		_, err := c.call(f.ctx, spec.MethodRegister, params, &result)
		return err
	}); err != nil {
		return err
	}
	uri, secret := result.Subscription.URI, result.Subscription.Secret
	defer c.deregister(f, uri)
	key := secret.Key
	switch secret.Type {
	case "raw":
		key = secret.Value
	case "none": // the server's operator has chosen unsigned webhooks
		key = ""
	}
	if key == "" && secret.Type != "none" {
		return fault.New(fault.Unavailable, "the server's answer holds no secret")
	}
	k.setSecret(key)
	f.started(grant{id: uri, secret: key})
	<-f.ctx.Done()
	return context.Cause(f.ctx)
}

// deregister ends a registration at the server, also when the context has ended.
func (c *Client) deregister(f *flow, uri string) {
	ctx, cancel := ending(f.ctx)
	defer cancel()
	if _, err := c.call(ctx, spec.MethodDeregister, map[string]any{"uri": uri}, nil); err != nil && !fault.Is(err, fault.NotFound) {
		f.log.Warn("subscription not ended", "subscription", uri, "error", err)
		return
	}
	f.log.Info("subscription ended", "subscription", uri)
}

// registration reads the body of a webhook of SEP-1803. A body that is not JSON becomes a text.
func (k *hook) registration(h http.Header, body []byte, verified bool) Event {
	e := Event{
		Via: "webhook", ID: h.Get(webhook.HeaderID), Subscription: h.Get(webhook.HeaderSubscription), Verified: &verified, Received: time.Now(),
	}
	var m struct {
		Type      string          `json:"type"`
		URI       string          `json:"uri"`
		Timestamp string          `json:"timestamp"`
		Data      json.RawMessage `json:"data"`
	}
	if json.Unmarshal(body, &m) != nil {
		k.log.Warn("webhook is not JSON", "id", e.ID)
		e.Data, _ = json.Marshal(string(body)) // a text
		return e
	}
	e.Time, e.Data, e.Name, e.URI = m.Timestamp, m.Data, m.Type, m.URI
	return e
}

// listener reads the events of URIs from streams of resource updates, one after another. In the revisions with sessions it has
// a session of its own, because a session has one stream.
type listener struct {
	*flow
	client  *Client
	session string        // in which the URIs are subscribed
	last    string        // Last-Event-ID
	retry   time.Duration // what the server asked for
}

// maxStreamEvent limits an event of a stream in bytes.
const maxStreamEvent = 4 << 20

// listen receives URIs from streams.
func (c *Client) listen(f *flow) error {
	l := &listener{flow: f, client: c}
	if !c.stateless() {
		l.client = c.fork()
		defer func() { _ = l.client.Close() }()
	}
	return f.follow(l.once)
}

// once opens a stream and reads it to its end.
func (l *listener) once() (time.Duration, error) {
	if err := l.prepare(); err != nil {
		return l.wait(), err
	}
	body, err := l.connect()
	if err != nil {
		return l.wait(), err
	}
	defer func() { _ = body.Close() }()
	if !l.client.stateless() {
		l.opened()
	}
	for events := sse.NewReader(body, maxStreamEvent); ; {
		e, err := events.Next()
		switch {
		case errors.Is(err, io.EOF):
			return max(l.wait(), httpcall.FirstPause), nil
		case err != nil:
			return l.wait(), httpcall.Unreachable(l.ctx, err)
		}
		if e.Retry > 0 {
			l.retry = e.Retry
		}
		if len(e.Data) > 0 {
			if err := l.message(e.Data); err != nil {
				return l.wait(), err
			}
		}
		if e.ID != "" { // after the event, so that an event that was not taken arrives again
			l.last = e.ID
		}
	}
}

// wait returns how long the server asked to wait, up to five minutes.
func (l *listener) wait() time.Duration { return min(l.retry, 10*httpcall.MaxPause) }

func (l *listener) opened() {
	l.open = true
	l.started(grant{})
}

// prepare subscribes to the URIs in the session, if the revision has sessions. It starts a session if there is none.
func (l *listener) prepare() error {
	c := l.client
	if c.stateless() || c.begun.Load() && l.session == c.sessionID() {
		return nil
	}
	l.session, l.last = "", ""
	for _, uri := range l.sub.URIs {
		if _, err := c.call(l.ctx, spec.MethodSubscribe, map[string]any{"uri": uri}, nil); err != nil {
			return err
		}
	}
	l.session = c.sessionID()
	return nil
}

// connect opens a stream.
func (l *listener) connect() (io.ReadCloser, error) {
	c := l.client
	if c.stateless() {
		params := map[string]any{"notifications": map[string]any{"resourceSubscriptions": l.sub.URIs}}
		if l.cursor != "" {
			params["_meta"] = map[string]any{metaCursor: l.cursor}
		}
		return c.post(l.ctx, spec.MethodListen, params)
	}
	header := c.header("", nil)
	if l.last != "" {
		header.Set("Last-Event-ID", l.last)
	}
	body, err := c.stream(l.ctx, http.MethodGet, header, nil)
	if fault.Is(err, fault.NotFound) {
		c.begun.Store(false)
		return nil, fault.New(fault.Unavailable, "the session has ended")
	}
	return body, err
}

// message handles a JSON-RPC message of the stream.
func (l *listener) message(data []byte) error {
	if !json.Valid(data) {
		l.log.Warn("invalid stream message", "error", "it is not JSON")
		return nil
	}
	// Read members by their exact names. encoding/json would also read "URI" or "_Meta", which a server behind a gateway may send.
	params := jsonrpc.Member(data, "params")
	metadata := jsonrpc.Member(params, "_meta")
	method, _ := jsonrpc.String(jsonrpc.Member(data, "method"))
	uri, _ := jsonrpc.String(jsonrpc.Member(params, "uri"))
	meta := func(key string) string {
		text, _ := jsonrpc.String(jsonrpc.Member(metadata, key))
		return text
	}
	if failure := jsonrpc.Member(data, "error"); failure != nil {
		var e rpcError
		if err := json.Unmarshal(failure, &e); err != nil {
			l.log.Warn("invalid stream message", "error", err)
			return nil
		}
		return e.fault(http.StatusOK)
	}
	cursor, truncated := meta(metaCursor), string(jsonrpc.Member(metadata, metaTruncated)) == "true"
	if method == spec.NoteAcknowledged {
		var honored []string
		_ = json.Unmarshal(jsonrpc.Member(jsonrpc.Member(params, "notifications"), "resourceSubscriptions"), &honored) // absent: none
		for _, uri := range l.sub.URIs {
			if !slices.Contains(honored, uri) {
				return fault.New(fault.NotFound, "the server does not know %s, or does not show it to this caller", uri)
			}
		}
		l.opened()
	}
	var err error
	switch {
	case truncated && (method == spec.NoteAcknowledged || method == spec.NoteUpdated):
		err = l.gap(Gap{Cursor: cursor})
	case method == spec.NoteUpdated:
		err = l.take(Event{
			Via: "stream", ID: meta(metaEventID), URI: uri, Time: meta(metaTime),
			Cursor: cursor, Received: time.Now(), Data: bytes.Clone(jsonrpc.Member(params, "payload")),
		})
	default:
		l.mark(cursor)
	}
	if err == nil && cursor != "" {
		l.cursor = cursor
	}
	return err
}
