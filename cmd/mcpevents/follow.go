package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/mcp"
	"github.com/mcp-events/mcpevents/shared/sse"
)

// follower reads the events of URIs from open streams, one after another, and
// goes on where the last one ended.
type follower struct {
	client *mcpClient
	uris   []string
	log    *slog.Logger
	// event is told of each event; its error ends the follower.
	event func(received) error
	// opened is told of each stream that is open; may be nil.
	opened func()

	cursor string        // revision 2026-07-28: where the next stream goes on
	last   string        // the earlier ones: Last-Event-ID
	retry  time.Duration // what the server asked for
}

// maxStreamEvent bounds an event of a stream in bytes.
const maxStreamEvent = 4 << 20

// run follows until ctx ends or a fault that trying again does not mend.
func (f *follower) run(ctx context.Context) error {
	for failures := 0; ; failures++ {
		err := f.once(ctx, &failures)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errSessionGone):
			f.log.Warn("session ended, starting a new one")
			f.client.session, f.last = "", ""
		case err != nil && !again(err):
			return err
		case err != nil:
			f.log.Warn("stream interrupted, reconnecting", "error", err)
		}
		if err := pause(ctx, failures, f.retry); err != nil {
			return nil
		}
	}
}

var errSessionGone = fault.New(fault.NotFound, "the session has ended")

// prepare makes the session and its subscriptions, where the revision has them.
func (f *follower) prepare(ctx context.Context) (err error) {
	if f.client.modern() || f.client.session != "" {
		return nil
	}
	defer func() {
		if err != nil {
			f.client.session = ""
		}
	}()
	if err := f.client.begin(ctx); err != nil {
		return err
	}
	for _, uri := range f.uris {
		if err := f.client.call(ctx, "resources/subscribe", map[string]any{"uri": uri}, nil); err != nil {
			return err
		}
	}
	return nil
}

// once opens a stream and reads it to its end. It sets failures to 0 when the
// stream is open.
func (f *follower) once(ctx context.Context, failures *int) error {
	if err := f.prepare(ctx); err != nil {
		return err
	}
	req, err := f.request(ctx)
	if err != nil {
		return err
	}
	body, err := f.client.stream(ctx, req)
	if err != nil {
		if !f.client.modern() && fault.Is(err, fault.NotFound) {
			return errSessionGone
		}
		return err
	}
	defer func() { _ = body.Close() }()
	*failures = 0
	if !f.client.modern() && f.opened != nil {
		f.opened()
	}
	events := sse.NewReader(body, maxStreamEvent)
	for {
		e, err := events.Next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return unreachable(ctx, err)
		}
		if e.Retry > 0 {
			f.retry = e.Retry
		}
		if len(e.Data) > 0 {
			if err := f.message(e.Data); err != nil {
				return err
			}
		}
		if e.ID != "" { // only now: what was not handled must come again
			f.last = e.ID
		}
	}
}

func (f *follower) request(ctx context.Context) (*http.Request, error) {
	c := f.client
	if !c.modern() {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil)
		if err != nil {
			return nil, err
		}
		req.Header = c.header("", nil)
		if f.last != "" {
			req.Header.Set("Last-Event-ID", f.last)
		}
		return req, nil
	}
	const method = "subscriptions/listen"
	params := map[string]any{"notifications": map[string]any{"resourceSubscriptions": f.uris}}
	if f.cursor != "" {
		params["_meta"] = map[string]any{mcp.MetaCursor: f.cursor}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(c.request(method, params)))
	if err != nil {
		return nil, err
	}
	req.Header = c.header(method, params)
	req.Header.Set("Content-Type", "application/json")
	return req, nil
}

// message handles one JSON-RPC message of the stream.
func (f *follower) message(data []byte) error {
	var m struct {
		Method string    `json:"method"`
		Error  *rpcError `json:"error"`
		Params struct {
			URI           string          `json:"uri"`
			Payload       json.RawMessage `json:"payload"`
			Notifications struct {
				URIs []string `json:"resourceSubscriptions"`
			} `json:"notifications"`
			Meta map[string]json.RawMessage `json:"_meta"`
		} `json:"params"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		f.log.Warn("invalid stream message", "error", err)
		return nil
	}
	if m.Error != nil {
		return m.Error.fault(http.StatusOK)
	}
	meta := func(key string) string {
		var s string
		_ = json.Unmarshal(m.Params.Meta[key], &s) // absent, or not ours
		return s
	}
	switch m.Method {
	case "notifications/subscriptions/acknowledged":
		for _, uri := range f.uris {
			if !slices.Contains(m.Params.Notifications.URIs, uri) {
				return fault.New(fault.NotFound, "the server does not know %s, or does not show it to this caller", uri)
			}
		}
		if string(m.Params.Meta[mcp.MetaTruncated]) == "true" {
			f.log.Warn("events missing after resume")
		}
		if f.opened != nil {
			f.opened()
		}
	case "notifications/resources/updated":
		err := f.event(received{
			Via: "stream", ID: meta(mcp.MetaEventID), URI: m.Params.URI, Time: meta(mcp.MetaTime),
			Cursor: meta(mcp.MetaCursor), Received: time.Now(), Data: m.Params.Payload,
		})
		if err != nil {
			return err
		}
	}
	if cursor := meta(mcp.MetaCursor); cursor != "" {
		f.cursor = cursor
	}
	return nil
}
