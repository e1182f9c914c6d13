package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// occurrence is an EventOccurrence (SEP-3415). The params of a stream's notifications, for example notifications/events/active, are
// decoded into the same type.
type occurrence struct {
	EventID   string          `json:"eventId"`
	Name      string          `json:"name"`
	Timestamp string          `json:"timestamp"`
	Data      json.RawMessage `json:"data"`
	Cursor    string          `json:"cursor"`
	Truncated bool            `json:"truncated"`
	Error     *rpcError       `json:"error"`
	Meta      json.RawMessage `json:"_meta"`
}

func (o *occurrence) event(via string) Event {
	return Event{Via: via, ID: o.EventID, Name: o.Name, URI: o.uri(), Time: o.Timestamp, Cursor: o.Cursor, Received: time.Now(), Data: o.Data}
}

// uri returns the event's URI, which servers of this project put into _meta. For events of other servers, it returns an empty string.
// Their _meta may be any JSON value.
func (o *occurrence) uri() string {
	var meta map[string]json.RawMessage
	var uri string
	if json.Unmarshal(o.Meta, &meta) != nil || json.Unmarshal(meta[spec.MetaURI], &uri) != nil {
		return ""
	}
	return uri
}

// leastPoll and longestPoll limit the pause that the server asks for between two polls (nextPollMs). A server must ask for at least 1000
// ms (SEP-3415, "Response" of polls). If [Options.MinPoll] is set, it replaces leastPoll.
const (
	leastPoll   = time.Second
	longestPoll = time.Hour
)

// pollOnce sends one events/poll, passes the events to f, and returns how long to wait before the next poll.
func (c *Client) pollOnce(f *flow) (time.Duration, error) {
	var page struct {
		Events     []occurrence `json:"events"`
		Cursor     string       `json:"cursor"`
		Truncated  bool         `json:"truncated"`
		HasMore    bool         `json:"hasMore"`
		NextPollMs int64        `json:"nextPollMs"`
	}
	if _, err := c.call(f.ctx, spec.MethodEventsPoll, f.cursorParams(), &page); err != nil {
		return 0, err
	}
	f.markAccepted(grant{})
	if page.Truncated {
		gap := Gap{Name: f.sub.Name}
		if len(page.Events) == 0 {
			gap.Cursor = page.Cursor
		}
		if err := f.handleGap(gap); err != nil {
			return 0, err
		}
	}
	for i, o := range page.Events {
		o.Cursor = "" // the cursor of the page is after its last event
		if i == len(page.Events)-1 {
			o.Cursor = page.Cursor
		}
		if err := f.startHandling(o.event(ModePoll)); err != nil {
			return 0, err
		}
	}
	if len(page.Events) == 0 {
		f.advance(page.Cursor)
	}
	progress := page.Cursor != f.cursor
	f.cursor = page.Cursor
	// The response to a poll with filters can have no events although matching events follow later. But if hasMore is true and the
	// cursor stays the same, the server has a fault. Polling again immediately would then never end.
	if page.HasMore && progress {
		return 0, nil
	}
	return min(max(time.Duration(page.NextPollMs)*time.Millisecond, cmp.Or(c.options.MinPoll, leastPoll)), longestPoll), nil
}

// streamOnce reads a stream of an event type until it ends. It returns how long to wait before the next stream.
func (c *Client) streamOnce(f *flow) (time.Duration, error) {
	body, err := c.openCall(f.ctx, spec.MethodEventsStream, f.cursorParams())
	if err != nil {
		return 0, err
	}
	defer func() { _ = body.Close() }()
	for events := sse.NewReader(body, maxStreamEvent); ; {
		e, err := events.Next()
		switch {
		case errors.Is(err, io.EOF):
			return httpcall.FirstPause, nil
		case err != nil:
			return 0, httpcall.Unreachable(f.ctx, err)
		case len(e.Data) == 0:
			continue
		}
		if err := f.handleMessage(e.Data); err != nil {
			return 0, err
		}
	}
}

func (f *flow) handleMessage(data []byte) error {
	var m struct {
		Method string     `json:"method"`
		Params occurrence `json:"params"`
		Error  *rpcError  `json:"error"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		f.log.Warn("invalid stream message", "error", err)
		return nil
	}
	if m.Error != nil {
		return m.Error.fault(http.StatusOK)
	}
	cursor := m.Params.Cursor
	switch m.Method {
	case spec.NoteEventsActive:
		// A server without cursors cannot send the events that occurred while no stream was open.
		missed := m.Params.Truncated || f.started && f.cursor == ""
		f.open = true
		f.markAccepted(grant{})
		if missed {
			if err := f.handleGap(Gap{Name: f.sub.Name, Cursor: cursor}); err != nil {
				return err
			}
		} else {
			f.advance(cursor)
		}
	case spec.NoteEventsEvent:
		if err := f.startHandling(m.Params.event(ModePush)); err != nil {
			return err
		}
	case spec.NoteEventsHeartbeat:
		f.advance(cursor)
	case spec.NoteEventsError:
		if m.Params.Error != nil {
			f.log.Warn("server reported an error", "error", m.Params.Error.fault(http.StatusOK))
		}
	case spec.NoteEventsTerminated:
		return newTerminated(f.sub.Name, m.Params.Error)
	default:
		return nil
	}
	if cursor != "" {
		f.cursor = cursor
	}
	return nil
}

// openCall sends a JSON-RPC request, in the revision of MCP without sessions, and returns the stream that answers it.
func (c *Client) openCall(ctx context.Context, method string, params map[string]any) (io.ReadCloser, error) {
	request, err := c.request(method, params)
	if err != nil {
		return nil, err
	}
	return c.openStream(ctx, http.MethodPost, c.header("", method, params), request)
}

// openStream sends an HTTP request and returns the stream that answers it, as a [liveBody].
func (c *Client) openStream(ctx context.Context, method string, header http.Header, body []byte) (io.ReadCloser, error) {
	live, cancel := context.WithCancelCause(ctx)
	req, err := c.server.NewRequest(live, method, c.url, header, body)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	dead := time.AfterFunc(c.silence, func() { cancel(errSilent) })
	resp, err := c.server.StreamClient().Do(req)
	if err != nil {
		dead.Stop()
		cancel(nil)
		return nil, httpcall.Unreachable(ctx, nameSilence(live, err))
	}
	content := &liveBody{ReadCloser: resp.Body, ctx: live, cancel: cancel, dead: dead, limit: c.silence}
	if resp.StatusCode == http.StatusOK && strings.HasPrefix(resp.Header.Get("Content-Type"), sse.ContentType) {
		return content, nil
	}
	defer func() { _ = content.Close() }()
	b, _ := io.ReadAll(io.LimitReader(content, httpcall.MaxAnswer))
	var answer struct {
		Error *rpcError `json:"error"`
	}
	if resp.StatusCode == http.StatusOK && json.Unmarshal(b, &answer) == nil && answer.Error != nil {
		return nil, answer.Error.fault(resp.StatusCode)
	}
	return nil, httpcall.ReadRefusal(resp, b)
}

// deadAfter limits how long a stream may be silent. It is more than twice the longest interval between heartbeats, which is 30 seconds
// (SEP-3415, "Lifecycle"). Our server sends one every 15 seconds.
const deadAfter = 65 * time.Second

var errSilent = fault.New(fault.Unavailable, "the stream was silent for too long")

// liveBody is the body of a stream. Reading fails with errSilent if no byte has arrived for too long, because a proxy can keep a
// connection open although the server behind it is gone. Any byte counts, for example a comment that serves as a heartbeat. The time in
// which the caller handles an event does not count.
type liveBody struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	dead   *time.Timer
	limit  time.Duration
}

func (b *liveBody) Read(p []byte) (int, error) {
	b.dead.Reset(b.limit)
	n, err := b.ReadCloser.Read(p)
	b.dead.Stop()
	return n, nameSilence(b.ctx, err)
}

func (b *liveBody) Close() error {
	b.dead.Stop()
	b.cancel(nil)
	return b.ReadCloser.Close()
}

func nameSilence(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errSilent) {
		return errSilent
	}
	return err
}
