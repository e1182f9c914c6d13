package check

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

type pollResult struct {
	Events     []json.RawMessage `json:"events"`
	Cursor     *string           `json:"cursor"`
	HasMore    *bool             `json:"hasMore"`
	NextPollMs *int64            `json:"nextPollMs"`
}

// noPublish is the reason in the report for rules that cannot be tested without an event.
const noPublish = "no command publishes events (--publish)"

type pollCheck struct {
	*checker
	t eventType
}

func (c *pollCheck) poll(ctx context.Context, more map[string]any) (*pollResult, error) {
	a, err := c.conn.call(ctx, spec.MethodEventsPoll, c.makeParams(c.t, more))
	if err != nil {
		return nil, err
	}
	var p pollResult
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

// drain sends events/poll until it has received n events, for at most the time Wait. It returns the ids of the received events.
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
		// Pause for at most a second before the next poll, even if the server asks for a longer pause. Otherwise c.Wait may be over
		// before the second poll.
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

// commonParams are the params that all notifications of an event stream have.
type commonParams struct {
	Cursor *string                    `json:"cursor"`
	Meta   map[string]json.RawMessage `json:"_meta"`
}

type pushCheck struct {
	*checker
	t eventType
}

// judgeNote returns a function that checks that each notification of a stream has the stream's subscription id.
func (c *pushCheck) judgeNote(s *stream) func(note) {
	return func(n note) {
		if n.Method == "" {
			return
		}
		var b commonParams
		_ = json.Unmarshal(n.Params, &b)
		got := string(b.Meta[spec.MetaSubscription])
		c.judge(rulePushID, got == strconv.Itoa(s.id), "%s of request %d has the subscriptionId %s", n.Method, s.id, got)
	}
}

// begin opens a stream, and waits for the notification notifications/events/active. It checks that this notification is the first message
// of the stream. The stream begins after the given cursor or, if the cursor is nil, with new events.
func (c *pushCheck) begin(ctx context.Context, cursor *string) (*stream, error) {
	s, a, err := c.conn.open(ctx, c.makeParams(c.t, map[string]any{"cursor": cursor}))
	if err != nil {
		if errors.Is(err, errNoStream) {
			c.fail(rulePushActive, "the answer to events/stream is %s", a)
		}
		return nil, err
	}
	first := ""
	_, err = s.next(ctx, c.Wait, spec.NoteEventsActive, func(n note) {
		if first == "" {
			first = n.Method
			c.judge(rulePushActive, first == spec.NoteEventsActive, "the first message is %q with %s", first, clip(n.Params))
		}
		c.judgeNote(s)(n)
	})
	if err != nil {
		s.close()
		c.fail(rulePushActive, "%v", err)
		return nil, err
	}
	return s, nil
}

func (c *pushCheck) run(ctx context.Context) {
	a := need(c.conn.openRefused(ctx, map[string]any{"name": unknownEvent, "arguments": map[string]any{}}, c.Wait))
	c.judgeRefusal(rulePushRefusal, a, "NotFound", "a stream of an unknown event type")
	s := need(c.begin(ctx, nil))
	defer s.close()
	other, err := c.begin(ctx, nil)
	if err != nil {
		c.fail(rulePushParallel, "the second stream: %v", err)
	} else {
		defer other.close()
		c.pass(rulePushParallel)
	}
	c.checkEvents(ctx, s)
	c.awaitHeartbeat(ctx, s)
}

// checkEvents publishes two events. It checks that they arrive on the stream s, that polls return events with the same ids, and that a
// second stream can begin after the first event.
func (c *pushCheck) checkEvents(ctx context.Context, s *stream) {
	if c.Publish == nil {
		c.skip(noPublish, rulePushEvent, rulePushResume, ruleSameID)
		return
	}
	polls := &pollCheck{c.checker, c.t}
	before, _ := polls.poll(ctx, map[string]any{"cursor": nil}) // fails if the event type has no polls
	c.emit(ctx, 2, rulePushEvent, rulePushResume, ruleSameID)
	var arrived []occurrence
	for range 2 {
		n, err := s.next(ctx, c.Wait, spec.NoteEventsEvent, c.judgeNote(s))
		if err != nil {
			c.fail(rulePushEvent, "%d of 2 events: %v", len(arrived), err)
			return
		}
		arrived = append(arrived, c.judgeEvent(n.Params, c.t, spec.ModePush))
	}
	c.pass(rulePushEvent)
	if before == nil || before.Cursor == nil {
		c.skip("the event type has no polls or no replay", ruleSameID)
	} else if ids := polls.drain(ctx, *before.Cursor, 2); len(ids) >= 2 {
		c.judge(ruleSameID, ids[0] == arrived[0].EventID && ids[1] == arrived[1].EventID, "polls have %q, the stream has %q", ids, arrived[0].EventID)
	}
	if arrived[0].Cursor == nil {
		c.skip("the event type has no replay (cursor null)", rulePushResume)
		return
	}
	resumed, err := c.begin(ctx, arrived[0].Cursor)
	if err != nil {
		c.fail(rulePushResume, "%v", err)
		return
	}
	defer resumed.close()
	n, err := resumed.next(ctx, c.Wait, spec.NoteEventsEvent, c.judgeNote(resumed))
	if err != nil {
		c.fail(rulePushResume, "%v", err)
		return
	}
	got := c.judgeEvent(n.Params, c.t, spec.ModePush).EventID
	c.judge(rulePushResume, got == arrived[1].EventID, "after the cursor of %s: got %s, want %s", arrived[0].EventID, got, arrived[1].EventID)
}

// awaitHeartbeat checks that the stream sends a heartbeat within 30 seconds. If the check waits for a shorter time, a missing heartbeat
// is not a failure.
func (c *pushCheck) awaitHeartbeat(ctx context.Context, s *stream) {
	last := time.Now()
	n, err := s.next(ctx, c.Wait, spec.NoteEventsHeartbeat, c.judgeNote(s))
	switch {
	case err == nil:
		c.pass(rulePushHeartbeat)
		c.judge(rulePushEvery, n.at.Sub(last) <= 31*time.Second, "the first one arrived after %s", n.at.Sub(last).Round(time.Second))
	case c.Wait < 30*time.Second:
		c.skip("no heartbeat within "+c.Wait.String()+", but the server may take 30 s", rulePushHeartbeat, rulePushEvery)
	default:
		c.fail(rulePushHeartbeat, "%v", err)
	}
}
