package events

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Limits of one page of a poll.
const (
	defaultPoll  = 50      // events, without maxEvents
	maxPoll      = 500     // events, also for a greater maxEvents
	maxPollBytes = 1 << 20 // of payloads
)

// quietShare determines the time until the next poll from the time since the latest event. For example, a client should wait for a quarter
// of a minute after a minute without events.
const quietShare = 4

// Polls serves events/poll.
type Polls struct {
	Catalogs    method.Catalogs
	Feeds       *stream.Tails
	Least, Most time.Duration // limits of the time until the next poll
	Metrics     *metric.Set
}

// Poll serves events/poll (SEP-3415). It has no state between two polls.
func (h *Polls) Poll(ctx context.Context, c *method.Call) (method.Result, error) {
	w, err := readSelected(ctx, h.Catalogs, c, spec.ModePoll)
	if err != nil {
		return method.Result{}, err
	}
	most, err := readMaxEvents(c)
	if err != nil {
		return method.Result{}, err
	}
	page, err := h.Feeds.Poll(ctx, stream.PollRequest{
		Workspace: c.Principal.Workspace, Principal: c.Principal.ID, Pattern: w.Pattern, Cursor: w.cursor, MaxAge: w.maxAge,
		Wants: w.Wants, Most: most, Bytes: maxPollBytes,
	})
	if err != nil {
		return method.Result{}, err
	}
	b := []byte(`"events":[`)
	for i, ev := range page.Events {
		data, err := w.Data(ev)
		if err != nil {
			return method.Result{}, err
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = appendOccurrence(append(b, '{'), ev, data)
		b = match.AppendOccurrenceMeta(append(b, `,"_meta":{`...), ev, w.Entry)
		b = append(b, `}}`...)
	}
	b = jsonrpc.AppendString(append(b, `],"cursor":`...), page.Cursor)
	b = strconv.AppendBool(append(b, `,"truncated":`...), page.Truncated)
	b = strconv.AppendBool(append(b, `,"hasMore":`...), page.More)
	b = strconv.AppendInt(append(b, `,"nextPollMs":`...), h.nextPoll(page.Quiet).Milliseconds(), 10)
	h.Metrics.Polled()
	return method.Result{Members: [][]byte{b}}, nil
}

// nextPoll returns the time until the next poll. It grows with the time since the latest event.
func (h *Polls) nextPoll(quiet time.Duration) time.Duration {
	return min(max(quiet/quietShare, h.Least), h.Most)
}

// readMaxEvents returns the maximum number of events for the client.
func readMaxEvents(c *method.Call) (int, error) {
	raw := c.Param("maxEvents")
	if raw == nil {
		return defaultPoll, nil
	}
	var n float64 // 10, 1e1 and 10.0 are one number in JSON
	if json.Unmarshal(raw, &n) != nil || n < 1 || n < maxPoll && n != float64(int(n)) {
		return 0, method.InvalidParams("maxEvents must be an integer of at least 1")
	}
	return int(min(n, maxPoll)), nil
}
