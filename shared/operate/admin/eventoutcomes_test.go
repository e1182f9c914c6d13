package admin_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

// restricted is an event type next to ci.build_finished, which needs a scope that the callers lack.
const restricted = `
  - name: ci.secret_rotated
    uri: event://ci/secret-rotated
    title: Secret rotated
    access: {scopes: [ci:secrets]}
    payloadSchema: {type: object}
`

// endpoint answers each webhook with the status that the path ends with, e.g. /503, and each challenge with itself. At a path that ends
// with /close, it closes the connection without an answer.
func endpoint(t *testing.T) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if servertest.Echo(w, r) {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		if strings.HasSuffix(r.URL.Path, "/close") {
			panic(http.ErrAbortHandler)
		}
		if status, err := strconv.Atoi(r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]); err == nil {
			w.WriteHeader(status)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// outcome returns the only outcome for a subscription.
func (f *fixture) outcome(event, sub string) object {
	f.Helper()
	l := f.list("op", "events/"+event+"/outcomes?subscription="+sub)
	if len(l.Items) != 1 {
		f.Fatalf("got %v, want the outcome of %s for %s", l.Items, event, sub)
	}
	return l.Items[0]
}

// TestWhyNot: OPS-17. Given an event and subscriptions that are in all states, each has one outcome with its reason.
func TestWhyNot(t *testing.T) {
	var options standalone.Options
	f := start(t, func(o *standalone.Options) { options = *o })
	hold := endpoint(t)
	register := func(path string, uris ...string) string {
		return servertest.Subscribe(t, f.s.URL, "alice", hold.URL+path, uris...)
	}
	delivered, waiting, dead := register("/a/200?key=secret", built), register("/b/503", built), register("/c/413", built)
	paused, ended := register("/d/200", built), register("/e/200", built)
	parent := register("/f/200", "event://ci")
	moved, closed, quit := register("/l/301", built), register("/m/close", built), register("/n/503", built)
	failed := map[string]any{"status": "failed"}
	filtered := servertest.SubscribeEvents(t, f.s.URL, "bob", hold.URL+"/g/200", "ci.build_finished", failed)
	missing := servertest.SubscribeEvents(t, f.s.URL, "bob", hold.URL+"/h/200", "ci.build_finished", map[string]any{"pipeline": []string{"main", "release*"}})
	f.call("op", "POST", "subscriptions/"+paused+"/pause", `{"reason":"moving"}`, 200, nil)
	f.publish(built, "evt_1")
	expect.Eventually(f, "the attempts", func() bool { return len(f.list("op", "deliveries?event=evt_1").Items) == 8 })
	expect.Eventually(f, "the pause", func() bool { return f.outcome("evt_1", paused)["outcome"] == "paused" })
	for _, id := range []string{ended, quit} {
		f.call("op", "DELETE", "subscriptions/"+id, "", 204, nil)
	}
	later := register("/i/200", built)
	other := register("/j/200", "event://incidents/web/created")
	otherType := servertest.SubscribeEvents(t, f.s.URL, "bob", hold.URL+"/k/200", "incident.created", map[string]any{"service": "web"})

	t.Run("OPS-17 each subscription has one outcome, with its reason", func(t *testing.T) {
		for _, tc := range []struct{ sub, outcome, why string }{
			{delivered, "delivered", "the endpoint answered 200 to attempt 1"},
			{waiting, "waiting", "the endpoint answered 503; attempt 2 follows"},
			{moved, "waiting", "the endpoint answered 301, and redirects are not followed; attempt 2 follows"},
			{closed, "waiting", "the endpoint refused or closed the connection; attempt 2 follows"},
			{dead, "dead", "given up after 1 attempt; the endpoint answered 413"},
			{paused, "paused", "the subscription is paused by op: moving"},
			{ended, "delivered", "the endpoint answered 200 to attempt 1"},
			{quit, "ended", "the subscription has ended"},
			{parent, "delivered", "the endpoint answered 200 to attempt 1"},
			{filtered, "filtered", `the subscription asks for status "failed", and the event has "passed"`},
			{missing, "filtered", `the subscription asks for pipeline ["main","release*"], and the event lacks it`},
			{later, "subscribedLater", "it subscribed after the event was published"},
			{other, "filtered", `the subscription asks for uri ["event://incidents/web/created"], and the event has "event://ci/build-finished"`},
			{otherType, "filtered", `the subscription asks for name "incident.created", and the event has "ci.build_finished"`},
		} {
			got := f.outcome("evt_1", tc.sub)
			expect.Equal[any](t, "OPS-17 the outcome", got["outcome"], tc.outcome)
			expect.Equal[any](t, "OPS-17 the reason", got["why"], tc.why)
		}
	})
	t.Run("OPS-17 OPS-18 the reason is there for programs too", func(t *testing.T) {
		if got := f.outcome("evt_1", delivered); got["statusCode"] != 200.0 || got["at"] == nil || got["target"] != hold.URL+"/a/200" || got["principal"] != "alice" {
			t.Errorf("got %v, want the status, the time, and the URL without its query", got)
		}
		if got := f.outcome("evt_1", waiting); got["statusCode"] != 503.0 || got["nextAttempt"] == nil || got["attempts"] != 1.0 {
			t.Errorf("got %v, want the status and the next attempt", got)
		}
		got := f.outcome("evt_1", filtered)["filter"].(object)
		expect.Equal(t, "the filter", fmt.Sprintf("%v %v %v", got["argument"], got["wanted"], got["value"]), "status failed passed")
		if sw := f.outcome("evt_1", paused)["switch"].(object); sw["by"] != "op" || sw["reason"] != "moving" {
			t.Errorf("got %v, want the switch", sw)
		}
	})
	t.Run("OPS-17 the list has the subscriptions that cover the event, and ended ones with attempts, once each", func(t *testing.T) {
		want := map[string]string{
			delivered: "delivered", waiting: "waiting", dead: "dead", paused: "paused", ended: "ended", parent: "parent", filtered: "filtered",
			missing: "missing", later: "later", moved: "moved", closed: "closed", quit: "quit",
		}
		for _, limit := range []int{1, 2, 5, 100} {
			seen := map[string]int{}
			for _, it := range f.pages("op", "events/evt_1/outcomes", limit).Items {
				seen[fmt.Sprint(it["subscription"])]++
			}
			expect.Equal(t, fmt.Sprintf("OPS-17 limit %d: subscriptions", limit), len(seen), len(want))
			for id, name := range want {
				expect.Equal(t, fmt.Sprintf("OPS-17 limit %d: how often the subscription %s is listed", limit, name), seen[id], 1)
			}
		}
	})
	t.Run("OPS-17 a switch that pauses a type explains the events that it holds, and those that wait", func(t *testing.T) {
		f.call("op", "PUT", "switches/event/ci.build_finished", `{"reason":"too many"}`, 200, nil)
		f.publish(built, "evt_2")
		expect.Eventually(f, "the event", func() bool { return len(f.list("op", "events?name=ci.build_finished").Items) == 2 })
		for event, sub := range map[string]string{"evt_2": delivered, "evt_1": waiting} {
			got := f.outcome(event, sub)
			if got["outcome"] != "paused" || got["why"] != "the event type ci.build_finished is paused by op: too many" {
				t.Errorf("OPS-17 %s: got %v", event, got)
			}
		}
		expect.Equal(t, "the outcome of a delivered event", f.outcome("evt_1", delivered)["outcome"], "delivered")
		f.call("op", "DELETE", "switches/event/ci.build_finished", "", 204, nil)
	})
	t.Run("OPS-17 an event of a type that needs another right is not permitted", func(t *testing.T) {
		options.Catalog = append(slices.Clip(options.Catalog), restricted...)
		expect.OK(t, f.s.Reload(t.Context(), options))
		expect.OK(t, expect.ErrOf(f.s.Publish(t.Context(), "default", standalone.Event{URI: "event://ci/secret-rotated", ID: "evt_3", Data: json.RawMessage(`{}`)})))
		expect.Eventually(f, "the event", func() bool { return len(f.list("op", "events?name=ci.secret_rotated").Items) == 1 })
		got := f.outcome("evt_3", parent)
		expect.Equal(t, "the outcome", fmt.Sprint(got["outcome"], ": ", got["why"]), "notPermitted: its principal has no right to this event")
	})
	t.Run("OPS-17 a test event is explained by its attempts", func(t *testing.T) {
		var sent struct{ Event string }
		f.call("op", "POST", "subscriptions/"+delivered+"/test", "", 202, &sent)
		expect.Eventually(f, "the test event", func() bool { return len(f.list("op", "deliveries?event="+sent.Event).Items) == 1 })
		l := f.list("op", "events/"+sent.Event+"/outcomes")
		if len(l.Items) != 1 || l.Items[0]["outcome"] != "delivered" || l.Items[0]["subscription"] != delivered {
			t.Errorf("OPS-17 got %v, want one delivery", l.Items)
		}
	})
	t.Run("OPS-17 it is for operators", func(t *testing.T) {
		f.call("alice", "GET", "events/evt_1/outcomes", "", 403, nil)
		f.call("op", "GET", "events/evt_none/outcomes", "", 404, nil)
		f.call("op", "GET", "events/evt_1/outcomes?subscription=sub_0", "", 404, nil)
		f.call("foreign", "GET", "events/evt_1/outcomes", "", 404, nil)
	})
}

// TestWhyNotWithFewRecords: OPS-17. Given a delivery log that keeps failures only, a success without a record is not called one.
func TestWhyNotWithFewRecords(t *testing.T) {
	f := start(t, func(o *standalone.Options) {
		o.Limits.DeliveryLog = "failures"
		o.Limits.RetrySchedule = []time.Duration{0, time.Second, time.Second, time.Second, time.Second, time.Second, time.Second, time.Second}
	})
	find := func(id string) { // the attempt may be faster than the list of events by their ids
		expect.Eventually(f, id+" in the log", func() bool {
			resp := expect.Value(f.send("GET", "events/"+id, "op", ""))(t)
			return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
		})
	}
	sub := f.subscribe("alice", "/a", built)
	f.publish(built, "evt_1")
	expect.Eventually(f, "the event", func() bool { return f.arrived("evt_1") == 1 })
	find("evt_1")
	got := f.outcome("evt_1", sub)
	expect.Equal(t, "the outcome without a record", got["outcome"], "unrecorded")
	f.answerWith(503)
	f.publish(built, "evt_2")
	expect.Eventually(f, "a failure", func() bool { return f.arrived("evt_2") > 0 })
	find("evt_2")
	expect.Eventually(f, "its record", func() bool { return f.outcome("evt_2", sub)["outcome"] == "waiting" })
	f.answerWith(0)
	expect.Eventually(f, "a retry", func() bool { return f.outcome("evt_2", sub)["outcome"] == "delivered" })
	got = f.outcome("evt_2", sub)
	if got["at"] != nil || !strings.Contains(fmt.Sprint(got["why"]), "keeps no record") {
		t.Errorf("OPS-17 got %v, want a delivery without a time", got)
	}
}

// TestWhatWaits: OPS-19. A subscription shows what it asks for, what waits for it, and who paused it. A switch shows what waits for it.
func TestWhatWaits(t *testing.T) {
	f := start(t, nil)
	hold := endpoint(t)
	failed := map[string]any{"status": "passed", "pipeline": []string{"main"}}
	filtered := servertest.SubscribeEvents(t, f.s.URL, "alice", hold.URL+"/a/200", "ci.build_finished", failed)
	failing := servertest.Subscribe(t, f.s.URL, "alice", hold.URL+"/b/503", built)
	refusing := servertest.Subscribe(t, f.s.URL, "alice", hold.URL+"/c/413", built)
	read := func(who, path string) (got object) {
		f.call(who, "GET", path, "", 200, &got)
		return got
	}
	published := time.Now().UTC()
	f.publish(built, "evt_1")
	f.publish(built, "evt_2")
	expect.Eventually(f, "the failures", func() bool {
		return len(f.list("op", "dead-letters").Items) == 2 && read("op", "subscriptions/"+failing)["waiting"].(object)["deliveries"] == 2.0
	})
	t.Run("OPS-19 a subscription shows its arguments", func(t *testing.T) {
		expect.Equal(t, "the arguments", fmt.Sprint(read("alice", "subscriptions/"+filtered)["arguments"]), "map[pipeline:[main] status:passed]")
		l := f.list("op", "subscriptions?event=ci.build_finished")
		found := slices.ContainsFunc(l.Items, func(it object) bool { return it["id"] == filtered && it["arguments"] != nil })
		if !found || read("op", "subscriptions/"+failing)["arguments"] != nil {
			t.Errorf("OPS-19 got %v, want the arguments of one", l.Items)
		}
	})
	t.Run("OPS-19 a subscription shows how many deliveries wait and how old the oldest event is", func(t *testing.T) {
		oldest, err := time.Parse(time.RFC3339Nano, fmt.Sprint(read("alice", "subscriptions/"+failing)["waiting"].(object)["oldest"]))
		if err != nil || oldest.Before(published.Add(-time.Second)) || oldest.After(time.Now()) {
			t.Errorf("OPS-19 the oldest event is of %v, %v, want the time of evt_1", oldest, err)
		}
		for _, id := range []string{refusing, filtered} { // dead letters wait for nothing
			if got := read("op", "subscriptions/"+id)["waiting"].(object); got["deliveries"] != 0.0 || got["oldest"] != nil {
				t.Errorf("OPS-19 %s: got %v, want none", id, got)
			}
		}
	})
	t.Run("OPS-18 SRF-05 a subscription shows operators the status of its last failure", func(t *testing.T) {
		for who, want := range map[string]string{"op": "http_5xx 503", "alice": "http_5xx <nil>"} {
			expect.Eventually(f, want+" for "+who, func() bool { // the status is written after the delivery
				delivery := read(who, "subscriptions/"+failing)["delivery"].(object)
				return fmt.Sprintf("%v %v", delivery["lastError"], delivery["lastStatusCode"]) == want
			})
			for _, it := range f.list(who, "subscriptions").Items {
				if it["id"] == failing {
					delivery := it["delivery"].(object)
					expect.Equal(t, "OPS-18 the list for "+who, fmt.Sprintf("%v %v", delivery["lastError"], delivery["lastStatusCode"]), want)
				}
			}
		}
	})
	t.Run("OPS-19 a subscription shows who paused it and why, and its owner does not see the operator's name", func(t *testing.T) {
		f.call("op", "POST", "subscriptions/"+failing+"/pause", `{"reason":"moving"}`, 200, nil)
		for who, want := range map[string]string{"op": "op: moving", "alice": "an operator: moving"} {
			sw := read(who, "subscriptions/"+failing)["switch"].(object)
			expect.Equal(t, "the switch for "+who, fmt.Sprintf("%v: %v", sw["by"], sw["reason"]), want)
		}
		f.call("op", "POST", "subscriptions/"+failing+"/resume", "", 200, nil)
		expect.Equal(t, "OPS-19 the switch after the pause", read("op", "subscriptions/"+failing)["switch"], nil)
	})
	t.Run("OPS-19 a switch shows what waits for it", func(t *testing.T) {
		f.call("op", "PUT", "switches/all", `{"reason":"incident"}`, 200, nil)
		f.publish(built, "evt_3")
		expect.Eventually(f, "the message", func() bool {
			waiting := read("op", "switches/all")["waiting"].(object)
			return waiting["messages"].(float64) > 0 && waiting["oldest"] != nil
		})
		expect.Differ(t, "OPS-19 the messages that wait, in the list", f.list("op", "switches").Items[0]["waiting"].(object)["messages"], any(0.0))
	})
	t.Run("OPS-08 the audit trail does not keep arguments, which may be personal data", func(t *testing.T) {
		f.call("op", "DELETE", "subscriptions/"+filtered, "", 204, nil)
		before := f.list("op", "audit?limit=1").Items[0]["before"].(object)
		if before["id"] != filtered || before["arguments"] != nil {
			t.Errorf("OPS-08 got %v", before)
		}
	})
}

// OPS-17: a delivery that an operator asked for waits for its next attempt, although the subscription filters the event out, or was made
// later.
func TestADeliveryThatWasAskedForWaits(t *testing.T) {
	f := start(t, nil)
	hold := endpoint(t)
	filtered := servertest.SubscribeEvents(t, f.s.URL, "bob", hold.URL+"/a/503", "ci.build_finished", map[string]any{"status": "failed"})
	f.publish(built, "evt_1")
	later := servertest.SubscribeEvents(t, f.s.URL, "bob", hold.URL+"/b/503", "ci.build_finished", nil)
	for sub, before := range map[string]string{filtered: "filtered", later: "subscribedLater"} {
		expect.Equal(t, "OPS-17 the outcome before", f.outcome("evt_1", sub)["outcome"], any(before))
		f.call("op", "POST", "events/evt_1/deliver", `{"subscription":"`+sub+`"}`, 202, nil)
		if got := f.outcome("evt_1", sub); got["outcome"] != "waiting" { // for the first attempt, or for the second one
			t.Errorf("OPS-17 got %v: %v, want waiting", got["outcome"], got["why"])
		}
		expect.Eventually(f, "an attempt", func() bool { return f.outcome("evt_1", sub)["attempts"] != nil })
		if got := f.outcome("evt_1", sub); got["outcome"] != "waiting" || got["why"] != "the endpoint answered 503; attempt 2 follows" {
			t.Errorf("OPS-17 got %v: %v, want waiting", got["outcome"], got["why"])
		}
	}
}

// OPS-17: an event that was given up, and arrived after its subscriber had subscribed again from an older cursor, is delivered.
func TestAnEventThatArrivedAfterItWasGivenUp(t *testing.T) {
	f := start(t, nil)
	var accepts atomic.Bool
	hold := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !servertest.Echo(w, r) && !accepts.Load() {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		}
	}))
	t.Cleanup(hold.Close)
	c := expect.Value(client.Connect(t.Context(), f.s.URL, client.Options{Key: "alice", Agent: "test/1", Revision: string(spec.V20260728)}))(t)
	var sub struct{ ID, Cursor string }
	subscribe := func(cursor any) {
		expect.OK(t, c.Call(t.Context(), spec.MethodEventsSub, map[string]any{
			"name": "ci.build_finished", "cursor": cursor, "delivery": map[string]any{
				"mode": "webhook", "url": hold.URL, "secret": "whsec_" + strings.Repeat("A", 43) + "=",
			},
		}, &sub))
	}
	subscribe(nil)
	f.publish(built, "evt_1")
	expect.Eventually(f, "the dead letter", func() bool { return len(f.list("op", "dead-letters").Items) == 1 })
	expect.Equal(t, "OPS-17 the outcome before", f.outcome("evt_1", sub.ID)["outcome"], any("dead"))
	accepts.Store(true)
	first := sub
	f.call("alice", "DELETE", "subscriptions/"+first.ID, "", 204, nil)
	subscribe(first.Cursor)
	expect.Eventually(f, "the delivery", func() bool { return len(f.list("op", "deliveries?outcome=delivered").Items) == 1 })
	if got := f.outcome("evt_1", first.ID); sub.ID != first.ID || got["outcome"] != "delivered" || got["why"] != "the endpoint answered 200 to attempt 1" {
		t.Errorf("OPS-17 got %v: %v, want delivered", got["outcome"], got["why"])
	}
}
