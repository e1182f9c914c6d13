//go:build unix

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

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
		if err := d.Verify(hook.Secret()); err != nil {
			t.Error(err)
		}
		if n := len(hook.Challenges()); n != 1 {
			t.Errorf("%d challenges", n)
		}
	})
}

func subscribing(t *testing.T, s *harness.Target) {
	receiver := harness.NewReceiver(t)
	alice, bob := s.Stateless("alice"), s.Stateless("bob")

	t.Run("EVX-04 WHK-02 the same event has the same id in every kind of subscription", func(t *testing.T) {
		hook, old := receiver.Endpoint("kinds"), receiver.Endpoint("kinds-1803")
		sub := subscribe(t, alice, hook, "ci.build_finished", nil)
		r := register(t, alice, old, "event://ci/build-finished")
		stream := alice.Listen(t, 1, object{"resourceSubscriptions": []string{"event://ci/build-finished"}}, nil)
		happened := time.Date(2026, 11, 3, 12, 30, 15, 250e6, time.FixedZone("", 3600))
		e := build("", 42)
		e.Time = happened
		id := s.Publish(t, e)[0].ID
		d := hook.Wait(t, 1)[0]
		occ := decode[occurrence](t, d.Body)
		if occ.EventID != id || occ.Name != "ci.build_finished" || occ.Data["build"] != 42.0 || occ.Cursor == nil {
			t.Errorf("body %s", d.Body)
		}
		if at, err := time.Parse(time.RFC3339, occ.Timestamp); err != nil || !at.Equal(happened) {
			t.Errorf("timestamp %q, want %v with a zone", occ.Timestamp, happened)
		}
		if d.ID() != id || old.Wait(t, 1)[0].ID() != id || stream.Wait(t, 1)[0].EventID != id {
			t.Error("the id differs between the kinds")
		}
		if got := d.Header.Get("X-MCP-Subscription-Id"); got != sub.ID {
			t.Errorf("X-MCP-Subscription-Id %q, want %q", got, sub.ID)
		}
		unsubscribe(t, alice, hook, "ci.build_finished", nil)
		deregister(t, alice, r.Subscription.URI)
	})

	t.Run("EVX-08 idempotent over principal, url, name and arguments", func(t *testing.T) {
		hook := receiver.Endpoint("idempotent")
		first := subscribe(t, alice, hook, "github.pull_request", object{"owner": "acme", "action": "opened"})
		var again subscribed
		alice.Call(t, "events/subscribe", object{
			"arguments": object{"action": "opened", "owner": "acme"}, "name": "github.pull_request",
			"delivery": object{"mode": "webhook", "url": hook.URL(), "secret": hook.Secret()},
			"id":       "sub_11111111111111111111111111111111",
		}, &again)
		if again.ID != first.ID {
			t.Errorf("the same subscription is %s and %s", first.ID, again.ID)
		}
		different := map[string]string{first.ID: "the first"}
		for what, id := range map[string]string{
			"other arguments": subscribe(t, alice, hook, "github.pull_request", object{"owner": "globex"}).ID,
			"another name":    subscribe(t, alice, hook, "github.push", object{"owner": "acme"}).ID,
			"another caller":  subscribe(t, bob, hook, "github.pull_request", object{"owner": "acme", "action": "opened"}).ID,
		} {
			if different[id] != "" {
				t.Errorf("%s has the id of %s", what, different[id])
			}
			different[id] = what
		}
		s.Publish(t, pullRequest("idempotent", "acme", "api", 1))
		subs := map[string]int{}
		harness.Eventually(t, harness.Patience, "alice's and bob's delivery", func() bool {
			clear(subs)
			for _, d := range hook.Deliveries() {
				subs[d.Header.Get("X-MCP-Subscription-Id")]++
			}
			return len(subs) >= 2
		})
		for _, d := range hook.Deliveries() {
			if err := d.Verify(hook.Secret()); err != nil {
				t.Error(err)
			}
		}
		for id := range subs {
			if what := different[id]; what != "the first" && what != "another caller" {
				t.Errorf("a delivery for %q, %q", id, what)
			}
		}
	})

	t.Run("EVX-03 arguments bind variables and filter payloads", func(t *testing.T) {
		hook := receiver.Endpoint("filters")
		subscribe(t, alice, hook, "incident.created", object{"severity": []string{"critical", "err*"}})
		for _, severity := range []string{"info", "critical", "warning", "error"} {
			s.Publish(t, incident("f-"+severity, "search", severity))
		}
		hook.Wait(t, 2)
		if ids := hook.IDs(); ids["f-critical"] == 0 || ids["f-error"] == 0 || len(ids) != 2 {
			t.Errorf("delivered %v", ids)
		}
	})

	t.Run("EVX-08 replay from a supplied cursor", func(t *testing.T) {
		hook := receiver.Endpoint("replay")
		sub := subscribe(t, alice, hook, "deploy.finished", object{"environment": "staging", "service": "replay"})
		deployed := func(id string) harness.Event {
			return harness.Event{ID: id, URI: "event://deploy/staging/replay/finished", Data: object{"version": id, "outcome": "succeeded"}}
		}
		s.Publish(t, deployed("d1"))
		d := hook.Wait(t, 1)[0]
		unsubscribe(t, alice, hook, "deploy.finished", object{"environment": "staging", "service": "replay"})
		s.Publish(t, deployed("d2"))
		s.Publish(t, deployed("d3"))
		harness.Eventually(t, harness.Patience, "d3 in the log", func() bool {
			var r contents
			alice.Call(t, "resources/read", object{"uri": "event://deploy/staging/replay/finished"}, &r)
			return strings.Contains(r.Contents[0].Text, "d3")
		})
		var again subscribed
		params := subscription("deploy.finished", object{"environment": "staging", "service": "replay"}, hook.URL(), hook.Secret())
		params["cursor"] = decode[occurrence](t, d.Body).Cursor
		alice.Call(t, "events/subscribe", params, &again)
		if again.ID != sub.ID || again.Truncated {
			t.Errorf("subscribed again as %+v", again)
		}
		hook.Wait(t, 3)
		if ids := hook.IDs(); ids["d2"] == 0 || ids["d3"] == 0 {
			t.Errorf("delivered %v, want d2 and d3", ids)
		}
	})

	t.Run("EVX-09 the granted lifetime is within the limits", func(t *testing.T) {
		hook := receiver.Endpoint("ttl")
		grants := []struct {
			what string
			ttl  any
			want time.Duration
		}{
			{"the default", nil, 24 * time.Hour},
			{"the requested lifetime", 3_600_000, time.Hour},
			{"the floor", 10, time.Second},
			{"the cap", 365 * 24 * 3_600_000, 168 * time.Hour},
		}
		for _, g := range grants {
			params := subscription("ci.build_finished", object{"status": "passed"}, hook.URL(), newSecret())
			if g.ttl != nil {
				params["ttlMs"] = g.ttl
			}
			var r subscribed
			alice.Call(t, "events/subscribe", params, &r)
			if r.RefreshBefore == nil {
				t.Errorf("%s: no refreshBefore", g.what)
				continue
			}
			at, err := time.Parse(time.RFC3339, *r.RefreshBefore)
			if got := time.Until(at); err != nil || got > g.want || got < g.want-30*time.Second {
				t.Errorf("%s: refreshBefore %s in %v, want %v", g.what, *r.RefreshBefore, got, g.want)
			}
		}
		params := subscription("ci.build_finished", object{"status": "passed"}, hook.URL(), newSecret())
		params["ttlMs"] = nil
		var r subscribed
		alice.Call(t, "events/subscribe", params, &r)
		if r.RefreshBefore == nil {
			t.Error("no expiry was granted though the operator does not allow it")
		}
	})
	t.Run("EVX-09 deliveries stop within a second of the expiry", func(t *testing.T) {
		hook, control := receiver.Endpoint("expires"), receiver.Endpoint("stays")
		hook.SetSecret(newSecret())
		args := object{"owner": "expiring"}
		subscribe(t, alice, control, "github.push", args)
		push := func(id string) harness.Event {
			return harness.Event{ID: id, URI: "event://github/expiring/x/push", Data: object{
				"ref": "refs/heads/main", "after": strings.Repeat("a", 40),
			}}
		}
		var at time.Time
		delivered := false
		for ttl := 4; !delivered && ttl <= 32; ttl *= 2 { // a busy machine may need a longer lifetime
			params := subscription("github.push", args, hook.URL(), hook.Secret())
			params["ttlMs"] = 1000 * ttl
			var r subscribed
			alice.Call(t, "events/subscribe", params, &r)
			var err error
			if at, err = time.Parse(time.RFC3339, *r.RefreshBefore); err != nil {
				t.Fatal(err)
			}
			s.Publish(t, push(fmt.Sprint("in-time-", ttl)))
			harness.Eventually(t, 2*harness.Patience, "the delivery, or the expiry", func() bool {
				_, n := hook.Count()
				delivered = n > 0
				return delivered || time.Now().After(at)
			})
		}
		if !delivered {
			t.Fatal("no event was delivered before the expiry")
		}
		harness.Eventually(t, 2*harness.Patience, "the expiry", func() bool { return time.Now().After(at) })
		s.Publish(t, push("too-late"))
		harness.Eventually(t, harness.Patience, "the event that is too late", func() bool { return control.IDs()["too-late"] > 0 })
		if ids := hook.IDs(); ids["too-late"] > 0 {
			t.Errorf("delivered %v, one of them after the expiry", ids)
		}
	})

	t.Run("WHK-06 a refresh rotates the secret with both signatures", func(t *testing.T) {
		hook := receiver.Endpoint("rotates")
		first := subscribe(t, alice, hook, "ci.build_finished", object{"status": "failed"})
		old, next := hook.Secret(), newSecret()
		var again subscribed
		alice.Call(t, "events/subscribe", subscription("ci.build_finished", object{"status": "failed"}, hook.URL(), next), &again)
		if again.ID != first.ID {
			t.Errorf("the id changed from %s to %s", first.ID, again.ID)
		}
		s.Publish(t, harness.Event{ID: "rotated", URI: "event://ci/build-finished", Data: object{"build": 1, "status": "failed"}})
		d := hook.Wait(t, 1)[0]
		for what, secret := range map[string]string{"old": old, "new": next} {
			if err := d.Verify(secret); err != nil {
				t.Errorf("not verified with the %s secret: %v", what, err)
			}
		}
		if n := len(strings.Fields(d.Header.Get("webhook-signature"))); n != 2 {
			t.Errorf("%d signatures, want 2", n)
		}
	})

	t.Run("EVX-14 WHK-08 410 and 413 end the delivery, but not the subscription", func(t *testing.T) {
		hook := receiver.Endpoint("final")
		failed := false
		hook.Answer(func(_ int, d *harness.Delivery) harness.Reply {
			switch id := d.ID(); {
			case id == "gone":
				return harness.Reply{Status: 410}
			case id == "large":
				return harness.Reply{Status: 413}
			case id == "retried" && !failed:
				failed = true
				return harness.Reply{Status: 500}
			}
			return harness.Reply{}
		})
		subscribe(t, alice, hook, "message.created", object{"workspace": "acme", "channel": "final"})
		for i, id := range []string{"gone", "large", "retried"} {
			s.Publish(t, message(id, "final"))
			hook.Wait(t, i+1)
		}
		hook.WaitAttempts(t, 4)
		s.Publish(t, message("fine", "final"))
		hook.Wait(t, 4)
		if ids := hook.IDs(); ids["gone"] != 1 || ids["large"] != 1 || ids["retried"] != 2 {
			t.Errorf("attempts: %v", ids)
		}
	})

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
		if !harness.Within(t, 3*time.Minute, func() bool { return len(missing()) == 0 && read() == "active" }) {
			t.Errorf("missing are %v, and the subscription is %s", missing(), read())
		}
	})

	t.Run("EVX-15 unsubscribe by the same key is idempotent and immediate", func(t *testing.T) {
		hook, control := receiver.Endpoint("ends"), receiver.Endpoint("goes-on")
		args := object{"workspace": "acme", "channel": "ends"}
		subscribe(t, alice, hook, "message.created", args)
		subscribe(t, alice, control, "message.created", args)
		s.Publish(t, message("e1", "ends"))
		hook.Wait(t, 1)
		unsubscribe(t, bob, hook, "message.created", args) // not bob's subscription, so this has no effect
		s.Publish(t, message("e2", "ends"))
		hook.Wait(t, 2)
		unsubscribe(t, alice, hook, "message.created", args)
		unsubscribe(t, alice, hook, "message.created", args)
		s.Publish(t, message("e3", "ends"))
		control.Wait(t, 3)
		if ids := hook.IDs(); ids["e3"] > 0 {
			t.Errorf("delivered %v, the last one after the end", ids)
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

// TestErrorCodes tests the named errors of the events methods.
func TestErrorCodes(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{Args: []string{"--quota", "2"}})
	receiver := harness.NewReceiver(t)
	hook := receiver.Endpoint("hook")
	alice := s.Stateless("alice")
	named := func(t *testing.T, e *harness.RPCError, name string) {
		t.Helper()
		if !strings.Contains(e.Message, name) {
			t.Errorf("the message %q does not name %s", e.Message, name)
		}
		if len(e.Data) == 0 || e.Data[0] != '{' {
			t.Errorf("data %s is not an object", e.Data)
		}
	}
	t.Run("EVX-15 an unknown subscription is NotFound if configured", func(t *testing.T) {
		sep := harness.StartServer(t, harness.ServerOptions{Args: []string{"--profile", "final"}})
		c := sep.Stateless("alice")
		params := object{"name": "ci.build_finished", "arguments": object{}, "delivery": object{"mode": "webhook", "url": "https://example.com/x"}}
		c.Refused(t, -32023, "events/unsubscribe", params)
		t.Run("EVX-16 the numbers of SEP-3415", func(t *testing.T) {
			e := c.Refused(t, -32023, "events/subscribe", subscription("no.such", nil, "http://127.0.0.1:9/", newSecret()))
			if !strings.Contains(e.Message, "NotFound") {
				t.Errorf("error %v", e)
			}
			e = c.Refused(t, -32027, "events/subscribe", subscription("ci.build_finished", nil, closedPort(t), newSecret()))
			if decode[map[string]any](t, e.Data)["reason"] == nil {
				t.Errorf("error %v", e)
			}
		})
	})
	t.Run("EVX-16 NotFound", func(t *testing.T) {
		named(t, alice.Refused(t, -32011, "events/subscribe", subscription("no.such", nil, hook.URL(), newSecret())), "NotFound")
	})
	t.Run("EVX-16 AUT-02 Forbidden without the scope", func(t *testing.T) {
		a := s.Stateless("reader").Do(t, "events/subscribe", subscription("ci.build_finished", nil, hook.URL(), newSecret()))
		if a.Error == nil || a.Error.Code != -32012 || !strings.Contains(a.Error.Error(), "events:subscribe") {
			t.Errorf("status %d: %s", a.Status, a.Body)
		}
		if a.Status != http.StatusForbidden || !strings.Contains(a.Header.Get("WWW-Authenticate"), "insufficient_scope") {
			t.Errorf("status %d, WWW-Authenticate %q", a.Status, a.Header.Get("WWW-Authenticate"))
		}
	})
	t.Run("EVX-16 ResourceExhausted names the limit", func(t *testing.T) {
		subscribe(t, alice, hook, "ci.build_finished", nil)
		subscribe(t, alice, hook, "incident.created", nil)
		e := alice.Refused(t, -32013, "events/subscribe", subscription("github.push", nil, hook.URL(), hook.Secret()))
		named(t, e, "ResourceExhausted")
		if data := decode[map[string]any](t, e.Data); data["limit"] == nil {
			t.Errorf("data %v does not name the limit", data)
		}
		e = alice.Refused(t, 429, "resources/subscriptions/register", object{"uris": []string{"event://ci"}, "targetUri": hook.URL()})
		if !strings.Contains(e.Error(), "2") {
			t.Errorf("error %v", e)
		}
		subscribe(t, alice, hook, "ci.build_finished", nil) // a refresh needs no quota
	})
	t.Run("EVX-16 Unsupported delivery mode", func(t *testing.T) {
		params := object{"name": "ci.build_finished", "arguments": object{}, "delivery": object{"mode": "pigeon"}}
		a := alice.Do(t, "events/subscribe", params)
		if a.Error == nil || a.Error.Code != -32014 && a.Error.Code != -32602 {
			t.Errorf("got %s", a.Body)
		}
	})
	t.Run("EVX-08 events/subscribe needs an authenticated caller", func(t *testing.T) {
		none := harness.StartServer(t, harness.ServerOptions{Auth: "none", Guarded: true})
		e := none.Stateless("").Refused(t, -32012, "events/subscribe", subscription("ci.build_finished", nil, "https://hooks.example.com/", newSecret()))
		if !strings.Contains(e.Message, "Forbidden") || !strings.Contains(e.Message, "authenticated") {
			t.Errorf("error %v", e)
		}
		insecure := harness.StartServer(t, harness.ServerOptions{Auth: "none"})
		subscribe(t, insecure.Stateless(""), receiver.Endpoint("anonymous"), "ci.build_finished", nil)
	})
}
