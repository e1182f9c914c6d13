package delivery

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// A client refreshes a subscription to a wildcard less often than the log's retention. The cursors that it gets must lead
// to the events of the wildcard all the same.
func TestCursorsOfAWildcardThatIsSeldomRefreshed(t *testing.T) {
	const uri, pattern = "event://github/acme/site/push", "event://github/acme/*/push"
	push := func(q *subscription.SubscribeRequest) {
		q.Name, q.Arguments = "github.push", json.RawMessage(`{"owner":"acme"}`)
		q.TTL = subscription.TTL{Asked: true, For: 7 * 24 * time.Hour}
	}
	start := func(t *testing.T) *rig {
		r := newRig(t)
		now := func() time.Time { return r.now }
		db, err := sqlite.Open(sqlite.Memory, sqlite.Options{SweepEvery: -1, Engine: engine.Options{Now: now}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		r.db, r.log = db, &eventlog.Log{DB: db, Now: now}
		r.services = r.service(db, r.log)
		r.subscribe(push)
		return r
	}
	publish := func(r *rig) {
		r.publishTo(uri, "github.push", "e", `{"ok":true}`)
		fanout, _, _ := r.process()
		fanout.Now = func() time.Time { return r.now }
		r.hand(queue.Events, fanout.Handle)
	}
	poll := func(t *testing.T, r *rig, cursor string) []string {
		t.Helper()
		tails := stream.New(r.log, r.db, r.sealer)
		defer tails.Close()
		page, err := tails.Poll(t.Context(), stream.PollRequest{
			Workspace: "default", Cursor: cursor, Most: 10, Bytes: 1 << 20,
			Pattern: match.Pattern{Kind: match.Wildcard, Key: pattern, Entry: "github.push", Shape: match.Shape{Scope: "entry:github.push", Name: "m2"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, e := range page.Events {
			ids = append(ids, e.ID)
		}
		return ids
	}
	for _, wait := range []time.Duration{time.Hour, 30 * time.Hour, 6 * 24 * time.Hour} {
		t.Run(fmt.Sprint("EVX-11 the cursor of a refresh does not skip an event whose page waits, after ", wait), func(t *testing.T) {
			r := start(t)
			r.now = r.now.Add(wait)
			publish(r)
			r.now = r.now.Add(2 * time.Second)
			if got, want := poll(t, r, r.subscribe(push).Cursor), "[e]"; fmt.Sprint(got) != want || len(r.posts) > 0 {
				t.Errorf("a poll with the cursor returned %v after %d attempts, want %s after 0", got, len(r.posts), want)
			}
		})
		t.Run(fmt.Sprint("EVX-13 the cursor of a gap notice leads to the lost event, after ", wait), func(t *testing.T) {
			r := start(t)
			r.now = r.now.Add(wait)
			r.script = refuse(r, webhook.Outcome{Status: 500, Category: webhook.HTTP5xx})
			publish(r)
			r.run()
			ids, notice := r.gaps(t)
			if len(ids) != 1 {
				t.Fatalf("%d gap notices were sent, want 1", len(ids))
			}
			var body struct{ Cursor string }
			if err := json.Unmarshal(notice.Body, &body); err != nil {
				t.Fatal(err)
			}
			if got, want := poll(t, r, body.Cursor), "[e]"; fmt.Sprint(got) != want {
				t.Errorf("a poll with the cursor returned %v, want %s", got, want)
			}
		})
	}
}
