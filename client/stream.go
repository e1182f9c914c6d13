package client

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

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// Stream reads the events of URIs from open streams, one after another, and
// goes on where the last one ended.
type Stream struct {
	Client *Client
	URIs   []string
	// Cursor is where a stream of revision 2026-07-28 goes on; empty is from now on.
	Cursor string
	Log    *slog.Logger
	// Event handles each event; its error ends the stream.
	Event func(Event) error
	// Opened is called when a stream is open; may be nil.
	Opened func()

	begun bool          // a stream was open
	last  string        // Last-Event-ID, of the session-based revisions
	retry time.Duration // what the server asked for
}

// maxStreamEvent bounds an event of a stream in bytes.
const maxStreamEvent = 4 << 20

// Run follows until ctx ends or a fault that trying again does not mend. Then it ends the session, if
// there is one.
func (f *Stream) Run(ctx context.Context) error {
	defer f.Client.End(ctx)
	for failures := 0; ; failures++ {
		err := f.once(ctx, &failures)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errSessionGone):
			f.Log.Warn("session ended, starting a new one")
			f.Client.setSession("")
			f.last = ""
		case err != nil && !Again(err) && !(f.begun && byProxy(err)):
			return err
		case err != nil:
			f.Log.Warn("stream interrupted, reconnecting", "error", err)
		}
		if err := Pause(ctx, failures, f.retry); err != nil {
			return nil
		}
	}
}

// prepare makes the session and its subscriptions, where the revision has them.
func (f *Stream) prepare(ctx context.Context) (err error) {
	if f.Client.stateless() || f.Client.sessionID() != "" {
		return nil
	}
	defer func() {
		if err != nil {
			f.Client.setSession("")
		}
	}()
	if err := f.Client.Begin(ctx); err != nil {
		return err
	}
	for _, uri := range f.URIs {
		if err := f.Client.Call(ctx, spec.MethodSubscribe, map[string]any{"uri": uri}, nil); err != nil {
			return err
		}
	}
	return nil
}

// once opens a stream and reads it to its end. It sets failures to 0 when the
// stream is open.
func (f *Stream) once(ctx context.Context, failures *int) error {
	if err := f.prepare(ctx); err != nil {
		return err
	}
	body, err := f.open(ctx)
	if err != nil {
		if !f.Client.stateless() && fault.Is(err, fault.NotFound) {
			return errSessionGone
		}
		return err
	}
	defer func() { _ = body.Close() }()
	*failures, f.begun = 0, true
	if !f.Client.stateless() && f.Opened != nil {
		f.Opened()
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

func (f *Stream) open(ctx context.Context) (io.ReadCloser, error) {
	c := f.Client
	if !c.stateless() {
		header := c.header("", nil)
		if f.last != "" {
			header.Set("Last-Event-ID", f.last)
		}
		return c.stream(ctx, http.MethodGet, header, nil)
	}
	params := map[string]any{"notifications": map[string]any{"resourceSubscriptions": f.URIs}}
	if f.Cursor != "" {
		params["_meta"] = map[string]any{metaCursor: f.Cursor}
	}
	return c.post(ctx, spec.MethodListen, params)
}

// message handles one JSON-RPC message of the stream.
func (f *Stream) message(data []byte) error {
	if !json.Valid(data) {
		f.Log.Warn("invalid stream message", "error", "it is not JSON")
		return nil
	}
	// By the exact names: encoding/json would also read a member "URI" or "_Meta", which a server behind a gateway may have sent.
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
			f.Log.Warn("invalid stream message", "error", err)
			return nil
		}
		return e.fault(http.StatusOK)
	}
	switch method {
	case spec.NoteAcknowledged:
		var honored []string
		_ = json.Unmarshal(jsonrpc.Member(jsonrpc.Member(params, "notifications"), "resourceSubscriptions"), &honored) // absent: none
		for _, uri := range f.URIs {
			if !slices.Contains(honored, uri) {
				return fault.New(fault.NotFound, "the server does not know %s, or does not show it to this caller", uri)
			}
		}
		if string(jsonrpc.Member(metadata, metaTruncated)) == "true" {
			f.Log.Warn("events missing after resume")
		}
		if f.Opened != nil {
			f.Opened()
		}
	case spec.NoteUpdated:
		if string(jsonrpc.Member(metadata, metaTruncated)) == "true" {
			f.Log.Warn("events missing", "uri", uri)
			break
		}
		err := f.Event(Event{
			Via: "stream", ID: meta(metaEventID), URI: uri, Time: meta(metaTime),
			Cursor: meta(metaCursor), Received: time.Now(), Data: bytes.Clone(jsonrpc.Member(params, "payload")),
		})
		if err != nil {
			return err
		}
	}
	if cursor := meta(metaCursor); cursor != "" {
		f.Cursor = cursor
	}
	return nil
}
