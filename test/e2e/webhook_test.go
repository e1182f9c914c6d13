//go:build unix

package e2e

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"io"
	"net/http"
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
		if len(keys) != 1 || keys[0].Kty != "OKP" || keys[0].Crv != "Ed25519" {
			t.Fatalf("JWKS %s", b)
		}
		_, signature, _ := strings.Cut(d.Header.Get("webhook-signature"), " v1a,")
		signed := []byte(d.ID() + "." + d.Header.Get("webhook-timestamp") + "." + string(d.Body))
		raw := expect.Value(base64.StdEncoding.DecodeString(signature))(t)
		public := expect.Value(base64.RawURLEncoding.DecodeString(keys[0].X))(t)
		expect.True(t, "the v1a signature can be verified", ed25519.Verify(public, signed, raw))
	})
}
