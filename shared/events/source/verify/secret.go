package verify

import (
	"encoding/base64"
	"regexp"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Limits for secrets.
const (
	// MaxSecrets is the maximum number of secrets of a source.
	MaxSecrets = 5
	// MinSecret is the minimum length of a secret in bytes. 16 random bytes are 128 bits.
	MinSecret = 16
	// MinPathSecret is the minimum length of a secret for the scheme none. Anything on the way that logs URLs can see
	// it, and people often use hexadecimal: 24 characters have 128 bits even if some of them are hexadecimal digits.
	MinPathSecret = 24
	// MaxSecret is the maximum length of a secret in bytes.
	MaxSecret = 1024

	webhookPrefix = "whsec_"
	minWebhookKey = 24 // Standard Webhooks, "Signature scheme"
	maxWebhookKey = 64
)

var pathSecret = regexp.MustCompile(`^[A-Za-z0-9._~-]+$`) // RFC 3986, 2.3: these characters are never escaped

// checkSecrets refuses secrets that are too weak, or that look like mistakes. Its errors do not repeat any part of a
// secret.
func checkSecrets(scheme string, secrets []string) error {
	if len(secrets) == 0 || len(secrets) > MaxSecrets {
		return fault.New(fault.Invalid, "%d secrets are not allowed (allowed: 1 to %d)", len(secrets), MaxSecrets)
	}
	least := MinSecret
	if scheme == None {
		least = MinPathSecret
	}
	for i, s := range secrets {
		var why string
		switch {
		case s == "":
			why = "is empty"
		case len(strings.TrimSpace(s)) != len(s):
			why = "begins or ends with white space; was a line break stored with it?"
		case len(s) < least:
			return fault.New(fault.Invalid, "secret %d of %d has %d bytes; at least %d are needed", i+1, len(secrets), len(s), least)
		case len(s) > MaxSecret:
			return fault.New(fault.Invalid, "secret %d of %d has %d bytes, %d are allowed", i+1, len(secrets), len(s), MaxSecret)
		case scheme == None && !pathSecret.MatchString(s):
			why = "has characters that a path would escape (allowed: letters, digits, - . _ ~)"
		default:
			continue
		}
		return fault.New(fault.Invalid, "secret %d of %d %s", i+1, len(secrets), why)
	}
	return nil
}

func isWebhookSecret(secret string) bool { return strings.HasPrefix(secret, webhookPrefix) }

// webhookKey decodes a secret in the format of Standard Webhooks.
func webhookKey(secret string) ([]byte, error) {
	text, ok := strings.CutPrefix(secret, webhookPrefix)
	if !ok {
		return nil, fault.New(fault.Invalid, "does not begin with %s", webhookPrefix)
	}
	key, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || strings.ContainsAny(text, "\r\n") {
		return nil, fault.New(fault.Invalid, "is not base64 after %s", webhookPrefix)
	}
	if len(key) < minWebhookKey || len(key) > maxWebhookKey {
		return nil, fault.New(fault.Invalid, "has %d bytes, %d to %d are allowed", len(key), minWebhookKey, maxWebhookKey)
	}
	return key, nil
}
