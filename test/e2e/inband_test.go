//go:build unix

package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestInBand tests subscriptions on streams.
func TestInBand(t *testing.T) {
	t.Parallel()
	inBand(t, &harness.StartServer(t, harness.ServerOptions{}).Target)
}

func inBand(t *testing.T, s *harness.Target) {
	t.Run("EVS-05 only valid URIs can be subscribed to", func(t *testing.T) {
		c := s.SessionBased(t, "alice", harness.V20251125)
		for _, uri := range []string{
			"event://ci/build-finished", "event://github/acme/website/pull_request", "event://github/acme",
			"event://github", "event://deploy/production/api/finished", "event://github/acme/*/pull_request",
		} {
			c.Call(t, "resources/subscribe", object{"uri": uri}, nil)
			c.Call(t, "resources/unsubscribe", object{"uri": uri}, nil)
		}
		bad := map[string]string{
			"event://ci/other": "event://ci/other", "event://deploy/moon/api/finished": "environment",
			"https://example.com": "event://", "event://": "", "event://github/acme/website/pull_request/1": "", "": "",
		}
		for uri, says := range bad {
			e := c.Refused(t, -32602, "resources/subscribe", object{"uri": uri})
			if !strings.Contains(e.Error(), says) {
				t.Errorf("subscribe to %q: got %v, want an error that names the fault", uri, e)
			}
		}
	})

	t.Run("EVS-06 EVS-13 events of a parent arrive once, with their own URI", func(t *testing.T) {
		c := s.SessionBased(t, "alice", harness.V20251125)
		stream := c.Open(t, "")
		for _, uri := range []string{"event://github/acme", "event://github/acme/website/pull_request", "event://github/acme/*/pull_request"} {
			c.Call(t, "resources/subscribe", object{"uri": uri}, nil)
		}
		listen := s.Stateless("bob").Listen(t, "l", object{"resourceSubscriptions": []string{
			"event://github/acme", "event://github/acme/website/pull_request", "event://github/*/website/pull_request",
		}}, nil)
		s.Publish(t, pullRequest("a1", "acme", "website", 1))
		s.Publish(t, pullRequest("a2", "globex", "api", 2)) // not subscribed to by any client
		s.Publish(t, pullRequest("a3", "acme", "api", 3))
		s.Publish(t, pullRequest("a4", "acme", "website", 4))
		for name, st := range map[string]*harness.Stream{"GET": stream, "listen": listen} {
			updates := st.Wait(t, 3)
			var got []string
			for _, u := range updates {
				got = append(got, u.EventID+" "+u.URI)
				if len(u.Payload) == 0 || u.Time == "" || u.Cursor == "" {
					t.Errorf("%s: %s has payload %s, time %q, cursor %q", name, u.EventID, u.Payload, u.Time, u.Cursor)
				}
			}
			slices.Sort(got)
			want := []string{
				"a1 event://github/acme/website/pull_request", "a3 event://github/acme/api/pull_request",
				"a4 event://github/acme/website/pull_request",
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: got %v, want %v", name, got, want)
			}
		}
	})

	t.Run("EVS-06 other events do not arrive, and none arrive after unsubscribing", func(t *testing.T) {
		const uri = "event://incidents/unsubscribed/created"
		c := s.SessionBased(t, "alice", harness.V20251125)
		stream := c.Open(t, "")
		c.Call(t, "resources/subscribe", object{"uri": uri}, nil)
		c.Call(t, "resources/subscribe", object{"uri": "event://calendar/unsubscribed/changed"}, nil)
		s.Publish(t, incident("i1", "other", "info"))
		s.Publish(t, incident("i2", "unsubscribed", "info"))
		if got := stream.Wait(t, 1)[0].EventID; got != "i2" {
			t.Errorf("got %s, want i2", got)
		}
		c.Call(t, "resources/unsubscribe", object{"uri": uri}, nil)
		s.Publish(t, incident("i3", "unsubscribed", "info"))
		s.Publish(t, harness.Event{ID: "c1", URI: "event://calendar/unsubscribed/changed", Data: object{"id": "1", "change": "created"}})
		if u := stream.Wait(t, 2); u[1].EventID != "c1" {
			t.Errorf("got %s after unsubscribing, want c1", u[1].EventID)
		}
	})

	t.Run("payload in _meta for clients that declare the extension", func(t *testing.T) {
		c := s.Stateless("alice")
		c.Capabilities = object{"extensions": object{harness.Extension: object{}}}
		stream := c.Listen(t, 1, object{"resourceSubscriptions": []string{"event://incidents/meta"}}, nil)
		none := s.Stateless("alice").Listen(t, 2, object{"resourceSubscriptions": []string{"event://incidents/meta"}}, nil)
		s.Publish(t, incident("m1", "meta", "info"))
		if got := stream.Wait(t, 1)[0].Meta[harness.Prefix+"payload"]; got == nil {
			t.Error("the payload in _meta is missing")
		}
		if got := none.Wait(t, 1)[0].Meta[harness.Prefix+"payload"]; got != nil {
			t.Error("a client without the extension got the payload twice")
		}
	})
}
