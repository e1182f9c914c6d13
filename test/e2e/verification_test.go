//go:build unix

package e2e

import (
	"encoding/base64"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestVerification tests the challenge before the first delivery.
func TestVerification(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{})
	verifying(t, &s.Target)
	t.Run("EVX-12 targets in the operator's allow-list need no challenge", func(t *testing.T) {
		hook := harness.NewReceiver(t).Endpoint("listed")
		other := harness.StartServer(t, harness.ServerOptions{Args: []string{"--verified-targets", strings.TrimSuffix(hook.URL(), hook.Name)}})
		subscribe(t, other.Stateless("alice"), hook, "ci.build_finished", nil)
		if n := len(hook.Challenges()); n != 0 {
			t.Errorf("%d challenges", n)
		}
	})
}

// TestVerifiedRegistrations tests the challenge for SEP-1803, if the operator enables it.
func TestVerifiedRegistrations(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{Args: []string{"--verify-registrations"}})
	alice := s.Stateless("alice")
	t.Run("SRF-07 mcpevents listen echoes the challenge of its registration", func(t *testing.T) {
		ended := make(chan struct{})
		var code int
		var out, errs string
		go func() {
			defer close(ended)
			code, out, errs = s.Command(t, "alice", "listen", "--server", s.MCP, "--uri", "event://ci/build-finished", "--count", "1", "--for", "30s")
		}()
		harness.Eventually(t, harness.Patience, "a registration", func() bool {
			return slices.ContainsFunc(alice.All(t, "resources/list", "resources"), func(r map[string]any) bool {
				uri, _ := r["uri"].(string)
				return strings.HasPrefix(uri, "subscription://")
			})
		})
		s.Publish(t, build("arrived-once", 1))
		<-ended
		if code != 0 || !strings.Contains(out, "arrived-once") {
			t.Errorf("the command ended with %d: %s\n%s", code, out, errs)
		}
	})
	t.Run("SRF-07 an endpoint that does not echo is not registered", func(t *testing.T) {
		hook := harness.NewReceiver(t).Endpoint("silent")
		hook.AnswerChallenge(func(*harness.Delivery) harness.Reply { return harness.Reply{Status: http.StatusNoContent} })
		e := alice.Refused(t, -32602, "resources/subscriptions/register", object{"uris": []string{"event://ci/build-finished"}, "targetUri": hook.URL()})
		if reason := decode[map[string]any](t, e.Data)["reason"]; reason != "challenge_failed" || !strings.Contains(e.Message, "challenge") {
			t.Errorf("the error is %v", e)
		}
	})
}

func verifying(t *testing.T, s *harness.Target) {
	receiver := harness.NewReceiver(t)
	alice, bob := s.Stateless("alice"), s.Stateless("bob")

	t.Run("EVX-12 a signed challenge before the first delivery, once per caller and URL", func(t *testing.T) {
		hook := receiver.Endpoint("good")
		sub := subscribe(t, alice, hook, "ci.build_finished", nil)
		subscribe(t, alice, hook, "incident.created", nil)
		challenges := hook.Challenges()
		if len(challenges) != 1 {
			t.Fatalf("%d challenges for one caller and URL, want 1", len(challenges))
		}
		c := challenges[0]
		if err := c.Verify(hook.Secret()); err != nil {
			t.Errorf("the challenge is not signed as deliveries are: %v", err)
		}
		if !strings.HasPrefix(c.ID(), "msg_verification_") || len(c.ID()) < len("msg_verification_")+16 {
			t.Errorf("webhook-id %q", c.ID())
		}
		if c.Header.Get("X-MCP-Subscription-Id") != sub.ID {
			t.Errorf("X-MCP-Subscription-Id %q, want %q", c.Header.Get("X-MCP-Subscription-Id"), sub.ID)
		}
		if raw, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(c.Challenge, "=")); err == nil && len(raw) < 16 || len(c.Challenge) < 22 {
			t.Errorf("challenge %q is too short", c.Challenge)
		}
		subscribe(t, bob, hook, "ci.build_finished", nil)
		if n := len(hook.Challenges()); n != 2 {
			t.Errorf("%d challenges after another caller's, want 2", n)
		}
		if hook.Challenges()[1].Challenge == c.Challenge {
			t.Error("the challenge was used twice")
		}
	})

	moved := receiver.Endpoint("moved")
	bad := []struct {
		name   string
		answer func(*harness.Delivery) harness.Reply
	}{
		{"answers nothing", func(*harness.Delivery) harness.Reply { return harness.Reply{} }},
		{"answers another challenge", func(d *harness.Delivery) harness.Reply {
			return harness.Reply{Body: `{"challenge":"` + strings.ToUpper(d.Challenge) + `x"}`}
		}},
		{"returns the request's body", func(d *harness.Delivery) harness.Reply { return harness.Reply{Body: string(d.Challenge)} }},
		{"answers 500", func(d *harness.Delivery) harness.Reply {
			return harness.Reply{Status: 500, Body: `{"challenge":"` + d.Challenge + `"}`}
		}},
		{"redirects", func(*harness.Delivery) harness.Reply {
			return harness.Reply{Status: http.StatusFound, Header: map[string]string{"Location": moved.URL()}}
		}},
		{"hangs", func(*harness.Delivery) harness.Reply { return harness.Reply{Hang: true} }},
		{"answers a megabyte", func(d *harness.Delivery) harness.Reply {
			return harness.Reply{Body: `{"pad":"` + strings.Repeat("x", 1<<20) + `","challenge":"` + d.Challenge + `"}`}
		}},
	}
	for i, b := range bad {
		t.Run("EVX-12 an endpoint that "+b.name, func(t *testing.T) {
			hook := receiver.Endpoint("bad-" + string(rune('a'+i)))
			hook.AnswerChallenge(b.answer)
			e := alice.Refused(t, -32015, "events/subscribe", subscription("ci.build_finished", nil, hook.URL(), newSecret()))
			reason, _ := decode[map[string]any](t, e.Data)["reason"].(string)
			if !slices.Contains([]string{"connection_refused", "timeout", "tls_error", "http_4xx", "http_5xx", "challenge_failed"}, reason) {
				t.Errorf("reason %q is not a published category: %v", reason, e)
			}
			if !strings.Contains(e.Message, "CallbackEndpointError") {
				t.Errorf("message %q does not name the error", e.Message)
			}
			s.Publish(t, build("", 1))
			if n, _ := hook.Count(); n != 0 {
				t.Errorf("%d deliveries to an endpoint that was not verified", n)
			}
		})
	}
	t.Run("EVX-12 the challenge does not follow redirects", func(t *testing.T) {
		if len(moved.Challenges()) != 0 {
			t.Error("the challenge followed a redirect")
		}
	})
	t.Run("EVX-12 an unreachable endpoint is not verified", func(t *testing.T) {
		e := alice.Refused(t, -32015, "events/subscribe", subscription("ci.build_finished", nil, closedPort(t), newSecret()))
		if got := decode[map[string]any](t, e.Data)["reason"]; got != "connection_refused" {
			t.Errorf("reason %v", got)
		}
	})
	t.Run("EVX-12 a repaired endpoint can subscribe", func(t *testing.T) {
		hook := receiver.Endpoint("repaired")
		ok := false
		hook.AnswerChallenge(func(d *harness.Delivery) harness.Reply {
			if !ok {
				return harness.Reply{Status: 404}
			}
			return harness.Reply{Status: 201, Body: `{"challenge":"` + d.Challenge + `","more":true}`}
		})
		alice.Refused(t, -32015, "events/subscribe", subscription("ci.build_finished", nil, hook.URL(), newSecret()))
		ok = true
		subscribe(t, alice, hook, "ci.build_finished", nil)
		s.Publish(t, build("repaired", 1))
		hook.Wait(t, 1)
	})
}
