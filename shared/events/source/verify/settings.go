package verify

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Names of schemes.
const (
	GitHub           = "github"
	Stripe           = "stripe"
	Slack            = "slack"
	Shopify          = "shopify"
	GitLab           = "gitlab"
	StandardWebhooks = "standard-webhooks"
	HMAC             = "hmac"
	None             = "none"
)

// Limits and defaults of settings.
const (
	defaultTolerance = 5 * time.Minute
	MinTolerance     = time.Second
	MaxTolerance     = 24 * time.Hour

	maxHeaderName = 100
	maxPrefix     = 64
)

// Settings configure how a source verifies its senders. The zero value of a setting means its default.
type Settings struct {
	// Scheme is one of the names above. It has no default.
	Scheme string
	// Header, for the scheme hmac, is the header with the signatures, which are separated by commas or spaces.
	Header string
	// Algorithm, for hmac, is sha256 (the default), sha512 or sha1.
	Algorithm string
	// Encoding, for hmac, is hex (the default) or base64.
	Encoding string
	// Prefix, for hmac, precedes each signature, e.g. "sha256=". Signatures without it are ignored.
	Prefix string
	// Signed, for hmac, is the text that the provider signs, with the placeholders {body}, {timestamp} and
	// {header:NAME}. The default is {body}.
	Signed string
	// Timestamp, for hmac, is the header whose value replaces {timestamp}. The value is in RFC 3339, or seconds or
	// milliseconds since 1970.
	Timestamp string
	// Tolerance is the maximum difference between the signed time and now, in either direction, for schemes that sign
	// a time. The default is [defaultTolerance].
	Tolerance time.Duration
}

// Fault describes a problem with one setting.
type Fault struct {
	// Setting is the name of the setting in the configuration.
	Setting string `json:"setting"`
	Message string `json:"message"`
}

var (
	token      = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$") // RFC 9110, 5.6.2
	printable  = regexp.MustCompile(`^[!-~]*$`)
	algorithms = []string{"sha1", "sha256", "sha512"}
	encodings  = []string{"base64", "hex"}
)

// Schemes returns the names of all schemes.
func Schemes() []string { return slices.Sorted(maps.Keys(schemes)) }

// Check returns all problems as one fault of kind Invalid, whose data is a []Fault.
func (s Settings) Check() error {
	var faults []Fault
	fail := func(setting, format string, args ...any) {
		faults = append(faults, Fault{setting, fmt.Sprintf(format, args...)})
	}
	_, known := schemes[s.Scheme]
	switch {
	case !known:
		fail("scheme", "%.64q is not a scheme (allowed: %s)", s.Scheme, strings.Join(Schemes(), ", "))
	case s.Scheme == HMAC:
		s.checkHMAC(fail)
	default:
		for _, o := range s.ofHMAC() {
			if o.value != "" {
				fail(o.setting, "is a setting of the scheme hmac only, not of %s", s.Scheme)
			}
		}
	}
	switch {
	case s.Tolerance == 0:
	case s.Tolerance < MinTolerance || s.Tolerance > MaxTolerance:
		fail("tolerance", "%s is not allowed (allowed: %s to %s)", s.Tolerance, MinTolerance, MaxTolerance)
	case known && !s.signsTime():
		fail("tolerance", "the scheme %s signs no time here, so there is nothing to tolerate", s.Scheme)
	}
	if len(faults) == 0 {
		return nil
	}
	texts := make([]string, len(faults))
	for i, f := range faults {
		texts[i] = f.Setting + ": " + f.Message
	}
	return fault.New(fault.Invalid, "%s", strings.Join(texts, "; ")).With(faults)
}

type option struct{ setting, value string }

func (s Settings) ofHMAC() []option {
	return []option{
		{"header", s.Header},
		{"algorithm", s.Algorithm},
		{"encoding", s.Encoding},
		{"prefix", s.Prefix},
		{"signed", s.Signed},
		{"timestamp", s.Timestamp},
	}
}

func (s Settings) checkHMAC(fail func(setting, format string, args ...any)) {
	if s.Header == "" {
		fail("header", "is needed: the name of the header with the signature")
	} else if !isHeaderName(s.Header) {
		fail("header", "%.64q is not the name of a header", s.Header)
	}
	if s.Timestamp != "" && !isHeaderName(s.Timestamp) {
		fail("timestamp", "%.64q is not the name of a header", s.Timestamp)
	} else if s.Timestamp != "" && strings.EqualFold(s.Timestamp, s.Header) {
		fail("timestamp", "%q is the header with the signature; write the name of that with the time", s.Timestamp)
	}
	for _, o := range []struct {
		option
		allowed []string
	}{{option{"algorithm", s.Algorithm}, algorithms}, {option{"encoding", s.Encoding}, encodings}} {
		if o.value != "" && !slices.Contains(o.allowed, o.value) {
			fail(o.setting, "%.64q is not allowed (allowed: %s)", o.value, strings.Join(o.allowed, ", "))
		}
	}
	if !printable.MatchString(s.Prefix) || len(s.Prefix) > maxPrefix {
		fail("prefix", "must be at most %d printable ASCII characters without spaces", maxPrefix)
	}
	signed, err := parseTemplate(s.complete().Signed)
	switch {
	case err != nil:
		fail("signed", "%s", err)
	case s.Timestamp != "" && !signed.has(partTimestamp):
		fail("signed", "lacks {timestamp}; anyone can change a time that is not signed")
	case s.Timestamp == "" && signed.has(partTimestamp):
		fail("timestamp", "is needed: the name of the header that {timestamp} stands for")
	}
	for _, p := range signed {
		if p.kind == partHeader && strings.EqualFold(p.text, s.Header) {
			fail("signed", "{header:%s} is the header with the signature, which cannot sign itself; write the name of another", p.text)
		}
	}
}

func isHeaderName(name string) bool { return len(name) <= maxHeaderName && token.MatchString(name) }

// complete fills in the defaults.
func (s Settings) complete() Settings {
	s.Tolerance = cmp.Or(s.Tolerance, defaultTolerance)
	if s.Scheme == HMAC {
		s.Algorithm = cmp.Or(s.Algorithm, "sha256")
		s.Encoding = cmp.Or(s.Encoding, "hex")
		s.Signed = cmp.Or(s.Signed, "{body}")
	}
	return s
}

// signsTime reports whether the scheme's signature covers the time, so that old requests can be refused. Otherwise an
// attacker who recorded a request can replay it at any time. With the scheme gitlab only signing tokens cover the
// time.
func (s Settings) signsTime() bool {
	return schemes[s.Scheme].timed || s.Scheme == HMAC && s.Timestamp != ""
}

// Headers returns the names, in lower case, of the headers with credentials or signatures. They are left out of
// documents.
func (s Settings) Headers() []string {
	if s.Scheme == HMAC {
		return []string{strings.ToLower(s.Header)}
	}
	return slices.Clone(schemes[s.Scheme].headers)
}

// Limits for secrets.
const (
	// MaxSecrets is the maximum number of secrets of a source.
	MaxSecrets = 5
	// minSecret is the minimum length of a secret in bytes. 16 random bytes are 128 bits.
	minSecret = 16
	// minPathSecret is the minimum length of a secret for the scheme none. Anything on the way that logs URLs can see
	// it, and people often use hexadecimal: 24 characters have 128 bits even if some of them are hexadecimal digits.
	minPathSecret = 24
	// maxSecret is the maximum length of a secret in bytes.
	maxSecret = 1024

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
	least := minSecret
	if scheme == None {
		least = minPathSecret
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
		case len(s) > maxSecret:
			return fault.New(fault.Invalid, "secret %d of %d has %d bytes, %d are allowed", i+1, len(secrets), len(s), maxSecret)
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
