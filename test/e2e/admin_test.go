//go:build unix

package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestAdmin tests the admin API of the stand-alone server. TestOnLocalAWS does the same on AWS.
func TestAdmin(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{})
	operating(t, &s.Target, 0, nil)
}

// operating uses a system as its operators and owners do. Within is the time after which every process knows a
// switch. Items returns everything that is stored; it may be nil.
func operating(t *testing.T, target *harness.Target, within time.Duration, items func() []string) {
	o := operate(t, target)
	owner := target.Stateless("owner")
	harness.Eventually(t, harness.Patience, "the catalog of the workspace is in use", func() bool {
		a, err := owner.Try(t.Context(), "resources/templates/list", nil)
		return err == nil && a.Error == nil && strings.Contains(string(a.Body), "event://")
	})
	hook := harness.NewReceiver(t).Endpoint("operated")
	id := strings.TrimPrefix(register(t, owner, hook, "event://ci/build-finished").Subscription.URI, "subscription://")
	publish := func(id string) {
		t.Helper()
		expect.OK(t, expect.ErrOf(target.TryPublish(t.Context(), "owner", build(id, 1))))
	}
	at := expect.Value(url.Parse(hook.URL()))(t)
	origin := at.Scheme + "://" + at.Host
	arrives := func(id string, times int) {
		t.Helper()
		harness.Eventually(t, harness.Patience, id+" arrives", func() bool { return hook.IDs()[id] >= times })
	}
	hook.Answer(func(int, *harness.Delivery) harness.Reply {
		return harness.Reply{Status: http.StatusRequestEntityTooLarge}
	})
	publish("evt_1")
	harness.Eventually(t, harness.Patience, "the dead letter is there", func() bool { return len(o.list("dead-letters")) == 1 })
	hook.Answer(nil)

	t.Run("OPS-05 events published since a given time are delivered again to one subscription", func(t *testing.T) {
		since := time.Now().UTC().Format(time.RFC3339Nano)
		var missed []string
		for i := range 8 { // at one per second, more than the first step handles
			missed = append(missed, fmt.Sprint("evt_missed_", i))
			publish(missed[i])
			arrives(missed[i], 1)
		}
		ask := `{"select":{"events":true,"subscription":"` + id + `","since":"` + since + `"}`
		rate := `,"rate":1}`
		if target.Name == "stand-alone" { // where the second step is a minute later
			rate = "}"
		}
		var count struct{ Count int }
		harness.Eventually(t, harness.Patience, "a dry run counts what is in the log, which the last webhook may be ahead of", func() bool {
			o.call("POST", "replays", ask+`,"dryRun":true}`, http.StatusOK, &count)
			return count.Count == len(missed)
		})
		var r struct {
			ID, State       string
			Total, Replayed int
		}
		o.call("POST", "replays", ask+rate, http.StatusAccepted, &r)
		for _, event := range missed {
			arrives(event, 2)
		}
		harness.Eventually(t, harness.Patience, "the replay is done", func() bool {
			o.call("GET", "replays/"+r.ID, "", http.StatusOK, &r)
			return r.State == "done"
		})
		expect.Equal(t, "the total", r.Total, len(missed))
		expect.Equal(t, "the replayed", r.Replayed, len(missed))
	})
	t.Run("OPS-09 no identity can see or change data that is not its own", func(t *testing.T) { identities(t, o, id, hook) })
	t.Run("OPS-02 WHK-15 a test event is delivered", func(t *testing.T) {
		var made struct{ Event string }
		o.callAs("owner", "POST", "subscriptions/"+id+"/test", "", http.StatusAccepted, &made)
		arrives(made.Event, 1)
	})
	t.Run("OPS-04 WHK-13 an owner retries one dead letter, with its original id", func(t *testing.T) {
		mine := o.list("dead-letters?subscription=" + id)
		letter := fmt.Sprint(mine[0]["id"])
		o.callAs("owner", "POST", "dead-letters/"+letter+"/retry", "", http.StatusAccepted, nil)
		arrives(fmt.Sprint(mine[0]["event"]), 2)
		o.callAs("owner", "POST", "dead-letters/"+letter+"/retry", "", http.StatusNotFound, nil)
	})
	t.Run("OPS-06 WHK-22 every process knows a switch within 5 s, and no event is lost", func(t *testing.T) {
		switched(t, o, hook, publish, within, origin)
	})
	t.Run("OPS-11 the console's live stream shows an event", func(t *testing.T) { live(t, o, publish) })
	t.Run("OPS-07 WHK-21 an erased principal leaves no data", func(t *testing.T) { erasing(t, o, publish, items) })
	t.Run("OPS-08 the audit trail has every action", func(t *testing.T) {
		trail := o.list("audit?limit=100")
		by := map[any]any{}
		for _, e := range trail {
			by[e["action"]] = e["by"]
		}
		for action, who := range map[string]string{
			"subscription.test": "owner", "dead-letter.retry": "owner", "replay.start": "chief", "switch.pause": "chief", "switch.resume": "chief",
		} {
			expect.Equal[any](t, "who did "+action, by[action], who)
		}
		o.call("DELETE", "subscriptions/"+id, "", http.StatusNoContent, nil)
		if newest := o.list("audit?limit=1"); newest[0]["action"] != "subscription.end" || newest[0]["target"] != id || newest[0]["before"] == nil {
			t.Errorf("got %v", newest)
		}
		expect.Equal(t, "the number of backends", len(o.list("backends")), 0)
	})
}

// switched publishes continuously while a switch is paused and resumed.
func switched(t *testing.T, o *operated, hook *harness.Endpoint, publish func(string), within time.Duration, origin string) {
	name, published := "origin/"+origin, 0
	next := func() {
		publish(fmt.Sprintf("sw_%d", published))
		published++
		time.Sleep(100 * time.Millisecond)
	}
	next()
	harness.Eventually(t, harness.Patience, "whoever delivers knows that nothing is paused", func() bool { return hook.IDs()["sw_0"] == 1 })
	o.call("PUT", "switches/"+name, `{"reason":"a move"}`, http.StatusOK, nil)
	known := time.Now().Add(within)
	for time.Now().Before(known.Add(time.Second)) {
		next()
	}
	var sw struct{ By, Reason, State string }
	if o.call("GET", "switches/"+name, "", http.StatusOK, &sw); sw.By != "chief" || sw.Reason != "a move" || sw.State != "paused" {
		t.Errorf("got %+v", sw)
	}
	for _, d := range hook.Deliveries() {
		// An attempt contains the second in which it was made, and may arrive later.
		made, err := strconv.ParseInt(d.Header.Get("webhook-timestamp"), 10, 64)
		if strings.HasPrefix(d.ID(), "sw_") && (err != nil || made > known.Unix()) {
			t.Errorf("an attempt of %s was made at %d, want none after %d", d.ID(), made, known.Unix())
		}
	}
	o.call("DELETE", "switches/"+name, "", http.StatusNoContent, nil)
	harness.Eventually(t, harness.Patience, "all that waited for "+name+" arrives", func() bool {
		arrived := 0
		for id := range hook.IDs() {
			if strings.HasPrefix(id, "sw_") {
				arrived++
			}
		}
		return arrived == published
	})
	expect.Len(t, "the switches that are left", o.list("switches"), 0)
}

// identities calls every method in the document with every identity that must not.
func identities(t *testing.T, o *operated, id string, hook *harness.Endpoint) {
	letter := o.members("dead-letters?limit=1", "id")
	bodies := map[string]string{"/replays": `{"select":{},"dryRun":true}`, "/events/{id}/deliver": `{"subscription":"` + id + `"}`, "/sources/{name}/try": `{"request":"{}"}`}
	for path, methods := range o.contract.Paths {
		named, name := letter, "subscription/"+id // of a switch
		switch strings.Split(path, "/")[1] {
		case "subscriptions":
			named = id
		case "events":
			named = "evt_1"
		case "principals":
			named = "owner"
		case "sources":
			name = "github"
		}
		asked := strings.NewReplacer("{id}", named, "{name}", name).Replace(strings.TrimPrefix(path, "/"))
		for method, described := range methods {
			forOwners := strings.Contains(fmt.Sprint(described.Security), "events:subscribe")
			for who, want := range map[string]int{"": http.StatusUnauthorized, "unknown": http.StatusUnauthorized, "onlooker": http.StatusForbidden, "neighbour": 0, "stranger": 0} {
				if who == "neighbour" && !forOwners {
					want = http.StatusForbidden
				}
				if who == "stranger" && path == "/live" {
					continue // a stream of events in their own workspace
				}
				status, raw := o.ask(who, strings.ToUpper(method), asked, bodies[path])
				if want != 0 && status != want || status >= http.StatusInternalServerError {
					t.Errorf("%s %s as %q: got %d %s, want %d", method, asked, who, status, raw, want)
				}
				if path == "/openapi.json" {
					continue
				}
				text := strings.ReplaceAll(string(raw), named, "")
				for _, of := range []string{`"owner"`, "evt_", hook.URL(), "passed"} {
					if strings.Contains(text, of) {
						t.Errorf("%s %s as %q reveals %s: %s", method, asked, who, of, raw)
					}
				}
			}
		}
	}
	var s struct{ State string }
	if o.call("GET", "subscriptions/"+id, "", http.StatusOK, &s); s.State != "active" || o.members("dead-letters?limit=1", "id") != letter {
		t.Errorf("an identity has changed it: %+v", s)
	}
}
