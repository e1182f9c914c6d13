package check

import (
	"context"
	"encoding/json"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// page is the result of a poll.
type page struct {
	Events     []json.RawMessage `json:"events"`
	Cursor     *string           `json:"cursor"`
	HasMore    *bool             `json:"hasMore"`
	NextPollMs *int64            `json:"nextPollMs"`
}

// noPublish is the reason why rules that need an event are not testable.
const noPublish = "no command publishes events (--publish)"

// pollCheck checks events/poll of an event type.
type pollCheck struct {
	*checker
	t eventType
}

// poll sends a poll and judges the form of its result.
func (c *pollCheck) poll(ctx context.Context, more map[string]any) (*page, error) {
	a, err := c.conn.call(ctx, spec.MethodEventsPoll, c.makeParams(c.t, more))
	if err != nil {
		return nil, err
	}
	var p page
	if a.err != nil || json.Unmarshal(a.result, &p) != nil {
		c.fail(rulePollMembers, "the answer to events/poll is %s", a)
		return nil, fault.New(fault.Unavailable, "events/poll of %s: %s", c.t.Name, a)
	}
	c.judge(rulePollMembers, p.Events != nil && p.HasMore != nil && p.NextPollMs != nil && *p.NextPollMs >= 0, "the result is %s", clip(a.result))
	return &p, nil
}

func (c *pollCheck) run(ctx context.Context) {
	for rule, more := range map[*Rule]map[string]any{rulePollNull: {"cursor": nil}, rulePollAbsent: {}} {
		p := need(c.poll(ctx, more))
		c.judge(rule, len(p.Events) == 0, "got %d events, want 0", len(p.Events))
	}
	if c.Publish == nil {
		c.skip(noPublish, rulePollEvent, rulePollReplay, rulePollMax)
		return
	}
	start := need(c.poll(ctx, map[string]any{"cursor": nil}))
	c.emit(ctx, 2, rulePollEvent, rulePollReplay, rulePollMax)
	if start.Cursor == nil {
		c.skip("the event type has no replay (cursor null)", rulePollReplay, rulePollMax, rulePollEvent)
		return
	}
	ids := c.drain(ctx, *start.Cursor, 2)
	c.judge(rulePollEvent, len(ids) >= 2, "got %d of 2 events within %s", len(ids), c.Wait)
	if len(ids) < 2 {
		c.skip("the events did not arrive", rulePollReplay, rulePollMax)
		return
	}
	p := need(c.poll(ctx, map[string]any{"cursor": *start.Cursor}))
	again := len(p.Events) > 0 && c.judgeEvent(p.Events[0], c.t, spec.ModePoll).EventID == ids[0]
	c.judge(rulePollReplay, again, "the first event is no longer %s", ids[0])
	p = need(c.poll(ctx, map[string]any{"cursor": *start.Cursor, "maxEvents": 1}))
	c.judge(rulePollMax, len(p.Events) == 1 && p.HasMore != nil && *p.HasMore, "with maxEvents 1: got %d events of 2, or hasMore is not true", len(p.Events))
}

// drain polls from a cursor until there are n events and returns their ids.
func (c *pollCheck) drain(ctx context.Context, cursor string, n int) (ids []string) {
	deadline := time.Now().Add(c.Wait)
	for time.Now().Before(deadline) {
		p, err := c.poll(ctx, map[string]any{"cursor": cursor})
		if err != nil {
			return ids
		}
		for _, raw := range p.Events {
			ids = append(ids, c.judgeEvent(raw, c.t, spec.ModePoll).EventID)
		}
		if p.Cursor != nil {
			cursor = *p.Cursor
		}
		if len(ids) >= n {
			return ids
		}
		// The server may ask for a longer pause than a check should wait.
		pause := 250 * time.Millisecond
		if p.NextPollMs != nil {
			pause = min(max(pause, time.Duration(*p.NextPollMs)*time.Millisecond), time.Second)
		}
		if periodic.Sleep(ctx, pause) != nil {
			return ids
		}
	}
	return ids
}
