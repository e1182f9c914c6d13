//go:build unix

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestListen tests subscriptions/listen of revision 2026-07-28.
func TestListen(t *testing.T) {
	t.Parallel()
	listening(t, &harness.StartServer(t, harness.ServerOptions{}).Target)
}

func listening(t *testing.T, s *harness.Target) {
	c := s.Stateless("alice")

	t.Run("SUB-01 the acknowledgment comes first and contains the accepted subset", func(t *testing.T) {
		l := c.Listen(t, 1, object{
			"toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true, "colourListChanged": true,
			"resourceSubscriptions": []string{
				"event://ci/build-finished", "event://no/such/thing", "file:///etc/passwd",
				"event://deploy/moon/api/finished", "event://github/acme", "subscription://sub_00000000000000000000000000000000",
			},
		}, nil)
		m := l.Next(t)
		if m.Method != "notifications/subscriptions/acknowledged" || len(m.ID) != 0 {
			t.Fatalf("first message: %s", m.Raw)
		}
		p := decode[struct{ Notifications map[string]any }](t, m.Params)
		want := object{"resourcesListChanged": true, "resourceSubscriptions": []string{"event://ci/build-finished", "event://github/acme"}}
		if !sameJSON(t, marshal(t, p.Notifications), marshal(t, want)) {
			t.Errorf("acknowledged %v, want %v", p.Notifications, want)
		}
	})
	t.Run("SUB-01 an empty request is acknowledged", func(t *testing.T) {
		l := c.Listen(t, 1, object{}, nil)
		p := decode[struct{ Notifications map[string]any }](t, l.Next(t).Params)
		if len(p.Notifications) != 0 {
			t.Errorf("acknowledged %v", p.Notifications)
		}
	})

	ids := []any{7, "seven", "7", 9007199254740993, 0, -3, ""}
	for i, id := range ids {
		t.Run(fmt.Sprintf("SUB-02 the subscription id is the request id %s", marshal(t, id)), func(t *testing.T) {
			channel := fmt.Sprintf("ids-%d", i)
			l := c.Listen(t, id, object{"resourceSubscriptions": []string{"event://chat/acme/" + channel}, "resourcesListChanged": true}, nil)
			event := s.Publish(t, message("", channel))[0].ID
			l.Wait(t, 1)
			for _, m := range l.Messages() {
				if got := harness.Meta(m.Params, harness.SubscriptionID); string(got) != string(marshal(t, id)) {
					t.Errorf("%s: subscription id %s, want %s", m.Method, got, marshal(t, id))
				}
			}
			if got := l.Updates()[0].EventID; got != event {
				t.Errorf("event %s, want %s", got, event)
			}
		})
	}

	t.Run("SUB-03 each kind can be requested separately", func(t *testing.T) {
		kinds := []string{"event://chat/acme/kinds/message"}
		only := c.Listen(t, 1, object{"resourceSubscriptions": kinds}, nil)
		lists := c.Listen(t, 2, object{"resourcesListChanged": true}, nil)
		both := c.Listen(t, 3, object{"resourcesListChanged": true, "resourceSubscriptions": kinds}, nil)
		nothing := c.Listen(t, 4, object{"resourcesListChanged": false, "resourceSubscriptions": []string{}}, nil)
		var r registered
		c.Call(t, "resources/subscriptions/register", object{
			"uris": []string{"event://incidents"}, "targetUri": "http://127.0.0.1:9/",
		}, &r)
		s.Publish(t, message("kinds-1", "kinds"))
		only.Wait(t, 1)
		both.Wait(t, 1)
		hasChange := func(l *harness.Stream) bool {
			return slices.ContainsFunc(l.Messages(), func(m *harness.Message) bool { return m.Method == "notifications/resources/list_changed" })
		}
		harness.Eventually(t, harness.Patience, "list_changed", func() bool { return hasChange(lists) && hasChange(both) })
		deregister(t, c, r.Subscription.URI)
		s.Publish(t, message("kinds-2", "kinds"))
		only.Wait(t, 2)
		if hasChange(only) || len(lists.Updates()) != 0 || len(nothing.Messages()) != 1 {
			t.Errorf("unrequested messages: %d, %d, %d", len(only.Messages()), len(lists.Messages()), len(nothing.Messages()))
		}
	})

	t.Run("SUB-07 headers of the stream", func(t *testing.T) {
		l := c.Listen(t, 1, object{}, nil)
		if l.Header.Get("X-Accel-Buffering") != "no" || l.Header.Get("Cache-Control") == "" {
			t.Errorf("headers: %v", l.Header)
		}
		if l.Header.Get("Mcp-Session-Id") != "" {
			t.Error("got a session id in the stateless revision")
		}
	})

	t.Run("SUB-08 a listen resumes from the last cursor", func(t *testing.T) {
		want := object{"resourceSubscriptions": []string{"event://chat/cursors", "event://chat/cursors/general/message"}}
		l := c.Listen(t, 1, want, nil)
		for i := range 10 {
			s.Publish(t, messageIn("cursors", fmt.Sprintf("c%d", i), "general"))
		}
		first := l.Wait(t, 10)
		l.Close()
		for i := 10; i < 20; i++ {
			s.Publish(t, messageIn("cursors", fmt.Sprintf("c%d", i), []string{"general", "random"}[i%2]))
		}
		again := c.Listen(t, 2, want, object{harness.Prefix + "cursor": first[4].Cursor})
		var got []string
		for _, u := range again.Wait(t, 15) {
			got = append(got, u.EventID)
		}
		slices.Sort(got)
		var expected []string
		for i := 5; i < 20; i++ {
			expected = append(expected, fmt.Sprintf("c%d", i))
		}
		slices.Sort(expected)
		if !slices.Equal(got, expected) {
			t.Errorf("resumed with %v, want %v", got, expected)
		}
		c.Refused(t, -32602, "subscriptions/listen", object{"notifications": want, "_meta": object{harness.Prefix + "cursor": "forged"}})
	})

	t.Run("SUB-09 GET and DELETE do not exist in this revision", func(t *testing.T) {
		for _, method := range []string{http.MethodGet, http.MethodDelete} {
			if a := c.Raw(t, method, ""); a.Status != http.StatusMethodNotAllowed {
				t.Errorf("%s: status %d, want 405", method, a.Status)
			}
		}
	})
}

// TestListenEnds tests how the server ends a listen.
func TestListenEnds(t *testing.T) {
	t.Parallel()
	t.Run("SUB-06 SUB-02 the server ends a listen with its result", func(t *testing.T) {
		other := harness.StartServer(t, harness.ServerOptions{Args: []string{"--stream-max-age", "1s"}})
		l := other.Stateless("alice").Listen(t, "end", object{"resourcesListChanged": true}, nil)
		<-l.Ended()
		messages := l.Messages()
		last := messages[len(messages)-1]
		var result struct{ ResultType string }
		if err := json.Unmarshal(last.Result, &result); err != nil || result.ResultType != "complete" || string(last.ID) != `"end"` {
			t.Errorf("last message: %s", last.Raw)
		}
		if got := harness.Meta(last.Result, harness.SubscriptionID); string(got) != `"end"` {
			t.Errorf("subscription id of the result: %s", got)
		}
		if l.Err() != io.EOF {
			t.Errorf("ended by %v", l.Err())
		}
	})
	t.Run("SUB-06 SIGTERM ends streams in the same way", func(t *testing.T) {
		other := harness.StartServer(t, harness.ServerOptions{})
		l := other.Stateless("alice").Listen(t, 5, object{"resourcesListChanged": true}, nil)
		other.Stop()
		<-l.Ended()
		messages := l.Messages()
		if last := messages[len(messages)-1]; string(last.ID) != "5" || last.Result == nil {
			t.Errorf("last message: %s", last.Raw)
		}
	})
}

// message returns a valid event of the type message.created.
func message(id, channel string) harness.Event { return messageIn("acme", id, channel) }

// messageIn returns a message in another chat workspace.
func messageIn(workspace, id, channel string) harness.Event {
	return harness.Event{ID: id, URI: "event://chat/" + workspace + "/" + channel + "/message", Data: object{"id": id, "user": "u1", "text": "Hello"}}
}
