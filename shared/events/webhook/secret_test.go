package webhook

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// TestParseSecret: EVX-08.
func TestParseSecret(t *testing.T) {
	enc := func(n int) string { return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{0xfb}, n)) }
	for in, want := range map[string]int{
		"whsec_" + enc(23): 0, "whsec_" + enc(24): 24, "whsec_" + enc(32): 32, "whsec_" + enc(64): 64, "whsec_" + enc(65): 0,
		"": 0, "whsec_": 0, enc(32): 0, "WHSEC_" + enc(32): 0, "whsk_" + enc(32): 0, " whsec_" + enc(32): 0, "whsec_" + enc(32) + " ": 0,
		"whsec_" + enc(32) + "\n":                        0,
		"whsec_" + enc(32)[:20] + "\n" + enc(32):         0,
		"whsec_" + strings.TrimRight(enc(32), "="):       0, // other libraries refuse it
		"whsec_" + strings.ReplaceAll(enc(32), "+", "-"): 0,
		"whsec_" + strings.Repeat("%", 40):               0,
		"whsec_" + strings.Repeat("A", 42) + "B=":        0, // the unused bits are not zero
		"whsec_" + strings.Repeat("A", 1<<20):            0,
	} {
		key, err := ParseSecret(in)
		if len(key) != want || (want == 0) != fault.Is(err, fault.Invalid) {
			t.Errorf("EVX-08 %.60q: %d bytes, %v", in, len(key), err)
		}
		if err != nil && len(in) > 10 && strings.Contains(err.Error(), in[6:]) {
			t.Errorf("the error holds the secret: %v", err)
		}
	}
}

func TestNewSecret(t *testing.T) {
	secret, key := NewSecret()
	parsed, err := ParseSecret(secret)
	if err != nil || !bytes.Equal(parsed, key) || len(key) != 32 {
		t.Errorf("got %d bytes, %v", len(key), err)
	}
	if other, _ := NewSecret(); other == secret {
		t.Error("two secrets are equal")
	}
	raw, key := NewRawSecret()
	if string(key) != raw || len(raw) != 43 {
		t.Errorf("raw secret of %d characters, key of %d", len(raw), len(key))
	}
}

func TestIdentity(t *testing.T) {
	text := GenerateIdentity()
	if _, err := ParseIdentity(text); err != nil {
		t.Error(err)
	}
	seed := base64.StdEncoding.EncodeToString(make([]byte, 32))
	if _, err := ParseIdentity("whsk_" + seed); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{
		"", "whsk_", seed, "whsec_" + seed, "whsk_" + seed + "AAAA", "whsk_%",
		"whsk_" + base64.StdEncoding.EncodeToString(make([]byte, 64)),
	} {
		if _, err := ParseIdentity(bad); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	var none *Identity
	if got := string(none.JWKS()); got != `{"keys":[]}` {
		t.Errorf("without an identity: %s", got)
	}
	// The key, its public part and its thumbprint are from RFC 8037 appendix A.
	seedOf8037, _ := base64.RawURLEncoding.DecodeString("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A")
	key, err := ParseIdentity("whsk_" + base64.StdEncoding.EncodeToString(seedOf8037))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",` +
		`"kid":"kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k","use":"sig","alg":"EdDSA"}]}`
	if got := string(NewIdentity(key).JWKS()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func FuzzParseSecret(f *testing.F) {
	s, _ := NewSecret()
	f.Add(s)
	f.Add("whsec_")
	f.Fuzz(func(t *testing.T, secret string) {
		key, err := ParseSecret(secret)
		if err != nil {
			return
		}
		if FormatSecret(key) != secret {
			t.Fatalf("%q can be written in two ways", secret)
		}
		if _, err := standardwebhooks.NewWebhook(secret); err != nil {
			t.Fatalf("the library refuses %q: %v", secret, err)
		}
	})
}
