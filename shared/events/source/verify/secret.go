package verify

import (
	"encoding/base64"
	"regexp"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Bounds of secrets.
const (
	// MaxSecrets is how many a source may have at once.
	MaxSecrets = 5
	// MinSecret is the shortest secret in bytes: 128 bits, if they are random.
	MinSecret = 16
	// MinPathSecret is the shortest secret of the scheme none, which is seen by all that log URLs
	// on the way: 24 characters have 128 bits even if they are hexadecimal in part.
	MinPathSecret = 24
	// MaxSecret is the longest.
	MaxSecret = 1024

	webhookPrefix = "whsec_"
	minWebhookKey = 24 // Standard Webhooks, "Signature scheme"
	maxWebhookKey = 64
)

var pathSecret = regexp.MustCompile(`^[A-Za-z0-9._~-]+$`) // RFC 3986, 2.3: never escaped

// checkSecrets refuses what no one should sign with. What it says repeats nothing of a secret.
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
			return fault.New(fault.Invalid, "secret %d of %d has %d bytes, at least %d are needed", i+1, len(secrets), len(s), least)
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

// webhookKey decodes a secret of Standard Webhooks.
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
