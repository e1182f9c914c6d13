//go:build unix

package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestFollow tests events/poll and events/stream (SEP-3415) next to webhooks. TestOnLocalAWS does the same on AWS.
func TestFollow(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{})
	following(t, &s.Target)
	t.Run("EVX-07 cursors survive a restart", func(t *testing.T) {
		f := follow(t, &s.Target, "github.push", object{"owner": "restart"})
		s.Stop()
		s.Start()
		s.Publish(t, push("r1", "restart", "web"))
		expect.Equal(t, "the event", f.wait(t, 1)[0].EventID, "r1")
	})
}

// page is the result of events/poll.
type page struct {
	ResultType string
	Events     []occurrence
	Cursor     string
	Truncated  bool
	HasMore    bool
	NextPollMs int
}

// follower polls one subscription.
type follower struct {
	client    *harness.Client
	name      string
	arguments object
	cursor    string
	pages     int
	got       []occurrence
}

// follow gets the first cursor of a subscription.
func follow(t *testing.T, s *harness.Target, name string, arguments object) *follower {
	t.Helper()
	f := &follower{client: s.Stateless("alice"), name: name, arguments: arguments}
	if p := f.poll(t, nil); len(p.Events) > 0 || p.HasMore || p.Truncated {
		t.Fatalf("the first poll returned %+v", p)
	}
	return f
}

func (f *follower) poll(t *testing.T, more object) page {
	t.Helper()
	params := object{"name": f.name, "arguments": f.arguments, "cursor": nil}
	if f.cursor != "" {
		params["cursor"] = f.cursor
	}
	maps.Copy(params, more)
	var p page
	f.client.Call(t, "events/poll", params, &p)
	if p.ResultType != "complete" || p.Cursor == "" || p.NextPollMs < 100 {
		t.Fatalf("the result of a poll is %+v", p)
	}
	f.cursor = p.Cursor
	f.got = append(f.got, p.Events...)
	f.pages++
	return p
}

// wait polls, a few events at a time, until it has n different events in total.
func (f *follower) wait(t *testing.T, n int) []occurrence {
	t.Helper()
	harness.Eventually(t, harness.Patience, fmt.Sprintf("%d events of %s by polls", n, f.name), func() bool {
		for f.poll(t, object{"maxEvents": 4}).HasMore {
			continue
		}
		return len(different(f.got)) >= n
	})
	return f.got
}

// different returns the first occurrence of each event.
func different(events []occurrence) (once []occurrence) {
	for _, e := range events {
		if !slices.ContainsFunc(once, func(o occurrence) bool { return o.EventID == e.EventID }) {
			once = append(once, e)
		}
	}
	return once
}

// note is a notification of events/stream.
type note struct {
	occurrence
	Truncated *bool
}

// opened opens an events/stream and checks its first message.
func opened(t *testing.T, s *harness.Target, id any, name string, arguments object, cursor string) *harness.Stream {
	t.Helper()
	params := object{"name": name, "arguments": arguments}
	if cursor != "" {
		params["cursor"] = cursor
	}
	st := s.Stateless("alice").Stream(t, id, "events/stream", params)
	m := st.Next(t)
	first := decode[note](t, m.Params)
	if m.Method != "notifications/events/active" || first.Cursor == nil || first.Truncated == nil || *first.Truncated ||
		!sameJSON(t, first.Meta[harness.SubscriptionID], marshal(t, id)) {
		t.Fatalf("EVX-06: the first message is %s", m.Raw)
	}
	return st
}

// occurrences waits for n different events on a stream, and returns all that arrived.
func occurrences(t *testing.T, st *harness.Stream, n int) (got []occurrence) {
	t.Helper()
	if !harness.Within(t, harness.Patience, func() bool {
		got = nil
		for _, m := range st.Messages() {
			if m.Method == "notifications/events/event" {
				got = append(got, decode[occurrence](t, m.Params))
			}
		}
		return len(different(got)) >= n
	}) {
		t.Fatalf("the stream had %d events, want %d: %v", len(got), n, st.Err())
	}
	return got
}

func eventIDs(events []occurrence) (ids []string) {
	for _, e := range events {
		ids = append(ids, e.EventID)
	}
	return ids
}

func following(t *testing.T, s *harness.Target) {
	receiver := harness.NewReceiver(t)
	alice := s.Stateless("alice")
	// TestOnLocalAWS shares the system with other tests, so this test uses its own URIs and ids.
	own := fmt.Sprintf("f%d", time.Now().UnixNano())
	// On AWS an append that took longer than two seconds is repeated, so that readers may see its event twice.
	once := func(events []occurrence) []string {
		if s.Name == "local AWS" {
			events = different(events)
		}
		return eventIDs(events)
	}

	t.Run("EVX-05 pages contain each event once", func(t *testing.T) {
		one := follow(t, s, "github.push", object{"owner": own, "repo": "web"})
		all := follow(t, s, "github.push", object{"owner": own})
		var want []string
		for i := range 12 {
			want = append(want, fmt.Sprintf("%s-p%d", own, i))
			s.Publish(t, push(want[i], own, "web"))
			s.Publish(t, push(want[i]+"-api", own, "api"))
		}
		expect.List(t, "the events of one repository", once(one.wait(t, 12)), want)
		got := once(all.wait(t, 24))
		slices.Sort(got)
		expect.Len(t, "the events", got, 24)
		expect.Equal(t, "the number of different events", len(slices.Compact(got)), 24)
		for _, f := range []*follower{one, all} {
			if p := f.poll(t, nil); len(p.Events) > 0 && s.Name == "stand-alone" {
				t.Errorf("then %+v", p)
			}
			expect.AtLeast(t, "the number of pages", f.pages, 3)
		}
	})

	t.Run("EVX-04 EVX-06 EVX-07 an event has the same id in all modes, and a cursor can be used in any mode", func(t *testing.T) {
		args := object{"owner": own, "repo": "modes"}
		f := follow(t, s, "github.push", args)
		hook := receiver.Endpoint("modes")
		subscribe(t, alice, hook, "github.push", args)
		st := opened(t, s, "a-"+own, "github.push", args, "")
		id := s.Publish(t, push("", own, "modes"))[0].ID
		polled, pushed := f.wait(t, 1)[0], occurrences(t, st, 1)[0]
		posted := decode[occurrence](t, hook.Wait(t, 1)[0].Body)
		for mode, occ := range map[string]occurrence{"poll": polled, "push": pushed, "webhook": posted} {
			if occ.EventID != id || occ.Name != "github.push" || occ.Timestamp != polled.Timestamp || occ.Data["ref"] != "refs/heads/main" {
				t.Errorf("%s: %+v, want the id %s", mode, occ, id)
			}
		}
		if polled.Cursor != nil || pushed.Cursor == nil {
			t.Errorf("cursors of a poll and a stream: %v, %v", polled.Cursor, pushed.Cursor)
		}
		st.Close()
		s.Publish(t, push(own+"-2", own, "modes"))
		s.Publish(t, push(own+"-3", own, "modes"))
		f.wait(t, 3) // wait until they are in the log
		// Use the stream's cursor in a poll, and the poll's cursor in a stream and a webhook.
		next := &follower{client: alice, name: f.name, arguments: args, cursor: *pushed.Cursor}
		if p := next.poll(t, object{"maxEvents": 1}); len(p.Events) != 1 || p.Events[0].EventID != own+"-2" || !p.HasMore {
			t.Errorf("a poll from the stream's cursor: %+v", p)
		}
		st = opened(t, s, 9007199254740991, "github.push", args, next.cursor)
		expect.Equal(t, "the event of a stream from the poll's cursor", eventIDs(occurrences(t, st, 1))[0], own+"-3")
		late := receiver.Endpoint("modes-late")
		params := subscription("github.push", args, late.URL(), harness.NewSecret())
		params["cursor"] = next.cursor
		alice.Call(t, "events/subscribe", params, nil)
		expect.Equal(t, "the event of a webhook from the poll's cursor", late.Wait(t, 1)[0].ID(), own+"-3")
		occ := decode[occurrence](t, late.Deliveries()[0].Body)
		from := &follower{client: alice, name: f.name, arguments: args, cursor: *occ.Cursor}
		if p := from.poll(t, nil); len(p.Events) == 0 || p.Truncated || p.Events[len(p.Events)-1].EventID != own+"-3" {
			t.Errorf("a poll from the webhook's cursor, which is before its event: %+v", p)
		}
	})

	t.Run("EVX-03 the same arguments select the same in every mode", func(t *testing.T) {
		message := func(channel, user, thread string) harness.Event {
			return harness.Event{
				ID: own + "-" + channel + "-" + user, URI: "event://chat/" + own + "/" + channel + "/message",
				Data: object{"id": "1", "user": user, "text": "private", "thread": thread},
			}
		}
		events := []harness.Event{
			message("general", "ann", "t1"), message("general", "bert", "t2"), message("random", "ann", "u1"), message("random", "cora", "t1"),
		}
		type selection struct {
			name      string
			arguments object
			want      []string // channel-user
			redacted  bool
			follower  *follower
			stream    *harness.Stream
			hook      *harness.Endpoint
		}
		selections := []*selection{
			{name: "the other variable only", arguments: object{"channel": "general", "thread": "t*", "user": []string{"ann"}}, want: []string{"general-ann"}},
			{name: "list", arguments: object{"workspace": own, "user": []string{"bert", "cora"}}, want: []string{"general-bert", "random-cora"}},
			{name: "redact and filter", arguments: object{"workspace": own, "user": "cora", "redact": true}, want: []string{"random-cora"}, redacted: true},
		}
		for i, x := range selections {
			x.follower = follow(t, s, "message.created", x.arguments)
			x.stream = opened(t, s, i, "message.created", x.arguments, "")
			x.hook = receiver.Endpoint("select-" + strings.ReplaceAll(x.name, " ", "-"))
			subscribe(t, alice, x.hook, "message.created", x.arguments)
		}
		for _, e := range events {
			s.Publish(t, e)
		}
		// When the last event of the open channel has arrived, no further events can arrive.
		for _, x := range selections {
			n := len(x.want)
			polled, pushed := x.follower.wait(t, n), occurrences(t, x.stream, n)
			var posted []occurrence
			for _, d := range x.hook.Wait(t, n) {
				posted = append(posted, decode[occurrence](t, d.Body))
			}
			for mode, got := range map[string][]occurrence{"poll": polled, "push": pushed, "webhook": posted} {
				var ids []string
				for _, occ := range got {
					ids = append(ids, strings.TrimPrefix(occ.EventID, own+"-"))
					_, text := occ.Data["text"]
					_, user := occ.Data["user"]
					if text == x.redacted || user == x.redacted || occ.Data["thread"] == nil {
						t.Errorf("%s by %s: the payload is %v", x.name, mode, occ.Data)
					}
				}
				slices.Sort(ids)
				if ids = slices.Compact(ids); !slices.Equal(ids, x.want) { // a webhook may be repeated
					t.Errorf("%s with %s: got %v, want %v", x.name, mode, ids, x.want)
				}
			}
			unsubscribe(t, alice, x.hook, "message.created", x.arguments)
		}
	})
}

const orders = `
events:
  - name: order.placed
    uriTemplate: event://orders/{shop}/placed
    filters: {total: /total, at: /at, note: /note}
    payloadSchema:
      type: object
      properties: {total: {type: integer}, at: {type: string, format: date-time}, note: {type: string}}
`

// TestRanges uses ranges in arguments wherever arguments select events: RCH-09.
func TestRanges(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "orders.yaml")
	expect.OK(t, os.WriteFile(file, []byte(orders), 0o600))
	s := harness.StartServer(t, harness.ServerOptions{Args: []string{"--workspace-catalog", "shops=" + file}})
	ranges(t, &s.Target)
}

func ranges(t *testing.T, s *harness.Target) {
	c := s.Stateless("shopper")
	hooks := harness.NewReceiver(t)
	for name, arguments := range map[string]object{
		"numbers": {"total": object{"$gte": 100, "$lt": 500}},
		"times":   {"at": object{"$gte": "2026-11-23T00:00:00Z", "$lt": "2026-11-24T00:00:00Z"}},
	} {
		t.Run("RCH-09 "+name+" in webhooks, streams, polls and replays", func(t *testing.T) {
			arguments["shop"] = name
			poller := &follower{client: c, name: "order.placed", arguments: arguments}
			begin := poller.poll(t, nil).Cursor
			hook, again := hooks.Endpoint(name), hooks.Endpoint(name+"-again")
			subscribe(t, c, hook, "order.placed", arguments)
			stream := c.Stream(t, 1, "events/stream", object{"name": "order.placed", "arguments": arguments})
			for i, o := range []object{
				{"total": 99, "at": "2026-11-22T23:59:59Z"},
				{"total": 100, "at": "2026-11-23T01:00:00+01:00"},
				{"note": "neither"},
				{"total": 500, "at": "2026-11-24T00:00:00Z"},
				{"total": 499, "at": "2026-11-23T23:59:59.9Z"},
			} {
				expect.OK(t, expect.ErrOf(s.TryPublish(t.Context(), "shopper", harness.Event{ID: fmt.Sprint(name, "_", i), URI: "event://orders/" + name + "/placed", Data: o})))
			}
			want := []string{name + "_1", name + "_4"}
			hook.Wait(t, 2)
			again.SetSecret(harness.NewSecret())
			replay := subscription("order.placed", arguments, again.URL(), again.Secret())
			replay["cursor"] = begin
			c.Call(t, "events/subscribe", replay, nil)
			again.Wait(t, 2)
			for mode, got := range map[string][]string{
				"webhooks": slices.Sorted(maps.Keys(hook.IDs())), "replays": slices.Sorted(maps.Keys(again.IDs())),
				"streams": eventIDs(different(occurrences(t, stream, 2))), "polls": eventIDs(different(poller.wait(t, 2))),
			} {
				expect.List(t, mode, got, want)
			}
		})
	}
}
