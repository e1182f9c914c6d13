package webhook

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

const identityPrefix = "whsk_"

// GenerateIdentity returns a new ed25519 key in the whsk_ format (Standard Webhooks), for [ParseIdentity].
func GenerateIdentity() string {
	seed := make([]byte, ed25519.SeedSize)
	_, _ = rand.Read(seed)
	return identityPrefix + base64.StdEncoding.EncodeToString(ed25519.NewKeyFromSeed(seed))
}

// ParseIdentity decodes a whsk_ key, which contains either the 64 bytes of an ed25519 private key or its 32-byte
// seed.
func ParseIdentity(text string) (ed25519.PrivateKey, error) {
	b, err := base64.StdEncoding.Strict().DecodeString(strings.TrimPrefix(text, identityPrefix))
	if err != nil || !strings.HasPrefix(text, identityPrefix) {
		return nil, fault.New(fault.Invalid, "the signing key is not %s and base64", identityPrefix)
	}
	switch len(b) {
	case ed25519.SeedSize:
		return ed25519.NewKeyFromSeed(b), nil
	case ed25519.PrivateKeySize:
		key := ed25519.NewKeyFromSeed(b[:ed25519.SeedSize])
		if !key.Equal(ed25519.PrivateKey(b)) {
			return nil, fault.New(fault.Invalid, "the signing key's halves do not belong together")
		}
		return key, nil
	}
	return nil, fault.New(fault.Invalid, "the signing key has %d bytes, 32 or 64 are allowed", len(b))
}

// jwk is an ed25519 public key (RFC 8037).
type jwk struct {
	KeyType   string `json:"kty"`
	Curve     string `json:"crv"`
	X         string `json:"x"`
	ID        string `json:"kid"`
	Use       string `json:"use"`
	Algorithm string `json:"alg"`
}

type jwks struct {
	Keys []jwk `json:"keys"`
}

// JWKS returns the document for /.well-known/mcp-webhook-jwks.json. It contains the public key with its RFC 7638
// thumbprint as kid, or no key if the identity is nil.
func (i *Identity) JWKS() []byte {
	doc := jwks{Keys: []jwk{}}
	if i != nil {
		x := base64.RawURLEncoding.EncodeToString(i.key.Public().(ed25519.PublicKey))
		print := sha256.Sum256([]byte(`{"crv":"Ed25519","kty":"OKP","x":"` + x + `"}`))
		doc.Keys = append(doc.Keys, jwk{
			KeyType: "OKP", Curve: "Ed25519", X: x, ID: base64.RawURLEncoding.EncodeToString(print[:]),
			Use: "sig", Algorithm: "EdDSA",
		})
	}
	b, _ := json.Marshal(doc) // only strings, so it cannot fail
	return b
}
