package main

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
	"github.com/mcp-events/mcpevents/shared/mcp"
	"github.com/mcp-events/mcpevents/shared/sse"
)

// occurrences follows one subscription of MCP Events without a webhook, by
// polls or by streams, and goes on from its cursor.
type occurrences struct {
	client    *mcpClient
	name      string
	arguments json.RawMessage
	cursor    string
	log       *slog.Logger
	event     func(received) error
	begun     bool // the first answer came
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

const (
	modeWebhook = "webhook"
	modePoll    = "poll"
	modePush    = "push"
)

// run follows until ctx ends or a fault that trying again does not mend.
func (o *occurrences) run(ctx context.Context, mode string) error {
	if err := persist(ctx, func() error { return o.client.begin(ctx) }); err != nil {
		return err
	}
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		defer cancel()
		o.client.end(last)
	}()
	once := o.poll
	if mode == modePush {
		once = o.stream
	}
	for failures := 0; ; {
		wait, err := once(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !again(err):
			return err
		case err != nil:
			o.log.Warn("request failed, retrying", "mode", mode, "error", err)
			err = pause(ctx, failures, 0)
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

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// params are those of both methods.
func (o *occurrences) params() map[string]any {
	params := map[string]any{"name": o.name, "arguments": o.arguments, "cursor": nil}
	if o.cursor != "" {
		params["cursor"] = o.cursor
	}
	return params
}

// leastPoll is the shortest time between two polls, whatever the server says.
const leastPoll = 100 * time.Millisecond

// poll polls once, and returns when to poll again.
func (o *occurrences) poll(ctx context.Context) (time.Duration, error) {
	var page struct {
		Events     []occurrence `json:"events"`
		Cursor     string       `json:"cursor"`
		Truncated  bool         `json:"truncated"`
		HasMore    bool         `json:"hasMore"`
		NextPollMs int64        `json:"nextPollMs"`
	}
	if err := o.client.call(ctx, "events/poll", o.params(), &page); err != nil {
		return 0, err
	}
	o.opened(modePoll, page.Truncated)
	for i, e := range page.Events {
		if i == len(page.Events)-1 {
			e.Cursor = page.Cursor // what came before it cannot be told apart by a cursor
		}
		if err := o.print(modePoll, e); err != nil {
			return 0, err
		}
	}
	o.cursor = page.Cursor
	if page.HasMore {
		return 0, nil
	}
	return min(max(time.Duration(page.NextPollMs)*time.Millisecond, leastPoll), time.Hour), nil
}

func (o *occurrences) opened(mode string, truncated bool) {
	if truncated {
		o.log.Warn("events missing after resume")
	}
	if !o.begun || mode == modePush {
		o.log.Info("following", "mode", mode, "name", o.name)
	}
	o.begun = true
}

func (o *occurrences) print(mode string, e occurrence) error {
	return o.event(received{
		Via: mode, ID: e.EventID, Name: e.Name, Time: e.Timestamp, Cursor: e.Cursor, Received: time.Now(), Data: e.Data,
	})
}

// stream opens a stream and reads it to its end.
func (o *occurrences) stream(ctx context.Context) (time.Duration, error) {
	const method = "events/stream"
	params := o.params()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, o.client.url, bytes.NewReader(o.client.request(method, params)))
	if err != nil {
		return 0, err
	}
	req.Header = o.client.header(method, params)
	req.Header.Set("Content-Type", "application/json")
	body, err := o.client.stream(ctx, req)
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
func (o *occurrences) message(data []byte) error {
	var m struct {
		Method string     `json:"method"`
		Params occurrence `json:"params"`
		Error  *rpcError  `json:"error"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		o.log.Warn("invalid stream message", "error", err)
		return nil
	}
	if m.Error != nil {
		return m.Error.fault(http.StatusOK)
	}
	switch m.Method {
	case mcp.NoteEventsActive:
		o.opened(modePush, m.Params.Truncated)
	case mcp.NoteEventsEvent:
		if err := o.print(modePush, m.Params); err != nil {
			return err
		}
	case mcp.NoteEventsError:
		if m.Params.Error != nil {
			o.log.Warn("server reported an error", "error", m.Params.Error.fault(http.StatusOK))
		}
	case mcp.NoteEventsTerminated:
		if m.Params.Error == nil {
			return fault.New(fault.Forbidden, "the server ended the subscription")
		}
		return m.Params.Error.fault(http.StatusOK)
	}
	if m.Params.Cursor != "" {
		o.cursor = m.Params.Cursor
	}
	return nil
}
