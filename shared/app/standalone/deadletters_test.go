package standalone

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// Dead letters of queues are in the list, and a retry sends them back to their queue. The messages of this test are invalid,
// so they become dead letters again.
func TestDeadLettersOfQueues(t *testing.T) {
	s := serve(t, nil)
	type letter struct {
		ID, Queue, Reason string
		First, Dead       time.Time
	}
	call := func(method, path, body string, want int, out any) {
		t.Helper()
		status, text := ask(t, s, "", method, "/admin/v1/"+path, body)
		if status != want {
			t.Fatalf("%s %s: got status %d %s, want %d", method, path, status, text, want)
		}
		if out != nil {
			if err := json.Unmarshal([]byte(text), out); err != nil {
				t.Fatal(err)
			}
		}
	}
	listed := func(query string, n int) (items []letter) {
		t.Helper()
		for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			var l struct{ Items []letter }
			if call("GET", "dead-letters"+query, "", 200, &l); len(l.Items) == n {
				return l.Items
			}
			if time.Now().After(end) {
				t.Fatalf("%s: got %d dead letters, want %d", query, len(l.Items), n)
			}
		}
	}
	for name, body := range map[queue.Name]string{queue.Inbox: "no event", queue.Events: `{"v":1}`, queue.Slow: "no delivery"} {
		m := queue.Outgoing{Body: []byte(body)}
		if name.FIFO() {
			m.Group = "g"
		}
		if err := s.queues.Send(t.Context(), name, m); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("OPS-04 AWS-07 they tell their queue, a reason and since when", func(t *testing.T) {
		for query, n := range map[string]int{"": 3, "?queue=inbox": 1, "?queue=events": 1, "?queue=slow": 1, "?queue=webhooks": 0, "?event=ci.build_finished": 0, "?queue=other": 0} {
			for _, l := range listed(query, n) {
				if l.Reason == "" || l.First.IsZero() || l.Dead.Before(l.First) || query != "" && query != "?queue="+l.Queue {
					t.Errorf("%s: got %+v", query, l)
				}
			}
		}
	})
	t.Run("OPS-04 one is sent back to its queue, once", func(t *testing.T) {
		for _, name := range []string{"inbox", "events", "slow"} {
			id := listed("?queue="+name, 1)[0].ID
			var sent struct{ Queue string }
			if call("POST", "dead-letters/"+id+"/retry", "", 202, &sent); sent.Queue != name {
				t.Errorf("got %+v", sent)
			}
			call("POST", "dead-letters/"+id+"/retry", "", 404, nil)
			if name == "events" { // events are sent back through the inbox, which rejects this one
				listed("?queue=inbox", 2)
				continue
			}
			if again := listed("?queue="+name, 1)[0]; again.ID == id {
				t.Errorf("%s: the dead letter %s is still there, want a new one", name, id)
			}
		}
	})
	t.Run("OPS-04 a replay is of webhooks, unless it names a queue that takes messages", func(t *testing.T) {
		for name, want := range map[string]int{"": 0, "webhooks": 0, "slow": 1} {
			var count struct{ Count int }
			if call("POST", "replays", `{"select":{"queue":"`+name+`"},"dryRun":true}`, 200, &count); count.Count != want {
				t.Errorf("%s: it counts %d", name, count.Count)
			}
		}
		for _, name := range []string{"dead", "table:log", "other"} {
			call("POST", "replays", `{"select":{"queue":"`+name+`"},"dryRun":true}`, 400, nil)
		}
	})
}
