package client

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// occurrence is an EventOccurrence (SEP-3415), or the params of a notification about the stream.
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

// uri returns the event's URI. Only servers of this project send it. Others may have anything in _meta, and their events must
// still arrive.
func (o *occurrence) uri() string {
	var meta map[string]json.RawMessage
	var uri string
	if json.Unmarshal(o.Meta, &meta) != nil || json.Unmarshal(meta[metaURI], &uri) != nil {
		return ""
	}
	return uri
}

// What a server may ask for (SEP-3415, "Response" of polls: a floor of 1000 ms).
const (
	leastPoll   = time.Second
	longestPoll = time.Hour
)

// poll polls once, and returns when to poll again.
func (c *Client) poll(f *flow) (time.Duration, error) {
	var page struct {
		Events     []occurrence `json:"events"`
		Cursor     string       `json:"cursor"`
		Truncated  bool         `json:"truncated"`
		HasMore    bool         `json:"hasMore"`
		NextPollMs int64        `json:"nextPollMs"`
	}
	if _, err := c.call(f.ctx, spec.MethodEventsPoll, f.params(), &page); err != nil {
		return 0, err
	}
	f.started(grant{})
	if page.Truncated {
		gap := Gap{Name: f.sub.Name}
		if len(page.Events) == 0 {
			gap.Cursor = page.Cursor
		}
		if err := f.gap(gap); err != nil {
			return 0, err
		}
	}
	for i, o := range page.Events {
		o.Cursor = "" // that of the page is after its last event
		if i == len(page.Events)-1 {
			o.Cursor = page.Cursor
		}
		if err := f.take(o.event(ModePoll)); err != nil {
			return 0, err
		}
	}
	if len(page.Events) == 0 {
		f.mark(page.Cursor)
	}
	progress := page.Cursor != f.cursor
	f.cursor = page.Cursor
	// A page of a filtered poll can be empty although matching events follow it. If hasMore is true but the cursor stays
	// the same, the server is wrong, and polling again immediately would never end.
	if page.HasMore && progress {
		return 0, nil
	}
	return min(max(time.Duration(page.NextPollMs)*time.Millisecond, cmp.Or(c.options.MinPoll, leastPoll)), longestPoll), nil
}

// push opens a stream and reads it to its end.
func (c *Client) push(f *flow) (time.Duration, error) {
	body, err := c.post(f.ctx, spec.MethodEventsStream, f.params())
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
		if err := f.message(e.Data); err != nil {
			return 0, err
		}
	}
}

// message handles one message of a stream.
func (f *flow) message(data []byte) error {
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
		f.open = true
		f.started(grant{})
		if m.Params.Truncated {
			if err := f.gap(Gap{Name: f.sub.Name, Cursor: cursor}); err != nil {
				return err
			}
		} else {
			f.mark(cursor)
		}
	case spec.NoteEventsEvent:
		if err := f.take(m.Params.event(ModePush)); err != nil {
			return err
		}
	case spec.NoteEventsHeartbeat:
		f.mark(cursor)
	case spec.NoteEventsError:
		if m.Params.Error != nil {
			f.log.Warn("server reported an error", "error", m.Params.Error.fault(http.StatusOK))
		}
	case spec.NoteEventsTerminated:
		return terminated(f.sub.Name, m.Params.Error)
	default:
		return nil
	}
	if cursor != "" {
		f.cursor = cursor
	}
	return nil
}
