package webhook

import (
	"crypto/rand"
	"encoding/base64"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

const secretPrefix = "whsec_"

// Lengths of a signing key in bytes (Standard Webhooks, "Signature scheme").
const (
	minKey = 24
	maxKey = 64
	newKey = 32
)

// NewSecret returns a new Standard Webhooks secret of 32 random bytes: as whsec_ text for the receiver, and as the
// decoded key.
func NewSecret() (secret string, key []byte) {
	key = make([]byte, newKey)
	_, _ = rand.Read(key) // never fails; the program ends instead
	return FormatSecret(key), key
}

// FormatSecret returns the whsec_ text of a key.
func FormatSecret(key []byte) string {
	return secretPrefix + base64.StdEncoding.EncodeToString(key)
}

// NewRawSecret returns a new shared secret without a special format (SEP-1803 WebhookSecret "raw"). It has 43
// characters, and its key is the text itself.
func NewRawSecret() (secret string, key []byte) {
	b := make([]byte, newKey)
	_, _ = rand.Read(b)
	secret = base64.RawURLEncoding.EncodeToString(b)
	return secret, []byte(secret)
}

// ParseSecret decodes a whsec_ secret of 24 to 64 bytes in padded base64, which all Standard Webhooks libraries can
// read. Other secrets are a fault of kind Invalid, whose text contains no part of the secret.
func ParseSecret(secret string) ([]byte, error) {
	text, ok := strings.CutPrefix(secret, secretPrefix)
	if !ok {
		return nil, fault.New(fault.Invalid, "the secret does not start with %s", secretPrefix)
	}
	// Go's decoder skips line breaks, but the decoders of other libraries do not.
	if strings.ContainsAny(text, "\r\n") {
		return nil, fault.New(fault.Invalid, "the secret is not base64")
	}
	key, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil {
		return nil, fault.New(fault.Invalid, "the secret is not base64")
	}
	if len(key) < minKey || len(key) > maxKey {
		return nil, fault.New(fault.Invalid, "the secret has %d bytes, %d to %d are allowed", len(key), minKey, maxKey)
	}
	return key, nil
}
