package verify

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// The schemes.
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

// Bounds of settings.
const (
	DefaultTolerance = 5 * time.Minute
	MinTolerance     = time.Second
	MaxTolerance     = 24 * time.Hour

	maxHeaderName = 100
	maxPrefix     = 64
)

// Settings are how a source is verified, as its configuration says. The zero value of
// a setting is its default.
type Settings struct {
	// Scheme is one of the constants. There is no default.
	Scheme string
	// Header, for the scheme hmac, holds the signatures, separated by commas or spaces.
	Header string
	// Algorithm, for hmac, is sha256 (the default), sha512 or sha1.
	Algorithm string
	// Encoding, for hmac, is hex (the default) or base64.
	Encoding string
	// Prefix, for hmac, stands before each signature, as "sha256=". Signatures without it are ignored.
	Prefix string
	// Signed, for hmac, is what is signed: text with {body}, {timestamp} and {header:NAME}
	// in it. The default is {body}.
	Signed string
	// Timestamp, for hmac, is the header that {timestamp} stands for: RFC 3339, or
	// seconds or milliseconds since 1970.
	Timestamp string
	// Tolerance is how far the time of a signature may be from now, in both directions, for
	// schemes that sign it. The default is [DefaultTolerance].
	Tolerance time.Duration
}

// Fault is one thing that is wrong with settings.
type Fault struct {
	// Setting is its name in the configuration.
	Setting string `json:"setting"`
	Message string `json:"message"`
}

var (
	token      = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$") // RFC 9110, 5.6.2
	printable  = regexp.MustCompile(`^[!-~]*$`)
	algorithms = []string{"sha1", "sha256", "sha512"}
	encodings  = []string{"base64", "hex"}
)

// Schemes are the names of all schemes.
func Schemes() []string { return slices.Sorted(maps.Keys(schemes)) }

// Check reports all that is wrong as one fault of kind Invalid, whose data is a []Fault.
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
		fail("signed", "lacks {timestamp}; anybody could change a time that is not signed")
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
	s.Tolerance = cmp.Or(s.Tolerance, DefaultTolerance)
	if s.Scheme == HMAC {
		s.Algorithm = cmp.Or(s.Algorithm, "sha256")
		s.Encoding = cmp.Or(s.Encoding, "hex")
		s.Signed = cmp.Or(s.Signed, "{body}")
	}
	return s
}

// signsTime reports whether a request may be too old: its scheme signs when it was sent. Where it does not, who recorded
// a request can send it again at any time. For gitlab this is so with a signing token only.
func (s Settings) signsTime() bool {
	return schemes[s.Scheme].timed || s.Scheme == HMAC && s.Timestamp != ""
}

// Headers are the names, in lower case, of the headers that carry credentials or signatures. They
// never become part of a document.
func (s Settings) Headers() []string {
	if s.Scheme == HMAC {
		return []string{strings.ToLower(s.Header)}
	}
	return slices.Clone(schemes[s.Scheme].headers)
}
