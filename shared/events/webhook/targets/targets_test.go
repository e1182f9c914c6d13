package targets

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestTargets(t *testing.T) {
	private, public, err := webhook.GenerateKeyset()
	expect.OK(t, err)
	sealer := expect.Value(webhook.NewSealer(public))(t)
	opener := expect.Value(webhook.NewOpener(private))(t)
	sender := webhook.NewSender(webhook.Options{Guard: &webhook.Guard{AllowInsecure: true}})
	defer sender.Close()
	targets := Targets{Sender: sender, Sealer: sealer}

	for kind, signed := range map[subscription.SecretType]bool{
		subscription.Standard: true, subscription.Raw: true, subscription.None: false,
	} {
		secret, key := targets.NewSecret(kind)
		if (len(key) > 0) != signed || (secret != "") != signed {
			t.Errorf("%s: got a secret of %d characters and a key of %d bytes", kind, len(secret), len(key))
		}
		if !signed {
			continue
		}
		sealed := expect.Value(targets.Seal(t.Context(), key, subscription.Binding{Workspace: "w", Subscription: "s", Target: "t"}))(t)
		got := expect.Value(opener.Open(t.Context(), sealed, webhook.Binding{Workspace: "w", Subscription: "s", Target: "t"}))(t)
		expect.Equal(t, "the key of "+string(kind), string(got), string(key))
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if err := webhook.Verify(r.Header, body, secret); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
			_, _ = w.Write(body) // echoes the challenge
		}))
		expect.OK(t, targets.Verify(t.Context(), srv.URL, "sub_1", key), kind)
		srv.Close()
	}
	secret, key := targets.NewSecret(subscription.Standard)
	if got, err := targets.ParseSecret(secret); err != nil || !bytes.Equal(got, key) {
		t.Error(err)
	}
	expect.Fault(t, "another scheme", targets.Check("gopher://example.com"), fault.Invalid)
}
