//go:build unix

package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestSubscriptionResources tests subscription:// resources.
func TestSubscriptionResources(t *testing.T) {
	t.Parallel()
	subscriptionResources(t, &harness.StartServer(t, harness.ServerOptions{}).Target)
}

func subscriptionResources(t *testing.T, s *harness.Target) {
	receiver := harness.NewReceiver(t)
	owner, other := s.Stateless("bob"), s.Stateless("reader")
	listens := map[string]*harness.Stream{
		"owner": owner.Listen(t, 1, object{"resourcesListChanged": true}, nil),
		"other": other.Listen(t, 1, object{"resourcesListChanged": true, "eventsListChanged": true}, nil),
	}
	session := s.SessionBased(t, "bob", harness.V20251125)
	sessionBased := session.Open(t, "")
	changes := func(st *harness.Stream) int { return count(st, "notifications/resources/list_changed") }
	waitChanges := func(t *testing.T, n int) {
		t.Helper()
		for name, st := range map[string]*harness.Stream{"listen": listens["owner"], "GET": sessionBased} {
			harness.Eventually(t, harness.Patience, "list_changed on the stream "+name, func() bool { return changes(st) >= n })
		}
	}
	hook := receiver.Endpoint("hook")
	uri := register(t, owner, hook, "event://incidents/owned/created", "event://github/owned").Subscription.URI
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
		expect.Has(t, "the owner's subscriptions", listed(owner), uri)
		expect.Len(t, "the subscriptions that another principal sees", listed(other), 0)
	})
	t.Run("EVS-12 lists with subscriptions are private", func(t *testing.T) {
		var page struct{ CacheScope string }
		owner.Call(t, "resources/list", nil, &page)
		expect.Equal(t, "the cache scope", page.CacheScope, "private")
	})
	t.Run("EVS-12 readable only by its owner", func(t *testing.T) {
		st := readStatus(t, owner, uri)
		if st.URI != uri || st.TargetURI != hook.URL() || len(st.EventURIs) != 2 || st.State != "active" || !st.DeliveryStatus.Active || st.DeliveryStatus.LastDeliveryAt != nil {
			t.Errorf("read: %+v", st)
		}
		other.Refused(t, -32602, "resources/read", object{"uri": uri})
		s.Publish(t, incident("one", "owned", "info"))
		waitStatus(t, owner, uri, func(s subscriptionStatus) bool { return s.DeliveryStatus.LastDeliveryAt != nil })
	})
	t.Run("EVS-12 WHK-08 a change of state notifies", func(t *testing.T) {
		gone := receiver.Endpoint("gone")
		gone.Answer(func(int, *harness.Delivery) harness.Reply { return harness.Reply{Status: 410} })
		goneURI := register(t, owner, gone, "event://incidents/owned/created").Subscription.URI
		waitChanges(t, 2)
		listen := owner.Listen(t, "state", object{"resourceSubscriptions": []string{goneURI}}, nil)
		session.Call(t, "resources/subscribe", object{"uri": goneURI}, nil)
		s.Publish(t, incident("two", "owned", "info"))
		for name, st := range map[string]*harness.Stream{"listen": listen, "GET": sessionBased} {
			harness.Eventually(t, harness.Patience, "the update on "+name, func() bool {
				return slices.ContainsFunc(st.Updates(), func(u *harness.Update) bool { return u.URI == goneURI })
			})
		}
		if st := readStatus(t, owner, goneURI); st.State != "disabled" || st.Reason == "" {
			t.Errorf("after 410: %+v", st)
		}
		s.Publish(t, incident("three", "owned", "info"))
		hook.Wait(t, 3)
		if n, _ := gone.Count(); n != 1 {
			t.Errorf("%d attempts at an endpoint that answered 410", n)
		}
	})
	t.Run("EVS-12 deregistering sends list_changed and removes it", func(t *testing.T) {
		before := map[*harness.Stream]int{listens["owner"]: changes(listens["owner"]), sessionBased: changes(sessionBased)}
		deregister(t, owner, uri)
		for st, n := range before {
			harness.Eventually(t, harness.Patience, "list_changed", func() bool { return changes(st) > n })
		}
		expect.True(t, "it is not listed any more", !slices.Contains(listed(owner), uri))
		owner.Refused(t, -32602, "resources/read", object{"uri": uri})
	})
	t.Run("EVS-12 another principal is not notified", func(t *testing.T) {
		// All clients may be notified at this time, of both lists, because the catalog has just been applied.
		expect.Equal(t, "the list_changed notifications", changes(listens["other"])-count(listens["other"], "notifications/events/list_changed"), 0)
	})
}
