package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/sse"
)

// Follower follows one subscription of MCP Events without a webhook, by
// polls or by streams, and goes on from its cursor.
type Follower struct {
	Client    *Client
	Name      string          // of the event type
	Arguments json.RawMessage // an object
	Cursor    string          // where it goes on; empty is from now on
	Log       *slog.Logger
	Event     func(Event) error // its error ends the follower
	Opened    func()            // called when it has begun to follow; may be nil

	begun bool // the first answer came
}

// occurrence is an EventOccurrence (SEP-3415), or the params of a notification
// about the stream.
type occurrence struct {
	EventID   string          `json:"eventId"`
	Name      string          `json:"name"`
	Timestamp string          `json:"timestamp"`
	Data      json.RawMessage `json:"data"`
	Cursor    string          `json:"cursor"`
	Truncated bool            `json:"truncated"`
	Error     *rpcError       `json:"error"`
}

// Run follows until ctx ends or a fault that trying again does not mend.
func (o *Follower) Run(ctx context.Context, mode string) error {
	defer o.Client.endSession(ctx)
	if err := o.Client.persist(ctx, func() error { return o.Client.Begin(ctx) }); err != nil {
		return err
	}
	once := o.poll
	if mode == mcpspec.ModePush {
		once = o.stream
	}
	for failures := 0; ; {
		wait, err := once(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !Again(err):
			return err
		case err != nil:
			o.Log.Warn("request failed, retrying", "mode", mode, "error", err)
			err = Pause(ctx, failures, 0)
			failures++
		default:
			failures = 0
			err = sleep(ctx, wait)
		}
		if err != nil && ctx.Err() != nil {
			return nil
		}
	}
}

// params are those of both methods.
func (o *Follower) params() map[string]any {
	params := map[string]any{"name": o.Name, "arguments": o.Arguments, "cursor": nil}
	if o.Cursor != "" {
		params["cursor"] = o.Cursor
	}
	return params
}

// leastPoll is the shortest time between two polls, whatever the server says.
const leastPoll = 100 * time.Millisecond

// poll polls once, and returns when to poll again.
func (o *Follower) poll(ctx context.Context) (time.Duration, error) {
	var page struct {
		Events     []occurrence `json:"events"`
		Cursor     string       `json:"cursor"`
		Truncated  bool         `json:"truncated"`
		HasMore    bool         `json:"hasMore"`
		NextPollMs int64        `json:"nextPollMs"`
	}
	if err := o.Client.Call(ctx, mcpspec.MethodEventsPoll, o.params(), &page); err != nil {
		return 0, err
	}
	o.opened(mcpspec.ModePoll, page.Truncated)
	for i, e := range page.Events {
		if i == len(page.Events)-1 {
			e.Cursor = page.Cursor // what came before it cannot be told apart by a cursor
		}
		if err := o.print(mcpspec.ModePoll, e); err != nil {
			return 0, err
		}
	}
	o.Cursor = page.Cursor
	if page.HasMore {
		return 0, nil
	}
	return min(max(time.Duration(page.NextPollMs)*time.Millisecond, leastPoll), time.Hour), nil
}

func (o *Follower) opened(mode string, truncated bool) {
	if truncated {
		o.Log.Warn("events missing after resume")
	}
	if !o.begun || mode == mcpspec.ModePush {
		o.Log.Info("following", "mode", mode, "name", o.Name)
	}
	if !o.begun && o.Opened != nil {
		o.Opened()
	}
	o.begun = true
}

func (o *Follower) print(mode string, e occurrence) error {
	return o.Event(Event{
		Via: mode, ID: e.EventID, Name: e.Name, Time: e.Timestamp, Cursor: e.Cursor, Received: time.Now(), Data: e.Data,
	})
}

// stream opens a stream and reads it to its end.
func (o *Follower) stream(ctx context.Context) (time.Duration, error) {
	const method = mcpspec.MethodEventsStream
	params := o.params()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, o.Client.url, bytes.NewReader(o.Client.request(method, params)))
	if err != nil {
		return 0, err
	}
	req.Header = o.Client.header(method, params)
	req.Header.Set("Content-Type", "application/json")
	body, err := o.Client.stream(ctx, req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = body.Close() }()
	events := sse.NewReader(body, maxStreamEvent)
	for {
		e, err := events.Next()
		switch {
		case errors.Is(err, io.EOF):
			return firstPause, nil
		case err != nil:
			return 0, unreachable(ctx, err)
		case len(e.Data) == 0:
			continue
		}
		if err := o.message(e.Data); err != nil {
			return 0, err
		}
	}
}

// message handles one message of a stream.
func (o *Follower) message(data []byte) error {
	var m struct {
		Method string     `json:"method"`
		Params occurrence `json:"params"`
		Error  *rpcError  `json:"error"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		o.Log.Warn("invalid stream message", "error", err)
		return nil
	}
	if m.Error != nil {
		return m.Error.fault(http.StatusOK)
	}
	switch m.Method {
	case mcpspec.NoteEventsActive:
		o.opened(mcpspec.ModePush, m.Params.Truncated)
	case mcpspec.NoteEventsEvent:
		if err := o.print(mcpspec.ModePush, m.Params); err != nil {
			return err
		}
	case mcpspec.NoteEventsError:
		if m.Params.Error != nil {
			o.Log.Warn("server reported an error", "error", m.Params.Error.fault(http.StatusOK))
		}
	case mcpspec.NoteEventsTerminated:
		if m.Params.Error == nil {
			return fault.New(fault.Forbidden, "the server ended the subscription")
		}
		return m.Params.Error.fault(http.StatusOK)
	}
	if m.Params.Cursor != "" {
		o.Cursor = m.Params.Cursor
	}
	return nil
}
