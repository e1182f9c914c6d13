package client

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/mcp-events/mcpevents/shared/protocol/spec"
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

// event returns the event for the program.
func (o *occurrence) event(via string) Event {
	return Event{Via: via, ID: o.EventID, Name: o.Name, URI: o.uri(), Time: o.Timestamp, Cursor: o.Cursor, Received: time.Now(), Data: o.Data}
}

// uri returns the event's URI, which only servers of this project send. Other servers may put any JSON into _meta, and their events
// must still arrive.
func (o *occurrence) uri() string {
	var meta map[string]json.RawMessage
	var uri string
	if json.Unmarshal(o.Meta, &meta) != nil || json.Unmarshal(meta[metaURI], &uri) != nil {
		return ""
	}
	return uri
}

// The limits of the pause between two polls, for which the server asks (SEP-3415, "Response" of polls: at least 1000 ms).
const (
	leastPoll   = time.Second
	longestPoll = time.Hour
)

// pollOnce polls once and returns how long to wait before the next poll.
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
	// A page of a filtered poll can be empty although matching events follow it. If hasMore is true but the cursor stays
	// the same, the server is wrong, and polling again immediately would never end.
	if page.HasMore && progress {
		return 0, nil
	}
	return min(max(time.Duration(page.NextPollMs)*time.Millisecond, cmp.Or(c.options.MinPoll, leastPoll)), longestPoll), nil
}
