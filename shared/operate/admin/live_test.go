package admin_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
	"github.com/mcp-events/mcpevents/test/expect"
)

// watch opens a live stream; ticks come until it ends.
func (f *fixture) watch(who string) <-chan object {
	f.Helper()
	resp := expect.Value(f.send("GET", "live", who, ""))(f)
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != sse.ContentType {
		f.Fatalf("got %d as %s", resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	f.Cleanup(func() { _ = resp.Body.Close() })
	ticks := make(chan object, 100)
	go func() {
		defer close(ticks)
		r := sse.NewReader(resp.Body, 1<<20)
		for {
			e, err := r.Next()
			if err != nil {
				return
			}
			var tick object
			if e.Name == "tick" && json.Unmarshal(e.Data, &tick) == nil {
				ticks <- tick
			}
		}
	}()
	return ticks
}

// TestLive: OPS-11. The live stream tells of events and attempts, once, to operators of their workspace.
func TestLive(t *testing.T) {
	f := start(t, nil)
	f.subscribe("alice", "/a?token=hidden", built)
	f.publish(built, "evt_before")
	expect.Eventually(f, "the delivery", func() bool { return len(f.list("op", "deliveries?event=evt_before").Items) == 1 })
	time.Sleep(5 * time.Millisecond) // so that it is before the stream by the clock
	ticks, foreign := f.watch("op"), f.watch("foreign")
	time.Sleep(5 * time.Millisecond)
	f.publish(built, "evt_1")
	f.publish("event://incidents/new/created", "evt_2") // of a URI that is new
	got := map[string]int{}
	for end := time.After(patience); got["evt_1"] < 2 || got["evt_2"] < 1; {
		select {
		case tick := <-ticks:
			for list, member := range map[string]string{"deliveries": "event", "events": "id"} {
				for _, it := range tick[list].([]any) {
					got[it.(object)[member].(string)]++
				}
			}
			for _, it := range tick["deliveries"].([]any) {
				expect.Equal(t, "the endpoint's URL", it.(object)["target"], any(f.hold.URL+"/a"))
			}
			if tick["attempts"].(float64) < float64(len(tick["deliveries"].([]any))) || tick["published"].(float64) != float64(len(tick["events"].([]any))) {
				t.Errorf("OPS-11 the counts of %v differ from its lists", tick)
			}
		case <-end:
			t.Fatalf("OPS-11 got %v", got)
		}
	}
	for end := time.After(1200 * time.Millisecond); ; { // two later looks do not repeat it
		select {
		case tick := <-ticks:
			t.Errorf("OPS-11 once more: %v", tick)
			continue
		case tick := <-foreign:
			t.Errorf("OPS-11 another workspace sees %v", tick)
			continue
		case <-end:
		}
		break
	}
	if got["evt_1"] != 2 || got["evt_2"] != 1 || got["evt_before"] != 0 {
		t.Errorf("OPS-11 got %v, want evt_1 as an event and an attempt, and evt_2 as an event", got)
	}
	t.Run("OPS-11 owners have none", func(t *testing.T) { f.call("alice", "GET", "live", "", 403, nil) })
	t.Run("OPS-11 there is a bound", func(t *testing.T) {
		for range 18 {
			f.watch("op")
		}
		expect.Contains(t, "the refusal", string(f.call("op", "GET", "live", "", 429, nil)), "too many live streams (allowed: 20)")
	})
	t.Run("AUT-05 given a workspace that has almost all of them, another one gets the place of its oldest", func(t *testing.T) {
		f.watch("foreign")
		for end := time.After(patience); ; {
			select {
			case _, open := <-ticks:
				if !open {
					return
				}
			case <-end:
				t.Fatal("the oldest stream is still open")
			}
		}
	})
	t.Run("OPS-11 a shutdown ends them", func(t *testing.T) {
		begun := time.Now()
		expect.OK(t, f.s.Shutdown(t.Context()))
		expect.AtMost(t, "the time that it took", time.Since(begun), patience)
	})
}

// TestALiveStreamEndsWithItsKey: AUT-04. A live stream ends when its caller loses the key.
func TestALiveStreamEndsWithItsKey(t *testing.T) {
	var o standalone.Options
	f := start(t, func(given *standalone.Options) { o = *given })
	revoked, kept := f.watch("op2"), f.watch("op")
	left := maps.Clone(callers)
	delete(left, "op2")
	o.Config = servertest.Config(t, left, "")
	expect.OK(t, f.s.Reload(t.Context(), o))
	select {
	case _, open := <-revoked:
		expect.True(t, "a caller without a key gets no message", !open)
	case <-time.After(patience):
		t.Fatal("the stream of a revoked key is open")
	}
	f.subscribe("alice", "/a", built)
	f.publish(built, "evt_later")
	select {
	case _, open := <-kept:
		expect.True(t, "the stream of another key is open", open)
	case <-time.After(patience):
		t.Error("the stream of another key got nothing")
	}
}

// TestOverview: OPS-11. The overview has what there is, what charts are drawn from, and who fails.
func TestOverview(t *testing.T) {
	f := start(t, nil)
	id := f.subscribe("alice", "/a", built)
	f.subscribe("bob", "/b", built)
	f.answerWith(413)
	f.publish(built, "evt_1")
	expect.Eventually(f, "the dead letters and their records", func() bool {
		return len(f.list("op", "dead-letters").Items) == 2 && len(f.list("op", "deliveries").Items) == 2
	})
	f.call("op", "POST", "subscriptions/"+id+"/pause", "", 200, nil)
	var o struct {
		Subscriptions map[string]int
		DeadLetters   int
		Paused        []object
		Recent        struct {
			Attempts, Failed int
			Series, Failing  []object
		}
	}
	f.call("op", "GET", "overview", "", 200, &o)
	if o.Subscriptions["active"] != 1 || o.Subscriptions["paused"] != 1 || o.DeadLetters != 2 || len(o.Paused) != 1 || o.Recent.Attempts != 2 || o.Recent.Failed != 2 {
		t.Errorf("got %+v, want 1 active and 1 paused subscription, 2 dead letters, 1 switch, 2 failed attempts", o)
	}
	f.sees("op", "backends", 0)
	if s := o.Recent.Series; len(s) != 1 || s[0]["attempts"] != 2.0 || s[0]["failed"] != 2.0 {
		t.Errorf("OPS-11 the series is %v", s)
	}
	if l := o.Recent.Failing; len(l) != 1 || l[0]["origin"] != f.hold.URL || l[0]["category"] != "http_4xx" {
		t.Errorf("OPS-11 failing: %v", l)
	}
	types := f.list("op", "event-types")
	if !strings.Contains(ids(types, "name"), "ci.build_finished") || !strings.Contains(ids(types, "uri"), "event://github/{owner}/{repo}/pull_request") {
		t.Errorf("OPS-11 event types: %v", types.Items)
	}
}

// OPS-11: the subscriptions that receive an event, to its type or to a parent, are each listed once.
func TestSubscriptionsOfAnEvent(t *testing.T) {
	f := start(t, nil)
	const uri = "event://incidents/api/created"
	want := []string{f.subscribe("alice", "/1", "event://incidents/api"), f.subscribe("bob", "/2", uri), f.subscribe("alice", "/3", uri, "event://incidents")}
	f.subscribe("alice", "/4", "event://incidents/web/created")
	f.subscribe("alice", "/5", "event://incidents/web")
	slices.Sort(want)
	for _, limit := range []int{1, 2, 50} {
		got := strings.Fields(ids(f.pages("op", "subscriptions?uri="+uri, limit), "id"))
		expect.List(t, fmt.Sprint("OPS-11 by ", limit), slices.Sorted(slices.Values(got)), want)
	}
	f.sees("bob", "subscriptions?uri="+uri, 1)
	for _, also := range []string{"", "&principal=alice", "&state=active", "&event=incident.created"} {
		expect.True(t, "OPS-11 another spelling has subscriptions with "+also, len(f.list("op", "subscriptions?uri="+url.QueryEscape("EVENT://incidents/api/%63reated")+also).Items) > 0)
		for _, none := range []string{"event://none", "event://incidents/api/created/by"} {
			f.sees("op", "subscriptions?uri="+none+also, 0)
		}
		for uri, want := range map[string]string{
			"event://incidents/*/created":         "event://incidents/*/created\\\", which is a pattern (allowed: the URI of one event",
			"event://incidents/{service}/created": "has a variable that was not filled in",
			"incidents":                           "does not begin with event://",
		} {
			expect.Contains(t, "OPS-11 "+uri+also, string(f.call("op", "GET", "subscriptions?uri="+url.QueryEscape(uri)+also, "", 400, nil)), want)
		}
	}
	f.call("op", "GET", "events?uri=event://incidents/*/created", "", 400, nil)
	f.call("op", "GET", "events/evt_1?uri=event://incidents/*/created", "", 400, nil)
}
