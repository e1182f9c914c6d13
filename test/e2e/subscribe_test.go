//go:build unix

package e2e

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// occurrence is an EventOccurrence of the MCP Events extension.
type occurrence struct {
	EventID   string
	Name      string
	Timestamp string
	Data      map[string]any
	Cursor    *string
	Meta      map[string]json.RawMessage `json:"_meta"`
}

// TestSubscribe tests events/subscribe and events/unsubscribe (SEP-3415).
func TestSubscribe(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{Args: []string{"--min-ttl", "1s", "--events-retry-schedule", "0s,1s,1s"}})
	subscribing(t, &s.Target)
	t.Run("EVX-09 subscriptions survive a restart", func(t *testing.T) {
		hook := harness.NewReceiver(t).Endpoint("survives")
		subscribe(t, s.Stateless("alice"), hook, "calendar.event_changed", nil)
		s.Stop()
		s.Start()
		s.Publish(t, harness.Event{ID: "after", URI: "event://calendar/team/changed", Data: object{"id": "1", "change": "created"}})
		d := hook.Wait(t, 1)[0]
		expect.OK(t, d.Verify(hook.Secret()))
		expect.Equal(t, "the number of challenges", len(hook.Challenges()), 1)
	})
}

func subscribing(t *testing.T, s *harness.Target) {
	receiver := harness.NewReceiver(t)
	alice := s.Stateless("alice")

	t.Run("EVX-10 EVX-14 an endpoint that fails nearly always is suspended until a refresh, and no event is lost", func(t *testing.T) {
		hook := receiver.Endpoint("fails")
		up := make(chan struct{})
		hook.Answer(func(int, *harness.Delivery) harness.Reply {
			select {
			case <-up:
				return harness.Reply{Status: 200}
			default:
				return harness.Reply{Status: 500}
			}
		})
		args := object{"workspace": "acme", "channel": "fails"}
		r := subscribe(t, alice, hook, "message.created", args)
		const events = 110
		var all []harness.Event
		for i := range events {
			all = append(all, message(fmt.Sprint("f", i), "fails"))
		}
		s.Publish(t, all...)
		read := func() (state string) {
			var out struct{ Contents []struct{ Text string } }
			alice.Call(t, "resources/read", object{"uri": "subscription://" + r.ID}, &out)
			return decode[struct{ State string }](t, []byte(out.Contents[0].Text)).State
		}
		harness.Eventually(t, harness.Patience, "the suspension", func() bool { return read() == "suspended" })
		s.Publish(t, message("meanwhile", "fails"))
		close(up)
		var again struct {
			ID             string
			DeliveryStatus *struct {
				Active    bool
				LastError *string
			}
		}
		alice.Call(t, "events/subscribe", subscription("message.created", args, hook.URL(), hook.Secret()), &again)
		if s := again.DeliveryStatus; again.ID != r.ID || s == nil || s.Active || s.LastError != nil && *s.LastError != "http_5xx" {
			t.Errorf("the refresh returned %+v, status %+v", again, s)
		}
		missing := func() (ids []string) {
			attempts, taken := hook.IDs(), map[string]bool{}
			for _, d := range hook.Deliveries() {
				taken[d.ID()] = taken[d.ID()] || d.Answered == 200
			}
			for _, e := range append(all, message("meanwhile", "fails")) {
				if !taken[e.ID] && attempts[e.ID] < 3 { // an event is given up after its third attempt, before the suspension
					ids = append(ids, e.ID)
				}
			}
			return ids
		}
		// This takes seconds, except that an event whose endpoint has no free slot waits in the due table for more
		// than a minute.
		if !harness.Within(t, time.Minute+harness.Patience, func() bool { return len(missing()) == 0 && read() == "active" }) {
			t.Errorf("missing are %v, and the subscription is %s", missing(), read())
		}
	})
}

func unsubscribe(tb testing.TB, c *harness.Client, e *harness.Endpoint, name string, arguments object) {
	tb.Helper()
	if arguments == nil {
		arguments = object{}
	}
	c.Call(tb, "events/unsubscribe", object{
		"name": name, "arguments": arguments, "delivery": object{"mode": "webhook", "url": e.URL()},
	}, nil)
}
