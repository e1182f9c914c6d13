//go:build unix

package e2e

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestWebhookRequest tests the signatures and the size of webhooks. The tests of shared/events/webhook have their headers, and TestMainJob has
// their bodies.
func TestWebhookRequest(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{})
	receiver := harness.NewReceiver(t)
	js := harness.Node(t)
	alice := s.Stateless("alice")
	hook, events := receiver.Endpoint("hook"), receiver.Endpoint("events")
	register(t, alice, hook, "event://github/acme/website/pull_request")
	subscribe(t, alice, events, "github.pull_request", object{"owner": "acme"})
	s.Publish(t, pullRequest("one", "acme", "website", 1))
	d, e := hook.Wait(t, 1)[0], events.Wait(t, 1)[0]

	t.Run("WHK-04 the Go and JavaScript libraries verify a webhook, but not a changed one", func(t *testing.T) {
		for _, x := range []struct {
			d      *harness.Delivery
			secret string
		}{{d, hook.Secret()}, {e, events.Secret()}} {
			expect.OK(t, x.d.Verify(x.secret))
			changed := *x.d
			changed.Body = append(bytes.Clone(x.d.Body), ' ')
			if changed.Verify(x.secret) == nil || x.d.Verify(harness.NewSecret()) == nil {
				t.Error("a changed body or another secret is verified")
			}
		}
		expect.Equal(t, "the verified webhooks", js.VerifyJS(t, []*harness.Delivery{d, e}, []string{hook.Secret(), events.Secret()}), 2)
	})
	t.Run("EVX-14 a webhook with the largest payload has less than 256 KiB", func(t *testing.T) {
		text := strings.Repeat("x", 240<<10-200)
		s.Publish(t, harness.Event{ID: "large", URI: "event://github/acme/website/pull_request", Data: object{
			"action": "opened", "number": 1, "pull_request": object{"title": "t", "author": "o", "head": text},
		}})
		for _, h := range []*harness.Endpoint{hook, events} {
			got := h.Wait(t, 2)[1]
			if len(got.Body) > 256<<10 || len(got.Body) < 240<<10-200 {
				t.Errorf("%s: %d bytes", h.Name, len(got.Body))
			}
			expect.OK(t, got.Verify(h.Secret()))
		}
	})
}

// TestPublicKeys tests the asymmetric signature next to the HMAC.
func TestPublicKeys(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{Args: []string{"--server-identity"}})
	hook := harness.NewReceiver(t).Endpoint("hook")
	register(t, s.Stateless("alice"), hook, "event://ci/build-finished")
	s.Publish(t, build("signed", 1))
	d := hook.Wait(t, 1)[0]
	t.Run("WHK-05 a webhook has v1 and v1a signatures, and the key is published as JWKS", func(t *testing.T) {
		expect.OK(t, d.Verify(hook.Secret()), "v1")
		resp := expect.Value(http.Get(s.Base() + "/.well-known/mcp-webhook-jwks.json"))(t)
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		keys := decode[struct {
			Keys []struct{ Kty, Crv, X string }
		}](t, b).Keys
		if len(keys) == 0 || keys[0].Kty != "OKP" || keys[0].Crv != "Ed25519" {
			t.Fatalf("JWKS %s", b)
		}
		signed := []byte(d.ID() + "." + d.Header.Get("webhook-timestamp") + "." + string(d.Body))
		verified := false
		for _, part := range strings.Fields(d.Header.Get("webhook-signature")) {
			sig, ok := strings.CutPrefix(part, "v1a,")
			raw, err := base64.StdEncoding.DecodeString(sig)
			if !ok || err != nil {
				continue
			}
			for _, k := range keys {
				public, err := base64.RawURLEncoding.DecodeString(k.X)
				verified = verified || err == nil && ed25519.Verify(public, signed, raw)
			}
		}
		if !verified {
			t.Errorf("no v1a signature can be verified: %s", d.Header.Get("webhook-signature"))
		}
	})
}

// TestWebhookID tests a webhook-id per message, which the operator can choose, and a stream over the quota: EVX-21, AUT-07.
func TestWebhookID(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{Args: []string{
		"--profile", "final", "--events-retry-schedule", "0s,1s,1s", "--streams", "2",
	}})
	messageIDs(t, &s.Target)
	replacedStreams(t, &s.Target)
}

func replacedStreams(t *testing.T, s *harness.Target) {
	c := s.Stateless("bob")
	params := object{"name": "ci.build_finished", "arguments": object{}}
	oldest, other := c.Stream(t, 1, "events/stream", params), s.Stateless("alice").Stream(t, 1, "events/stream", params)
	oldest.Next(t)
	other.Next(t)
	second := c.Stream(t, 2, "events/stream", params)
	second.Next(t)
	t.Run("AUT-07 a third stream ends the principal's oldest one with a result, and the others continue", func(t *testing.T) {
		third := c.Stream(t, 3, "events/stream", params)
		third.Next(t)
		if m := oldest.Next(t); string(m.ID) != "1" || m.Result == nil {
			t.Errorf("the oldest stream got %s, want its result", m.Raw)
		}
		s.Publish(t, build("build_2", 2))
		for name, st := range map[string]*harness.Stream{"second": second, "third": third, "other principal's": other} {
			expect.Equal(t, "the first message of the "+name+" stream", st.Next(t).Method, "notifications/events/event")
		}
	})
}

func messageIDs(t *testing.T, s *harness.Target) {
	hooks := harness.NewReceiver(t)
	c := s.Stateless("alice")
	ids := map[string]bool{}
	endpoints := []*harness.Endpoint{hooks.Endpoint("one"), hooks.Endpoint("two")}
	for _, e := range endpoints {
		e.Answer(func(n int, _ *harness.Delivery) harness.Reply { return harness.Reply{Status: 503 * (n & 1)} })
		subscribe(t, c, e, "ci.build_finished", nil)
	}
	s.Publish(t, build("build_1", 1))
	for _, e := range endpoints {
		t.Run("EVX-21 an id per message, the same in both attempts, and the eventId in the body: "+e.Name, func(t *testing.T) {
			got := e.WaitAttempts(t, 2)
			if got[0].ID() != got[1].ID() || !regexp.MustCompile(`^msg_[0-9a-f]{16}$`).MatchString(got[0].ID()) || ids[got[0].ID()] {
				t.Errorf("webhook-id %s, then %s", got[0].ID(), got[1].ID())
			}
			ids[got[0].ID()] = true
			for _, d := range got {
				expect.OK(t, d.Verify(e.Secret()))
				expect.Equal(t, "the eventId", decode[struct{ EventID string }](t, d.Body).EventID, "build_1")
			}
		})
	}
}
