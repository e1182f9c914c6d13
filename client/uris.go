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

func (c *Client) completeURIOptions(o *SubscribeOptions) (err error) {
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
		return fault.New(fault.Invalid, "mode %q is not available for URIs (allowed: webhook, push)", o.Mode)
	case o.Mode == ModeWebhook && c.options.Webhooks == nil:
		return c.checkMode(ModeWebhook)
	}
	o.arguments, err = json.Marshal(o.URIs)
	return fault.Wrap(fault.Invalid, err, "encode the URIs")
}

// receiveRegistered registers a webhook subscription of SEP-1803, waits until the subscription ends, and then deregisters it.
func (c *Client) receiveRegistered(f *flow) error {
	k := &hook{flow: f, url: c.options.Webhooks.URL, ended: make(chan error, 1), registered: make(chan struct{})}
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
	// All tries have the same idempotency key. So if the answer to a try was lost, the next try gets the same registration.
	params := map[string]any{"uris": f.sub.URIs, "targetUri": k.url, "_meta": map[string]any{spec.MetaIdempotency: rand.Text()}}
	if err := c.retry(f.ctx, func() error {
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
	case "none": // the operator of the server has chosen unsigned webhooks
		key = ""
	}
	if key == "" && secret.Type != "none" {
		return fault.New(fault.Unavailable, "the server's answer has no secret")
	}
	g := grant{id: uri, secret: key}
	f.granted.Store(&g) // before setSecret, because webhooks may be verified right after it
	k.setSecret(key)
	f.markAccepted(g)
	<-f.ctx.Done()
	return context.Cause(f.ctx)
}

func (c *Client) deregister(f *flow, uri string) {
	ctx, cancel := closingContext(f.ctx)
	defer cancel()
	if _, err := c.call(ctx, spec.MethodDeregister, map[string]any{"uri": uri}, nil); err != nil && !fault.Is(err, fault.NotFound) {
		f.log.Warn("subscription not ended", "subscription", uri, "error", err)
		return
	}
	f.log.Info("subscription ended", "subscription", uri)
}

// decodeRegistered decodes a webhook of SEP-1803. If the body is not JSON, the event's data is a string with the body.
func (k *hook) decodeRegistered(h http.Header, body []byte, verified bool) Event {
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
		e.Data, _ = json.Marshal(string(body))
		return e
	}
	e.Time, e.Data, e.Name, e.URI = m.Timestamp, m.Data, m.Type, m.URI
	return e
}

// listener reads the events of URIs from streams of resource updates. If the revision of MCP has sessions, each listener has a session of
// its own, because a session can have only one stream.
type listener struct {
	*flow
	client  *Client
	session *string       // the session in which the URIs are subscribed
	last    string        // the id of the last event, for the header Last-Event-ID
	retry   time.Duration // the pause that the server asked for
}

// maxStreamEvent is the maximum size of an event on a stream, in bytes.
const maxStreamEvent = 4 << 20

func (c *Client) receiveUpdates(f *flow) error {
	l := &listener{flow: f, client: c}
	if !c.isStateless() {
		l.client = c.withOwnSession()
		defer func() { _ = l.client.Close() }()
	}
	return f.repeat(l.streamOnce)
}

// streamOnce reads a stream of resource updates until the stream ends. It returns how long to wait before opening the next stream.
func (l *listener) streamOnce() (time.Duration, error) {
	if err := l.subscribeInSession(); err != nil {
		return l.serverPause(), err
	}
	body, err := l.connect()
	if err != nil {
		return l.serverPause(), err
	}
	defer func() { _ = body.Close() }()
	if !l.client.isStateless() {
		if err := l.markOpen("", false); err != nil {
			return l.serverPause(), err
		}
	}
	for events := sse.NewReader(body, maxStreamEvent); ; {
		e, err := events.Next()
		switch {
		case errors.Is(err, io.EOF):
			return max(l.serverPause(), httpcall.FirstPause), nil
		case err != nil:
			return l.serverPause(), httpcall.Unreachable(l.ctx, err)
		}
		if e.Retry > 0 {
			l.retry = e.Retry
		}
		if len(e.Data) > 0 {
			if err := l.handleMessage(e.Data); err != nil {
				return l.serverPause(), err
			}
		}
		if e.ID != "" { // only after handleMessage, so that the server resends an event for which it failed
			l.last = e.ID
		}
	}
}

// serverPause returns how long the server asked the client to wait before the next stream. The maximum is five minutes.
func (l *listener) serverPause() time.Duration { return min(l.retry, 10*httpcall.MaxPause) }

// markOpen records that the server has opened the stream, and reports a gap if earlier events may be missing. The parameter cursor is the
// position of the stream, or empty if the server has not sent the position. The parameter truncated is true if the server itself reports
// the gap.
func (l *listener) markOpen(cursor string, truncated bool) error {
	missed := truncated || l.mayMissEvents()
	l.open = true
	l.markAccepted(grant{})
	if missed {
		return l.handleGap(Gap{Cursor: cursor})
	}
	l.advance(cursor)
	return nil
}

// mayMissEvents reports whether events may be lost that occurred before this stream was opened, because the server does not know
// where to resume. A server without sessions resumes from a cursor. A server with sessions resumes only from the id of an event
// that it has sent in the same session, so a cursor from an earlier run of the program is of no use.
func (l *listener) mayMissEvents() bool {
	if l.client.isStateless() {
		return l.started && l.cursor == ""
	}
	return l.last == "" && (l.started || l.cursor != "")
}

// subscribeInSession subscribes the session to the URIs, if the revision of MCP has sessions. It starts a session first if necessary.
func (l *listener) subscribeInSession() error {
	c := l.client
	if open := c.session.Load(); c.isStateless() || open != nil && l.session == open {
		return nil
	}
	l.session, l.last = nil, ""
	var session *string // the session in which the earlier URIs are subscribed
	for i, uri := range l.sub.URIs {
		if _, err := c.call(l.ctx, spec.MethodSubscribe, map[string]any{"uri": uri}, nil); err != nil {
			return err
		}
		now := c.session.Load()
		if i > 0 && now != session { // the call started a new session, which is not subscribed to the earlier URIs
			return fault.New(fault.Unavailable, "the session has ended")
		}
		session = now
	}
	l.session = session
	return nil
}

// connect opens a stream: with subscriptions/listen in the revision without sessions, and with GET in earlier revisions.
func (l *listener) connect() (io.ReadCloser, error) {
	c := l.client
	if c.isStateless() {
		params := map[string]any{"notifications": map[string]any{"resourceSubscriptions": l.sub.URIs}}
		if l.cursor != "" {
			params["_meta"] = map[string]any{spec.MetaCursor: l.cursor}
		}
		return c.openCall(l.ctx, spec.MethodListen, params)
	}
	header := c.header(c.sessionID(), "", nil)
	if l.last != "" {
		header.Set("Last-Event-ID", l.last)
	}
	body, err := c.openStream(l.ctx, http.MethodGet, header, nil)
	if fault.Is(err, fault.NotFound) {
		c.session.Store(nil)
		return nil, fault.New(fault.Unavailable, "the session has ended")
	}
	return body, err
}

func (l *listener) handleMessage(data []byte) error {
	if !json.Valid(data) {
		l.log.Warn("invalid stream message", "error", "it is not JSON")
		return nil
	}
	// Read members by their exact names. encoding/json would also accept "URI" or "_Meta", which a server behind a gateway may use for
	// other purposes.
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
	cursor, truncated := meta(spec.MetaCursor), string(jsonrpc.Member(metadata, spec.MetaTruncated)) == "true"
	var err error
	switch {
	case method == spec.NoteAcknowledged:
		var honored []string // stays empty if the server does not send the member resourceSubscriptions
		_ = json.Unmarshal(jsonrpc.Member(jsonrpc.Member(params, "notifications"), "resourceSubscriptions"), &honored)
		for _, uri := range l.sub.URIs {
			if !slices.Contains(honored, uri) {
				return fault.New(fault.NotFound, "the server does not know %s, or does not show it to this caller", uri)
			}
		}
		err = l.markOpen(cursor, truncated)
	case truncated && method == spec.NoteUpdated:
		err = l.handleGap(Gap{Cursor: cursor})
	case method == spec.NoteUpdated:
		err = l.startHandling(Event{
			Via: "stream", ID: meta(spec.MetaEventID), URI: uri, Time: meta(spec.MetaTime),
			Cursor: cursor, Received: time.Now(), Data: bytes.Clone(jsonrpc.Member(params, "payload")),
		})
	default:
		l.advance(cursor)
	}
	if err == nil && cursor != "" {
		l.cursor = cursor
	}
	return err
}
