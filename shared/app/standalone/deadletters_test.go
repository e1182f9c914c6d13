package standalone

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
	queuesqlite "github.com/mcp-events/mcpevents/shared/storage/queue/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

func TestEventsOfANewerVersionStayInTheirQueue(t *testing.T) {
	t.Run("AWS-06 given an event of a newer version that was received 999 times, when fanout leaves it, then it is no dead letter", func(t *testing.T) {
		data := t.TempDir()
		db, err := sqlite.Open(filepath.Join(data, databaseName), sqlite.Options{})
		if err != nil {
			t.Fatal(err)
		}
		queues, err := queuesqlite.Open(db.Engine(), queuesqlite.Options{})
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(
			queues.Send(t.Context(), queue.Events, queue.Outgoing{Body: []byte(`{"v":99}`), Group: "g"}),
			db.Engine().Do(t.Context(), sqlJob("UPDATE queue_events SET received=999")),
			queues.Close(), db.Close())
		if err != nil {
			t.Fatal(err)
		}
		s := serve(t, func(o *Options) { o.Data = data })
		var rows, failures int64
		for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			err := s.db.Engine().Read(t.Context(), func(c *engine.Conn) (err error) {
				if rows, err = c.Int("SELECT count(*) FROM queue_events"); err != nil {
					return err
				}
				failures, err = c.Int("SELECT max(received) FROM queue_events")
				return err
			})
			if err != nil || time.Now().After(end) {
				t.Fatalf("got error %v, %d events after %d failures", err, rows, failures)
			}
			if rows == 0 || failures == queue.MaxReceives {
				break
			}
		}
		if rows != 1 || failures != queue.MaxReceives {
			t.Errorf("got %d events after %d failures, want one after %d", rows, failures, queue.MaxReceives)
		}
		if status, text := ask(t, s, "", "GET", "/admin/v1/dead-letters", ""); status != 200 || strings.Contains(text, "events") {
			t.Errorf("got %d and dead letters %s, want none", status, text)
		}
	})
}

// Dead letters of queues are in the list, and a retry sends them back to their queue, where these die again.
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
			t.Fatalf("%s %s: got %d %s", method, path, status, text)
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
				t.Fatalf("%s: %d were wanted", query, n)
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
			if name == "events" { // what is none is of the inbox now
				listed("?queue=inbox", 2)
				continue
			}
			if again := listed("?queue="+name, 1)[0]; again.ID == id {
				t.Errorf("%s: it was not sent", name)
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
