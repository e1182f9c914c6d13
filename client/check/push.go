package check

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// beat is what all notifications of a stream have.
type beat struct {
	Cursor *string                    `json:"cursor"`
	Meta   map[string]json.RawMessage `json:"_meta"`
}

// pushCheck checks events/stream of an event type.
type pushCheck struct {
	*checker
	t eventType
}

// seen judges what every notification must have.
func (c *pushCheck) seen(s *stream) func(note) {
	return func(n note) {
		if n.Method == "" {
			return
		}
		var b beat
		_ = json.Unmarshal(n.Params, &b)
		got := string(b.Meta[spec.MetaSubscription])
		c.judge(rulePushID, got == strconv.Itoa(s.id), "%s of the request %d has the subscriptionId %s", n.Method, s.id, got)
	}
}

// begin opens a stream and waits for its first message.
func (c *pushCheck) begin(ctx context.Context, cursor *string) (*stream, error) {
	s, a, err := c.conn.open(ctx, c.params(c.t, map[string]any{"cursor": cursor}))
	if err != nil {
		if errors.Is(err, errNoStream) {
			c.fail(rulePushActive, "events/stream is answered with %s", a)
		}
		return nil, err
	}
	first := ""
	_, err = s.next(ctx, c.Wait, spec.NoteEventsActive, func(n note) {
		if first == "" {
			first = n.Method
			c.judge(rulePushActive, first == spec.NoteEventsActive, "the first message is %q %s", first, clip(n.Params))
		}
		c.seen(s)(n)
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
	c.refused(rulePushRefusal, a, "NotFound", "a stream of an unknown event type")
	s := need(c.begin(ctx, nil))
	defer s.close()
	other, err := c.begin(ctx, nil)
	if err != nil {
		c.fail(rulePushParallel, "the second stream: %v", err)
	} else {
		defer other.close()
		c.pass(rulePushParallel)
	}
	c.events(ctx, s)
	c.heartbeat(ctx, s)
}

// events has an event come on a stream and by a poll, and again on a stream from before it.
func (c *pushCheck) events(ctx context.Context, s *stream) {
	if c.Publish == nil {
		c.skip(noPublish, rulePushEvent, rulePushResume, ruleSameID)
		return
	}
	polls := &pollCheck{c.checker, c.t}
	before, _ := polls.poll(ctx, map[string]any{"cursor": nil}) // where polls are offered
	c.emit(ctx, 2, rulePushEvent, rulePushResume, ruleSameID)
	var came []occurrence
	for range 2 {
		n, err := s.next(ctx, c.Wait, spec.NoteEventsEvent, c.seen(s))
		if err != nil {
			c.fail(rulePushEvent, "%d of 2 events: %v", len(came), err)
			return
		}
		came = append(came, c.event(n.Params, c.t, spec.ModePush))
	}
	c.pass(rulePushEvent)
	if before == nil || before.Cursor == nil {
		c.skip("the event type has no polls or no replay", ruleSameID)
	} else if ids := polls.drain(ctx, *before.Cursor, 2); len(ids) >= 2 {
		c.judge(ruleSameID, ids[0] == came[0].EventID && ids[1] == came[1].EventID, "polls have %q, the stream has %q", ids, came[0].EventID)
	}
	if came[0].Cursor == nil {
		c.skip("the event type has no replay (cursor null)", rulePushResume)
		return
	}
	resumed, err := c.begin(ctx, came[0].Cursor)
	if err != nil {
		c.fail(rulePushResume, "%v", err)
		return
	}
	defer resumed.close()
	n, err := resumed.next(ctx, c.Wait, spec.NoteEventsEvent, c.seen(resumed))
	if err != nil {
		c.fail(rulePushResume, "%v", err)
		return
	}
	got := c.event(n.Params, c.t, spec.ModePush).EventID
	c.judge(rulePushResume, got == came[1].EventID, "after the cursor of %s comes %s, not %s", came[0].EventID, got, came[1].EventID)
}

// heartbeat waits for one.
func (c *pushCheck) heartbeat(ctx context.Context, s *stream) {
	last := time.Now()
	n, err := s.next(ctx, c.Wait, spec.NoteEventsHeartbeat, c.seen(s))
	switch {
	case err == nil:
		c.pass(rulePushHeartbeat)
		c.judge(rulePushEvery, n.at.Sub(last) <= 31*time.Second, "the first one came after %s", n.at.Sub(last).Round(time.Second))
	case c.Wait < 30*time.Second:
		c.skip("no heartbeat within "+c.Wait.String()+", which is less than the 30 s that are allowed", rulePushHeartbeat, rulePushEvery)
	default:
		c.fail(rulePushHeartbeat, "%v", err)
	}
}
