package check

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// beat holds the members that all notifications of a stream have.
type beat struct {
	Cursor *string                    `json:"cursor"`
	Meta   map[string]json.RawMessage `json:"_meta"`
}

// pushCheck checks events/stream of an event type.
type pushCheck struct {
	*checker
	t eventType
}

// judgeNote returns a function that judges the members that every notification of a stream must have.
func (c *pushCheck) judgeNote(s *stream) func(note) {
	return func(n note) {
		if n.Method == "" {
			return
		}
		var b beat
		_ = json.Unmarshal(n.Params, &b)
		got := string(b.Meta[spec.MetaSubscription])
		c.judge(rulePushID, got == strconv.Itoa(s.id), "%s of request %d has the subscriptionId %s", n.Method, s.id, got)
	}
}

// begin opens a stream and waits for its first message.
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

// checkEvents publishes two events and compares them on the stream, in a poll, and on a second stream from the first cursor.
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

// awaitHeartbeat waits for a heartbeat.
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
