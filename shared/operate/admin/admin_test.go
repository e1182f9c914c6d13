package admin_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestSubscriptions: OPS-02.
func TestSubscriptions(t *testing.T) {
	f := start(t, nil)
	one := f.subscribe("alice", "/a", built)
	two := f.subscribe("alice", "/b?token=hidden", "event://incidents/api/created")
	three := f.subscribe("bob", "/c", built, "event://incidents/api/created")
	origin := url.QueryEscape(f.hold.URL)
	t.Run("OPS-02 are listed by each property and by several", func(t *testing.T) {
		for query, want := range map[string][]string{
			"":                            {one, two, three},
			"?principal=alice":            {one, two},
			"?event=ci.build_finished":    {one, three},
			"?origin=" + origin:           {one, two, three},
			"?state=active":               {one, two, three},
			"?state=paused":               {},
			"?origin=https://example.com": {},
			"?principal=bob&event=ci.build_finished&origin=" + origin + "&state=active": {three},
			"?principal=alice&event=incident.created":                                   {two},
		} {
			slices.Sort(want)
			expect.Equal(t, query, ids(f.list("op", "subscriptions"+query), "id"), strings.Join(want, " "))
		}
	})
	t.Run("OPS-01 are paged by cursors", func(t *testing.T) {
		got := strings.Fields(ids(f.pages("op", "subscriptions", 1), "id"))
		if want := []string{one, two, three}; len(got) != 3 || !slices.IsSorted(got) || !slices.Contains(want, got[0]) {
			t.Errorf("got %v, want %v in the order of their ids", got, want)
		}
	})
	t.Run("OPS-02 one is shown, without secrets", func(t *testing.T) {
		var got object
		raw := f.call("op", "GET", "subscriptions/"+two, "", 200, &got)
		if got["principal"] != "alice" || got["state"] != "active" || got["target"] != f.hold.URL+"/b" || strings.Contains(string(raw), "hidden") || strings.Contains(string(raw), "whsec") {
			t.Errorf("got %s, want alice's active subscription without secrets", raw)
		}
	})
	t.Run("OPS-02 the delivery status shows a failure and a success", func(t *testing.T) {
		f.answerWith(413)
		f.publish(built, "evt_413")
		status := func() object {
			var got struct{ Delivery object }
			f.call("op", "GET", "subscriptions/"+one, "", 200, &got)
			return got.Delivery
		}
		expect.Eventually(f, "the failure", func() bool { return status()["lastError"] == "http_4xx" })
		f.answerWith(0)
		f.publish(built, "evt_200")
		expect.Eventually(f, "the success", func() bool { s := status(); return s["last"] != nil && s["lastError"] == nil })
	})
	t.Run("OPS-02 OPS-06 one is paused, which the switches show, and resumed", func(t *testing.T) {
		var got object
		f.call("op", "POST", "subscriptions/"+one+"/pause", `{"reason":"moving"}`, 200, &got)
		if got["state"] != "paused" || ids(f.list("op", "subscriptions?state=paused"), "id") != one {
			t.Errorf("got %v, want a paused subscription", got)
		}
		if sw := f.list("op", "switches"); len(sw.Items) != 1 || sw.Items[0]["by"] != "op" || sw.Items[0]["reason"] != "moving" || sw.Items[0]["state"] != "paused" || sw.Items[0]["at"] == nil {
			t.Errorf("the switches are %v", sw)
		}
		f.call("op", "POST", "subscriptions/"+one+"/resume", "", 200, &got)
		expect.Equal(t, "the state", got["state"], "active")
	})
	t.Run("OPS-02 one is ended", func(t *testing.T) {
		f.call("op", "DELETE", "subscriptions/"+three, "", 204, nil)
		f.call("op", "GET", "subscriptions/"+three, "", 404, nil)
		expect.Equal(t, "bob's subscriptions", ids(f.list("op", "subscriptions?principal=bob"), "id"), "")
	})
	t.Run("OPS-08 the trail has every change, with before and after", func(t *testing.T) {
		l := f.list("op", "audit")
		want := "subscription.end subscription.resume subscription.pause"
		expect.MustEqual(t, "the actions", ids(l, "action"), want)
		end, pause := l.Items[0], l.Items[2]
		if end["by"] != "op" || end["target"] != three || end["after"] != nil || end["before"].(object)["principal"] != "bob" {
			t.Errorf("the end is %v", end)
		}
		if pause["before"] != nil || pause["after"].(object)["reason"] != "moving" || pause["at"] == nil {
			t.Errorf("the pause is %v", pause)
		}
		page := f.list("op", "audit?limit=1")
		expect.Equal(t, "the second page", ids(f.list("op", "audit?cursor="+page.Next), "action"), strings.TrimPrefix(want, "subscription.end "))
		f.sees("op", "audit?until=2020-01-01T00:00:00Z", 0)
	})
}

// TestDeliveriesAndDeadLetters: OPS-03, OPS-04.
func TestDeliveriesAndDeadLetters(t *testing.T) {
	f := start(t, nil)
	id := f.subscribe("alice", "/a?token=hidden", built)
	origin := url.QueryEscape(f.hold.URL)
	f.publish(built, "evt_1")
	expect.Eventually(f, "the event", func() bool { return f.arrived("evt_1") == 1 })
	f.answerWith(413)
	f.publish(built, "evt_2")
	expect.Eventually(f, "the dead letter", func() bool { return len(f.list("op", "dead-letters").Items) == 1 })
	t.Run("OPS-03 deliveries are found each way, newest first", func(t *testing.T) {
		for query, want := range map[string]string{
			"deliveries": "evt_2 evt_1", "deliveries?subscription=" + id: "evt_2 evt_1", "subscriptions/" + id + "/deliveries": "evt_2 evt_1",
			"deliveries?event=evt_1": "evt_1", "deliveries?origin=" + origin: "evt_2 evt_1", "deliveries?outcome=failed": "evt_2",
			"deliveries?outcome=dead&origin=" + origin: "evt_2", "deliveries?outcome=delivered": "evt_1",
			"deliveries?until=2020-01-01T00:00:00Z": "", "deliveries?since=2020-01-01T00:00:00Z": "evt_2 evt_1",
		} {
			expect.Eventually(f, query, func() bool { return ids(f.list("op", query), "event") == want })
		}
		l := f.list("op", "deliveries?event=evt_2")
		if it := l.Items[0]; it["attempt"] != 1.0 || it["status"] != "4xx" || it["statusCode"] != 413.0 || it["category"] != "http_4xx" || it["outcome"] != "dead" || it["durationMs"] == nil || it["nextAttempt"] != nil {
			t.Errorf("got %v, want the first attempt, dead because of the status 413", it)
		}
		var of struct{ Target string }
		f.call("op", "GET", "subscriptions/"+id, "", 200, &of)
		expect.Equal(t, "the endpoint's URL", l.Items[0]["target"], any(of.Target))
		if !strings.HasSuffix(of.Target, "/a") {
			t.Errorf("got the URL %s, want one with a path", of.Target)
		}
		expect.Equal(t, "the records that are kept", l.Kept, "all")
	})
	t.Run("OPS-03 dead letters have the endpoint's URL without its query", func(t *testing.T) {
		letter := f.list("op", "dead-letters").Items[0]
		var one object
		f.call("op", "GET", fmt.Sprint("dead-letters/", letter["id"]), "", 200, &one)
		for _, got := range []any{letter["target"], one["target"]} {
			expect.Equal(t, "the endpoint's URL", got, any(f.hold.URL+"/a"))
		}
	})
	t.Run("OPS-18 SRF-05 an operator sees the status of each attempt, and an owner only its class", func(t *testing.T) {
		for who, want := range map[string]string{"op": "413 413 413", "alice": "<nil> <nil> <nil>"} {
			try, letter := f.list(who, "deliveries?event=evt_2").Items[0], f.list(who, "dead-letters").Items[0]
			last := letter["attempts"].([]any)[0].(object)
			expect.Equal(t, "the statuses for "+who, fmt.Sprintf("%v %v %v", try["statusCode"], letter["statusCode"], last["statusCode"]), want)
			if try["status"] != "4xx" || last["status"] != "4xx" {
				t.Errorf("OPS-18 %s sees %v and %v, want the class too", who, try, last)
			}
		}
		var o struct{ Recent struct{ Failing []object } }
		f.call("op", "GET", "overview", "", 200, &o)
		if l := o.Recent.Failing; len(l) != 1 || l[0]["statusCode"] != 413.0 || l[0]["subscriptions"] != 1.0 || l[0]["since"] == nil {
			t.Errorf("OPS-18 got the failing endpoints %v, want the status of the last failure, the time of the first one, and one subscription", l)
		}
		for since, want := range map[time.Duration]int{-48 * time.Hour: 1, time.Hour: 0} { // the second one is in the future
			f.call("op", "GET", "overview?since="+time.Now().Add(since).UTC().Format(time.RFC3339), "", 200, &o)
			expect.Equal(t, fmt.Sprintf("OPS-18 the failing endpoints since %v", since), len(o.Recent.Failing), want)
		}
	})
	t.Run("OPS-04 WHK-13 a dead letter is found each way, with its history", func(t *testing.T) {
		for _, query := range []string{"", "?subscription=" + id, "?origin=" + origin, "?event=ci.build_finished", "?queue=webhooks", "?since=2020-01-01T00:00:00Z"} {
			l := f.list("op", "dead-letters"+query)
			if len(l.Items) != 1 || l.Items[0]["reason"] != "http_4xx" || len(l.Items[0]["attempts"].([]any)) != 1 || l.Items[0]["event"] != "evt_2" {
				t.Errorf("%s: got %v", query, l)
			}
		}
		for _, query := range []string{"?subscription=sub_x", "?origin=https://x.example", "?event=other", "?queue=slow", "?until=2020-01-01T00:00:00Z"} {
			f.sees("op", "dead-letters"+query, 0)
		}
	})
}

// TestWhatTheDeliveryLogDoesNotKeep: OPS-03.
func TestWhatTheDeliveryLogDoesNotKeep(t *testing.T) {
	for _, kept := range []string{"failures", "none"} {
		f := start(t, func(o *standalone.Options) { o.Limits.DeliveryLog = kept })
		f.subscribe("alice", "/a", built)
		f.publish(built, "evt_1")
		expect.Eventually(f, "the event", func() bool { return f.arrived("evt_1") == 1 })
		if l := f.list("op", "deliveries"); len(l.Items) != 0 || l.Kept != kept {
			t.Errorf("OPS-03: of a log that keeps %s, got %v", kept, l)
		}
	}
}

// TestResponses: OPS-18, SRF-05. The beginning of a failed response is kept only if the operator asks for it, and only operators see it.
func TestResponses(t *testing.T) {
	answers := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if servertest.Echo(w, r) {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		if strings.HasPrefix(r.URL.Path, "/refuse") {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		}
		_, _ = io.WriteString(w, `<b>no such queue</b>`+strings.Repeat("x", 2000))
	}))
	t.Cleanup(answers.Close)
	for _, keep := range []bool{false, true} {
		f := start(t, func(o *standalone.Options) { o.Limits.KeepResponses = keep })
		refuses := servertest.Subscribe(t, f.s.URL, "alice", answers.URL+"/refuse", built)
		accepts := servertest.Subscribe(t, f.s.URL, "alice", answers.URL+"/accept", built)
		f.publish(built, "evt_1")
		want := ""
		if keep {
			want = "<b>no such queue</b>" + strings.Repeat("x", webhook.MaxKept-20)
		}
		for query, want := range map[string]string{
			"deliveries?subscription=" + refuses: want, "subscriptions/" + refuses + "/deliveries": want,
			"deliveries?subscription=" + accepts: "", "deliveries?origin=" + url.QueryEscape(answers.URL) + "&outcome=dead": "",
		} {
			for who, want := range map[string]string{"op": want, "alice": ""} {
				expect.Eventually(f, query, func() bool { return len(f.list(who, query).Items) == 1 })
				got, _ := f.list(who, query).Items[0]["response"].(string)
				expect.Equal(t, fmt.Sprintf("OPS-18 SRF-05 kept %v: %s for %s", keep, query, who), got, want)
			}
		}
		if l := f.list("op", "dead-letters").Items; len(l) != 1 || strings.Contains(fmt.Sprint(l), "no such queue") {
			t.Errorf("OPS-18 got the dead letters %v, want one without a response", l)
		}
	}
}

// TestSwitches: OPS-06. What is delivered while they are set is shown by package delivery and by the tests of the whole.
func TestSwitches(t *testing.T) {
	f := start(t, nil)
	for _, name := range []string{"all", "event/ci.build_finished", "origin/" + f.hold.URL} {
		t.Run("OPS-06 "+name, func(t *testing.T) {
			var sw object
			f.call("op", "GET", "switches/"+name, "", 404, nil)
			f.call("op", "PUT", "switches/"+name, `{"reason":"maintenance"}`, 200, &sw)
			if sw["state"] != "paused" || sw["by"] != "op" || sw["reason"] != "maintenance" || sw["name"] != name {
				t.Errorf("got %v, want %s paused by op for maintenance", sw, name)
			}
			for range 2 {
				f.call("op", "DELETE", "switches/"+name, "", 204, nil)
			}
		})
	}
	f.sees("op", "switches", 0)
	f.call("op", "PUT", "switches/other", "", 400, nil)
	f.call("op", "PUT", "switches/all", `{"state":"off"}`, 400, nil)
	f.call("op", "PUT", "switches/all", `{"raeson":"x"}`, 400, nil)
}

// OPS-01, OPS-09: each caller may do only what its scopes allow. Objects of other owners look as if they did not exist.
func TestPermissions(t *testing.T) {
	f := start(t, nil)
	id := f.subscribe("alice", "/a", built)
	f.answerWith(413)
	f.publish(built, "evt_1")
	expect.Eventually(f, "the dead letter", func() bool { return len(f.list("op", "dead-letters").Items) == 1 })
	f.answerWith(0)
	letter := fmt.Sprint(f.list("op", "dead-letters").Items[0]["id"])
	missing := "sub_" + strings.Repeat("0", 32)
	t.Run("OPS-09 another's looks like one that does not exist", func(t *testing.T) {
		for _, who := range []string{"bob", "foreign"} {
			for _, at := range []string{
				"GET subscriptions/ID", "DELETE subscriptions/ID", "POST subscriptions/ID/pause", "POST subscriptions/ID/resume",
				"POST subscriptions/ID/test", "GET subscriptions/ID/deliveries",
			} {
				method, path, _ := strings.Cut(at, " ")
				mine := f.call(who, method, strings.ReplaceAll(path, "ID", id), "", 404, nil)
				none := f.call(who, method, strings.ReplaceAll(path, "ID", missing), "", 404, nil)
				expect.Equal(t, fmt.Sprintf("%s as %s, as of %s", at, who, none), string(mine), string(none))
			}
			for method, path := range map[string]string{"POST": "/retry", "GET": ""} {
				mine := f.call(who, method, "dead-letters/"+letter+path, "", 404, nil)
				expect.Equal(t, "the answer for another's letter, as for none", string(mine), string(f.call(who, method, "dead-letters/x"+path, "", 404, nil)))
			}
			f.sees(who, "subscriptions", 0)
			f.sees(who, "subscriptions?principal=alice", 0)
		}
		f.call("bob", "GET", "deliveries?subscription="+id, "", 404, nil)
		f.call("bob", "GET", "dead-letters?subscription="+id, "", 404, nil)
		for _, path := range []string{"deliveries?event=evt_1", "deliveries", "dead-letters"} { // of bob's own subscriptions, and bob has no subscription
			if l := f.list("bob", path); len(l.Items) != 0 || l.Next != "" {
				t.Errorf("bob sees %v at %s", l, path)
			}
		}
		for _, path := range []string{"subscriptions", "deliveries", "dead-letters", "switches", "audit", "deliveries?subscription=" + id} {
			f.sees("foreign", path, 0)
		}
	})
	t.Run("OPS-09 owners see and steer their own", func(t *testing.T) {
		f.call("alice", "GET", "subscriptions/"+id, "", 200, nil)
		expect.Equal(t, "alice's subscriptions", ids(f.list("alice", "subscriptions"), "id"), id)
		expect.Eventually(f, "the deliveries", func() bool { return len(f.list("alice", "deliveries?subscription="+id).Items) > 0 })
		f.sees("alice", "dead-letters?subscription="+id, 1)
		f.call("alice", "POST", "subscriptions/"+id+"/pause", "", 200, nil)
		f.call("alice", "POST", "subscriptions/"+id+"/resume", "", 200, nil)
		f.call("alice", "POST", "subscriptions/"+id+"/test", "", 202, nil)
		expect.Contains(t, "AUT-07: a second test event in a second", string(f.call("alice", "POST", "subscriptions/"+id+"/test", "", 429, nil)), `"limit":"testsPerEndpoint","max":1,"retryAfterSeconds":1`)
		f.call("alice", "POST", "dead-letters/"+letter+"/retry", "", 202, nil)
		expect.Eventually(f, "the retry", func() bool { return f.arrived("evt_1") == 2 })
		f.call("op", "POST", "subscriptions/"+id+"/pause", "", 200, nil)
		f.call("alice", "POST", "subscriptions/"+id+"/resume", "", 403, nil)
		f.call("op", "POST", "subscriptions/"+id+"/resume", "", 200, nil)
		expect.Contains(t, "OPS-08: who acted in the trail", ids(f.list("op", "audit"), "by"), "alice")
	})
	t.Run("OPS-01 what only operators may is refused to others, with the scope", func(t *testing.T) {
		for _, at := range []string{"GET switches", "GET switches/all", "PUT switches/all", "DELETE switches/all", "GET audit"} {
			method, path, _ := strings.Cut(at, " ")
			for _, who := range []string{"alice", "reader"} {
				expect.Contains(t, at+" as "+who, string(f.call(who, method, path, "", 403, nil)), auth.ScopeOperate)
			}
			f.call("", method, path, "", 401, nil)
			f.call("wrong", method, path, "", 401, nil)
		}
		f.call("reader", "GET", "subscriptions", "", 403, nil)
	})
	t.Run("OPS-01 what is malformed is refused", func(t *testing.T) {
		for _, path := range []string{
			"subscriptions?limit=0", "subscriptions?limit=x", "subscriptions?limit=101", "subscriptions?state=x", "subscriptions?sate=active",
			"subscriptions?principal=a&principal=b", "subscriptions?cursor=x", "deliveries?since=yesterday", "deliveries?outcome=x",
		} {
			f.call("op", "GET", path, "", 400, nil)
		}
		f.call("op", "GET", "nothing", "", 404, nil)
		f.call("op", "POST", "subscriptions", "", 405, nil)
	})
}

// TestAnAddressForOperators: OPS-01.
func TestAnAddressForOperators(t *testing.T) {
	f := start(t, func(o *standalone.Options) { o.AdminAddr = "127.0.0.1:0" })
	if f.s.AdminURL == f.s.URL {
		t.Fatal("OPS-01: it has no address of its own")
	}
	f.list("op", "subscriptions")
	f.s.AdminURL = f.s.URL
	resp := expect.Value(f.send("GET", "subscriptions", "op", ""))(t)
	_ = resp.Body.Close()
	expect.Equal(t, "OPS-01: the status at the public address", resp.StatusCode, 404)
}

// TestReplays: OPS-04, WHK-13.
func TestReplays(t *testing.T) {
	f := start(t, nil)
	f.subscribe("alice", "/a", built)
	f.answerWith(413)
	const n = 30
	for i := range n {
		f.publish(built, fmt.Sprintf("evt_%d", i))
	}
	f.publish("event://incidents/api/created", "evt_other")
	expect.Eventually(f, "the dead letters", func() bool { return len(f.list("op", "dead-letters").Items) == n })
	f.answerWith(0)
	var count struct{ Count int }
	t.Run("OPS-04 a dry run counts and does nothing", func(t *testing.T) {
		for sel, want := range map[string]int{`{}`: n, `{"event":"ci.build_finished"}`: n, `{"event":"other"}`: 0, `{"origin":"` + f.hold.URL + `"}`: n, `{"until":"2020-01-01T00:00:00Z"}`: 0} {
			f.call("op", "POST", "replays", `{"select":`+sel+`,"dryRun":true}`, 200, &count)
			expect.Equal(t, fmt.Sprintf("the count of %s", sel), count.Count, want)
		}
		expect.Equal(t, "dead letters that are left", len(f.list("op", "dead-letters").Items), n)
	})
	t.Run("OPS-04 a replay shows its progress, and is not canceled after its end", func(t *testing.T) {
		var job struct {
			ID, State                string
			Total, Replayed, Skipped int
		}
		f.call("op", "POST", "replays", `{"select":{"event":"ci.build_finished"},"rate":1000}`, 202, &job)
		expect.Equal(t, "the total", job.Total, n)
		expect.Differ(t, "the ID", job.ID, "")
		expect.Eventually(f, "its end", func() bool {
			f.call("op", "GET", "replays/"+job.ID, "", 200, &job)
			return job.State == "done"
		})
		expect.Equal(t, "the replayed", job.Replayed, n)
		expect.Equal(t, "the skipped", job.Skipped, 0)
		f.call("op", "DELETE", "replays/"+job.ID, "", 200, &job)
		expect.Equal(t, "the state of a job that was canceled after its end", job.State, "done")
	})
	f.call("op", "POST", "replays", `{}`, 400, nil)
	f.call("op", "POST", "replays", `{"select":{},"rate":0}`, 400, nil)
	f.call("op", "POST", "replays", `{"select":{"queue":"dead"}}`, 400, nil)
	f.call("op", "GET", "replays/none", "", 404, nil)
	f.call("alice", "POST", "replays", `{"select":{}}`, 403, nil)
}

// TestEvents: OPS-05.
func TestEvents(t *testing.T) {
	f := start(t, nil)
	id := f.subscribe("alice", "/a", built)
	const api, web = "event://incidents/api/created", "event://incidents/web/created"
	for _, e := range [][2]string{{built, "evt_1"}, {built, "evt_2"}, {api, "evt_3"}, {web, "evt_4"}} {
		f.publish(e[0], e[1])
		expect.Eventually(f, e[1]+" in the log", func() bool { // events of two URIs get there in any order
			return strings.HasPrefix(ids(f.list("op", "events?uri="+e[0]), "id"), e[1])
		})
	}
	expect.Eventually(f, "the URIs of the type", func() bool { // they are recorded after the event
		return ids(f.list("op", "events?name=incident.created"), "id") == "evt_4 evt_3"
	})
	t.Run("OPS-05 are listed by URI, by type and by time, newest first", func(t *testing.T) {
		for query, want := range map[string]string{
			"uri=" + built: "evt_2 evt_1", "name=ci.build_finished": "evt_2 evt_1", "name=incident.created": "evt_4 evt_3", "uri=" + api: "evt_3",
			"uri=" + built + "&until=2020-01-01T00:00:00Z": "", "name=none": "", "name=incident.created&since=2020-01-01T00:00:00Z": "evt_4 evt_3",
		} {
			expect.Equal(t, query, ids(f.list("op", "events?"+query), "id"), want)
		}
		f.call("op", "GET", "events", "", 400, nil)
		f.call("alice", "GET", "events?uri="+built, "", 403, nil)
	})
	t.Run("OPS-05 one is found by its id, whether it was delivered or not", func(t *testing.T) {
		for _, want := range []string{"evt_1", "evt_3"} {
			var got object
			f.call("op", "GET", "events/"+want, "", 200, &got)
			if got["id"] != want || got["data"] == nil {
				t.Errorf("got %v, want %s with its payload", got, want)
			}
		}
		f.call("op", "GET", "events/evt_4?uri="+web, "", 200, nil)
		f.call("op", "GET", "events/evt_none", "", 404, nil)
		f.call("foreign", "GET", "events/evt_1", "", 404, nil)
	})
	t.Run("OPS-05 one is delivered again to one subscription", func(t *testing.T) {
		expect.Eventually(f, "the event", func() bool { return f.arrived("evt_1") == 1 })
		f.call("op", "POST", "events/evt_1/deliver", `{"subscription":"`+id+`"}`, 202, nil)
		expect.Eventually(f, "the event again", func() bool { return f.arrived("evt_1") == 2 })
		f.call("op", "POST", "events/evt_3/deliver", `{"subscription":"`+id+`"}`, 422, nil)
		f.call("op", "POST", "events/evt_1/deliver", `{"subscription":"sub_x"}`, 404, nil)
	})
	t.Run("OPS-05 a replay of events has a subscription and a beginning", func(t *testing.T) {
		f.call("op", "POST", "replays", `{"select":{"events":true,"since":"2020-01-01T00:00:00Z"}}`, 400, nil)
		f.call("op", "POST", "replays", `{"select":{"events":true,"subscription":"`+id+`"}}`, 400, nil)
		since := `{"select":{"events":true,"subscription":"` + id + `","since":"2020-01-01T00:00:00Z"}}`
		f.call("foreign", "POST", "replays", since, 404, nil)
		f.call("alice", "POST", "replays", since, 403, nil)
	})
	t.Run("OPS-01 a body with a Content-Encoding is rejected", func(t *testing.T) {
		req := expect.Value(http.NewRequestWithContext(t.Context(), http.MethodPost, f.s.AdminURL+"/admin/v1/events/evt_1/deliver", strings.NewReader(`{"subscription":"`+id+`"}`)))(t)
		req.Header = http.Header{"Authorization": {"Bearer op"}, "Content-Type": {"application/json"}, "Content-Encoding": {"gzip"}}
		resp := expect.Value(http.DefaultClient.Do(req))(t)
		defer resp.Body.Close()
		f.validate(resp, expect.Value(io.ReadAll(resp.Body))(t))
		expect.Equal(t, "the status", resp.StatusCode, http.StatusUnsupportedMediaType)
	})
}

// TestEveryPathIsDescribed: OPS-01.
func TestEveryPathIsDescribed(t *testing.T) {
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]object
	}
	f := start(t, nil)
	f.call("op", "GET", "openapi.json", "", 200, &doc)
	if !strings.HasPrefix(doc.OpenAPI, "3.1") {
		t.Errorf("OPS-01: it is %s", doc.OpenAPI)
	}
	for path, methods := range doc.Paths {
		served := strings.NewReplacer("/switches/{name}", "switches/other", "{id}", "none").Replace(strings.TrimPrefix(path, "/"))
		for method := range methods {
			resp := expect.Value(f.send(strings.ToUpper(method), strings.TrimPrefix(served, "/"), "foreign", ""))(t)
			_ = resp.Body.Close()
			expect.Differ(t, "OPS-01 the status of "+method+" "+path, resp.StatusCode, 405)
		}
	}
}

// TestNotes: operators write notes about failing origins, which the overview shows and the audit trail keeps.
func TestNotes(t *testing.T) {
	f := start(t, nil)
	origin := f.hold.URL
	f.answerWith(503)
	f.subscribe("alice", "/a", built)
	f.publish(built, "evt_1")
	type overview struct {
		Recent struct {
			Failing []struct {
				Origin string
				Note   *object
			}
		}
	}
	failing := func() (o overview) {
		f.call("op", "GET", "overview", "", 200, &o)
		return o
	}
	expect.Eventually(f, "the failure", func() bool { return len(failing().Recent.Failing) == 1 })

	t.Run("OPS-11 a note is written, replaced, listed and removed", func(t *testing.T) {
		f.call("op", "PUT", "notes/"+origin, `{"text":"asked them"}`, 200, nil)
		var written object
		f.call("op", "PUT", "notes/"+strings.Replace(origin, "//", "/", 1), `{"text":" their team knows "}`, 200, &written)
		if written["origin"] != origin || written["text"] != "their team knows" || written["by"] != "op" || written["at"] == nil {
			t.Errorf("got %v", written)
		}
		for _, path := range []string{"notes", "notes?origin=" + url.QueryEscape(origin)} {
			expect.Equal(t, path, ids(f.list("op", path), "text"), "their team knows")
		}
		f.sees("op", "notes?origin=https://other.example", 0)
		if got := failing().Recent.Failing[0]; got.Note == nil || (*got.Note)["text"] != "their team knows" {
			t.Errorf("the overview has the note %v", got.Note)
		}
		f.call("op", "DELETE", "notes/"+origin, "", 204, nil)
		f.call("op", "DELETE", "notes/"+origin, "", 204, nil)
		f.sees("op", "notes", 0)
		expect.Equal(t, "the audit trail", ids(f.list("op", "audit?limit=3"), "action"), "note.remove note.write note.write")
	})
	t.Run("OPS-11 a note has 1 to 500 characters and belongs to an origin", func(t *testing.T) {
		for body, want := range map[string]string{
			`{"text":" "}`: "text has 0 characters", `{"text":"` + strings.Repeat("é", 501) + `"}`: "text has 501 characters (allowed: 1 to 500)",
			`{"note":"x"}`: "is not known",
		} {
			expect.Contains(t, "the refusal", string(f.call("op", "PUT", "notes/"+origin, body, 400, nil)), want)
		}
		expect.Contains(t, "the refusal", string(f.call("op", "PUT", "notes/hooks.example.com", `{"text":"x"}`, 400, nil)), "is not an origin")
	})
	t.Run("OPS-20 owners have no notes", func(t *testing.T) {
		f.call("alice", "GET", "notes", "", 403, nil)
		f.call("alice", "PUT", "notes/"+origin, `{"text":"x"}`, 403, nil)
	})
	t.Run("OPS-07 the name of an erased operator is removed from notes", func(t *testing.T) {
		f.call("op2", "PUT", "notes/"+origin, `{"text":"their team knows"}`, 200, nil)
		f.call("op", "DELETE", "principals/op2", "", 200, nil)
		if n := f.list("op", "notes").Items[0]; n["by"] == "op2" || n["text"] != "their team knows" {
			t.Errorf("got %v, want a pseudonym and the text", n)
		}
	})
}
