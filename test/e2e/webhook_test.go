//go:build unix

package e2e

import (
	"crypto/ed25519"
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

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

func TestTheLargestWebhook(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{})
	hook := harness.NewReceiver(t).Endpoint("hook")
	subscribe(t, s.Stateless("alice"), hook, "github.pull_request", object{"owner": "acme"})
	t.Run("EVX-14 a webhook with the largest payload has less than 256 KiB", func(t *testing.T) {
		text := strings.Repeat("x", 240<<10-200)
		s.Publish(t, harness.Event{ID: "large", URI: "event://github/acme/website/pull_request", Data: object{
			"action": "opened", "number": 1, "pull_request": object{"title": "t", "author": "o", "head": text},
		}})
		got := hook.Wait(t, 1)[0]
		expect.AtMost(t, "the bytes of the webhook", len(got.Body), 256<<10)
		expect.AtLeast(t, "the bytes of the webhook", len(got.Body), len(text))
		expect.OK(t, got.Verify(hook.Secret()))
	})
}
