//go:build unix

package e2e

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

type rawJSON = json.RawMessage

// TestMainJob tests the product's main job in each mode: clients of both kinds of revisions, and webhooks registered
// in both ways, receive exactly the events that they asked for, while eight publishers concurrently publish 1,000
// events of five types.
func TestMainJob(t *testing.T) {
	t.Parallel()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		s := harness.StartServer(t, harness.ServerOptions{})
		mainJob(t, &s.Target)
	})
	t.Run("local AWS", func(t *testing.T) {
		t.Parallel()
		mainJob(t, &harness.StartAWS(t, harness.AWSOptions{Env: harness.Quick}).Target)
	})
}

// mainJob runs the same test against any target.
func mainJob(t *testing.T, target *harness.Target) {
	receiver := harness.NewReceiver(t)

	// Given streams of the official client and of one that checks every member ...
	sessionBased := target.SDK(t, "alice", harness.V20251125, harness.SDKOptions{})
	sessionBased.Follow(t, "event://ci/build-finished", "event://github/acme", "event://github/acme/website/pull_request")
	stateless := target.SDK(t, "alice", harness.V20260728, harness.SDKOptions{Extended: true, ListChanged: true})
	stateless.Follow(t, "event://incidents", "event://deploy/production/web/finished")

	get := target.SessionBased(t, "bob", harness.V20251125)
	stream := get.Open(t, "")
	get.Call(t, "resources/subscribe", object{"uri": "event://chat/acme/general/message"}, nil)
	get.Call(t, "resources/subscribe", object{"uri": "event://deploy/staging/api/finished"}, nil)
	listen := target.Stateless("bob").Listen(t, "everything", object{"resourceSubscriptions": []string{
		"event://github", "event://ci/build-finished", "event://deploy", "event://incidents", "event://chat",
	}}, nil)

	// ... and webhooks registered in both ways ...
	alice, bob := target.Stateless("alice"), target.SessionBased(t, "bob", harness.V20250618)
	type hook struct {
		*harness.Endpoint
		want func(*published) bool
		body func(*testing.T, *harness.Delivery, *published)
	}
	var hooks []hook
	add := func(e *harness.Endpoint, body func(*testing.T, *harness.Delivery, *published), want func(*published) bool) {
		hooks = append(hooks, hook{e, want, body})
	}
	builds := receiver.Endpoint("builds-and-acme")
	r := register(t, alice, builds, "event://ci/build-finished", "event://github/acme")
	add(builds, sep1803Body(r.Subscription.URI), under("event://ci/build-finished", "event://github/acme"))
	apis := receiver.Endpoint("api-deployments")
	r = register(t, bob, apis, "event://deploy/*/api/finished")
	add(apis, sep1803Body(r.Subscription.URI), under("event://deploy/production/api", "event://deploy/staging/api"))
	acme := receiver.Endpoint("pull-requests-of-acme")
	subscribe(t, alice, acme, "github.pull_request", object{"owner": "acme"})
	add(acme, eventsBody("github.pull_request"), under("event://github/acme"))
	critical := receiver.Endpoint("critical-incidents")
	subscribe(t, bob, critical, "incident.created", object{"severity": "critical"})
	add(critical, eventsBody("incident.created"), func(p *published) bool {
		data, _ := p.Data.(object)
		return data["severity"] == "critical"
	})
	messages := receiver.Endpoint("all-messages")
	subscribe(t, alice, messages, "message.created", nil)
	add(messages, eventsBody("message.created"), under("event://chat"))

	// ... when 1,000 events are published ...
	w := &workload{publishers: 8, count: 125}
	began := time.Now()
	w.run(t, target)
	accepted := time.Since(began)

	// ... then each receives the events that it asked for, ...
	streams := map[string]func() []*harness.Update{
		"SDK " + harness.V20251125: sessionBased.Updates, "SDK " + harness.V20260728: stateless.Updates,
		"GET": stream.Updates, "listen": listen.Updates,
	}
	wants := map[string]map[string]*published{
		"SDK " + harness.V20251125: w.wanted(under("event://ci/build-finished", "event://github/acme")),
		"SDK " + harness.V20260728: w.wanted(under("event://incidents", "event://deploy/production/web/finished")),
		"GET":                      w.wanted(under("event://chat/acme/general/message", "event://deploy/staging/api/finished")),
		"listen":                   w.events,
	}
	complete := func() bool {
		for name, updates := range streams {
			if seen := idsOf(updates()); len(slices.Compact(slices.Sorted(slices.Values(seen)))) < len(wants[name]) {
				return false
			}
		}
		return !slices.ContainsFunc(hooks, func(h hook) bool {
			_, n := h.Count()
			return n < len(w.wanted(h.want))
		})
	}
	harness.Within(t, 4*time.Minute+harness.Patience, complete) // a failed batch is redelivered after three minutes; missing events are reported below
	t.Logf("accepted after %v, all arrived after %v", accepted, time.Since(began))
	for name, updates := range streams {
		t.Run("EVS-06 EVS-13 EVS-15 stream "+name+" has exactly its events", func(t *testing.T) {
			checkStream(t, name, updates(), wants[name], target.Name == "local AWS")
		})
	}
	t.Run("EVS-06 payloads are unchanged", func(t *testing.T) {
		for _, u := range slices.Concat(stream.Updates(), listen.Updates()) {
			if p := w.events[u.EventID]; p != nil && !sameJSON(t, u.Payload, marshal(t, p.Data)) {
				t.Errorf("payload of %s: %.300s, want %.300s", u.EventID, u.Payload, marshal(t, p.Data))
			}
		}
		for _, u := range stateless.Updates() {
			if p := w.events[u.EventID]; p != nil && !sameJSON(t, marshal(t, u.Meta[harness.Prefix+"payload"]), marshal(t, p.Data)) {
				t.Errorf("payload of %s in _meta, for a client that declares the extension: %v", u.EventID, u.Meta)
			}
		}
	})
	for _, h := range hooks {
		t.Run("EVS-08 WHK-04 endpoint "+h.Name+" has exactly its events", func(t *testing.T) {
			repeated := checkEndpoint(t, h.Endpoint, w.wanted(h.want), h.body)
			t.Logf("%d events, %d repetitions", len(h.IDs()), repeated)
		})
	}
}
