//go:build unix

package e2e

import (
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestSubscriptionResources tests subscription:// resources.
func TestSubscriptionResources(t *testing.T) {
	t.Parallel()
	subscriptionResources(t, &harness.StartServer(t, harness.ServerOptions{}).Target)
}

func subscriptionResources(t *testing.T, s *harness.Target) {
	receiver := harness.NewReceiver(t)
	alice, bob := s.Stateless("alice"), s.Stateless("bob")
	listens := map[string]*harness.Stream{
		"alice": alice.Listen(t, 1, object{"resourcesListChanged": true}, nil),
		"bob":   bob.Listen(t, 1, object{"resourcesListChanged": true, "eventsListChanged": true}, nil),
	}
	session := s.SessionBased(t, "alice", harness.V20251125)
	sessionBased := session.Open(t, "")
	changes := func(st *harness.Stream) (n int) {
		for _, m := range st.Messages() {
			if m.Method == "notifications/resources/list_changed" {
				n++
			}
		}
		return n
	}
	waitChanges := func(t *testing.T, n int) {
		t.Helper()
		for name, st := range map[string]*harness.Stream{"listen": listens["alice"], "GET": sessionBased} {
			harness.Eventually(t, harness.Patience, "list_changed on the stream "+name, func() bool { return changes(st) >= n })
		}
	}
	hook := receiver.Endpoint("hook")
	uri := register(t, alice, hook, "event://ci/build-finished", "event://github/acme").Subscription.URI
	t.Run("EVS-12 registering sends list_changed to that principal", func(t *testing.T) { waitChanges(t, 1) })

	listed := func(c *harness.Client) (uris []string) {
		for _, r := range c.All(t, "resources/list", "resources") {
			if u, _ := r["uri"].(string); strings.HasPrefix(u, "subscription://") {
				uris = append(uris, u)
			}
		}
		return uris
	}
	t.Run("EVS-12 listed only for its owner", func(t *testing.T) {
		if got := listed(alice); len(got) != 1 || got[0] != uri {
			t.Errorf("alice has %v, want %s", got, uri)
		}
		if got := listed(bob); len(got) != 0 {
			t.Errorf("bob sees %v", got)
		}
	})
	t.Run("EVS-12 lists with subscriptions are private", func(t *testing.T) {
		var page struct{ CacheScope string }
		for _, method := range []string{"resources/list"} {
			alice.Call(t, method, nil, &page)
			if page.CacheScope != "private" {
				t.Errorf("%s: cacheScope %q", method, page.CacheScope)
			}
		}
	})
	t.Run("EVS-12 readable only by its owner", func(t *testing.T) {
		st := readStatus(t, alice, uri)
		if st.URI != uri || st.TargetURI != hook.URL() || len(st.EventURIs) != 2 || st.State != "active" || !st.DeliveryStatus.Active || st.DeliveryStatus.LastDeliveryAt != nil {
			t.Errorf("read: %+v", st)
		}
		bob.Refused(t, -32602, "resources/read", object{"uri": uri})
		s.Publish(t, build("one", 1))
		waitStatus(t, alice, uri, func(s subscriptionStatus) bool { return s.DeliveryStatus.LastDeliveryAt != nil })
	})
	t.Run("EVS-12 WHK-08 a change of state notifies", func(t *testing.T) {
		gone := receiver.Endpoint("gone")
		gone.Answer(func(int, *harness.Delivery) harness.Reply { return harness.Reply{Status: 410} })
		goneURI := register(t, alice, gone, "event://ci/build-finished").Subscription.URI
		waitChanges(t, 2)
		listen := alice.Listen(t, "state", object{"resourceSubscriptions": []string{goneURI}}, nil)
		session.Call(t, "resources/subscribe", object{"uri": goneURI}, nil)
		if e := bob.Do(t, "resources/read", object{"uri": goneURI}); e.Error == nil {
			t.Error("bob reads alice's subscription")
		}
		s.Publish(t, build("two", 2))
		for name, st := range map[string]*harness.Stream{"listen": listen, "GET": sessionBased} {
			harness.Eventually(t, harness.Patience, "the update on "+name, func() bool {
				for _, u := range st.Updates() {
					if u.URI == goneURI {
						return true
					}
				}
				return false
			})
		}
		if st := readStatus(t, alice, goneURI); st.State != "disabled" || st.Reason == "" {
			t.Errorf("after 410: %+v", st)
		}
		s.Publish(t, build("three", 3))
		hook.Wait(t, 3)
		if n, _ := gone.Count(); n != 1 {
			t.Errorf("%d attempts at an endpoint that answered 410", n)
		}
	})
	t.Run("EVS-12 deregistering sends list_changed and removes it", func(t *testing.T) {
		before := map[*harness.Stream]int{listens["alice"]: changes(listens["alice"]), sessionBased: changes(sessionBased)}
		deregister(t, alice, uri)
		for st, n := range before {
			harness.Eventually(t, harness.Patience, "list_changed", func() bool { return changes(st) > n })
		}
		for _, u := range listed(alice) {
			if u == uri {
				t.Error("it is still listed")
			}
		}
		alice.Refused(t, -32602, "resources/read", object{"uri": uri})
	})
	t.Run("EVS-12 another principal is not notified", func(t *testing.T) {
		// All clients may be notified at this time, of both lists, because the catalog has just been applied.
		if n := changes(listens["bob"]) - count(listens["bob"], "notifications/events/list_changed"); n != 0 {
			t.Errorf("bob got %d list_changed", n)
		}
	})
}

// TestParentWebhooks tests webhooks of parents and of patterns.
func TestParentWebhooks(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{})
	receiver := harness.NewReceiver(t)
	c := s.Stateless("alice")
	hook := receiver.Endpoint("overlapping")
	register(t, c, hook, "event://github/acme", "event://github/acme/website/pull_request", "event://github/*/website/pull_request")
	for i, e := range []harness.Event{
		pullRequest("p1", "acme", "website", 1), pullRequest("p2", "acme", "api", 2),
		pullRequest("p3", "globex", "website", 3), pullRequest("p4", "globex", "api", 4),
	} {
		_ = i
		s.Publish(t, e)
	}
	last := receiver.Endpoint("last")
	register(t, c, last, "event://github/globex/api/pull_request")
	s.Publish(t, pullRequest("p5", "globex", "api", 5))
	last.Wait(t, 1)
	t.Run("EVS-13 a parent receives events of its sub-resources, and overlapping URIs deliver once", func(t *testing.T) {
		hook.Wait(t, 3)
		if ids := hook.IDs(); len(ids) != 3 || ids["p1"] != 1 || ids["p2"] != 1 || ids["p3"] != 1 {
			t.Errorf("delivered %v, want p1, p2 and p3 once each", ids)
		}
		for _, d := range hook.Deliveries() {
			if body := decode[struct{ URI string }](t, d.Body); !strings.Contains(body.URI, "/pull_request") {
				t.Errorf("%s has the URI %s, want the event's own", d.ID(), body.URI)
			}
		}
	})
}
