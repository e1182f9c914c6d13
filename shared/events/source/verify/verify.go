// Package verify authenticates the sender of a request: it checks the signature or secret that a webhook provider puts into each request.
// The request is not used for anything else before this check (SRC-02).
//
// [Settings] select a scheme: the scheme of a provider, for example [GitHub], or the general scheme hmac with further settings. [New]
// combines the scheme with the source's secrets. There may be several secrets, so that one can be replaced while requests with the old
// one still arrive. Most schemes only find the signatures, the time and the signed text in a request. The function mac.check then
// verifies the signatures in constant time.
//
// Package source turns verified requests into events.
package verify

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Request is the part of an HTTP request that is needed to verify it.
type Request struct {
	Header http.Header
	// Body is the raw body, which most schemes sign.
	Body []byte
	// Key is the segment of the path after the source's name. Only the scheme none uses it, as a secret that replaces a signature.
	Key string
}

// Reasons for refusing a request. They are constants, so they cannot reveal anything about a secret.
const (
	noSignature    = "the signature is missing"
	manySignatures = "there are too many signatures"
	headerTwice    = "a header that is needed to verify the request occurs twice"
	headerMissing  = "a header that is needed to verify the request is missing"
	malformed      = "no signature has the format of the scheme"
	noTime         = "the time of the signature is missing or invalid"
	NoMatch        = "no signature or key matches a secret"
	tooOld         = "the signature is too old"
	tooNew         = "the signature is from the future"
)

// Verifier verifies requests with one scheme. It is safe for concurrent use.
type Verifier struct {
	name      string
	checks    []check // one for each secret
	tolerance time.Duration
}

// check verifies a request with one secret. It returns a refusal if the request does not match the secret.
type check func(Request) (proof, *refusal)

// proof has the parts of a verified request that its signature covers, so that an attacker cannot change them.
type proof struct {
	at     time.Time // the signed time, or zero if the scheme does not sign the time
	signed string    // a hash of the signed text, or "" if the scheme signs nothing
}

// New returns a verifier for the scheme in s. A request must match one of the secrets.
func New(s Settings, secrets []string) (*Verifier, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	s = s.complete()
	if err := checkSecrets(s.Scheme, secrets); err != nil {
		return nil, err
	}
	v := &Verifier{name: s.Scheme, tolerance: s.Tolerance}
	for i, secret := range secrets {
		c, err := schemes[s.Scheme].bind(s, secret)
		if err != nil {
			return nil, fault.Wrap(fault.Invalid, err, "secret %d of %d", i+1, len(secrets))
		}
		v.checks = append(v.checks, c)
	}
	return v, nil
}

// Verify checks that r was sent by someone with one of the secrets, and that the signed time is within the tolerance of now. Otherwise it
// returns a fault of kind Unauthenticated with a constant reason, for example [NoMatch].
//
// The result signed is a hash of the signed text. It is the same for all replays of a request, and does not depend on the secret. It is
// "" if the scheme has no signature.
//
// Verify tries every secret even after a match, so that its duration does not reveal which one matched.
func (v *Verifier) Verify(r Request, now time.Time) (signed string, err error) {
	var refused *refusal
	verified := false
	for _, c := range v.checks {
		p, why := c(r)
		if why == nil {
			why = v.checkTime(p.at, now)
		}
		if why == nil {
			verified, signed = true, p.signed
		} else if refused == nil || why.rank > refused.rank {
			refused = why
		}
	}
	if verified {
		return signed, nil
	}
	return "", fault.New(fault.Unauthenticated, "%s", refused.reason)
}

// checkTime checks that a signed time is within the tolerance. A zero time, which means that no time is signed, passes.
func (v *Verifier) checkTime(at, now time.Time) *refusal {
	switch {
	case at.IsZero():
		return nil
	case at.Before(now.Add(-v.tolerance)):
		return &refusal{tooOld, rankTime}
	case at.After(now.Add(v.tolerance)): // not now.Sub(at), which cannot represent very distant times
		return &refusal{tooNew, rankTime}
	}
	return nil
}

// refusal says why a request does not match one secret. If no secret matches, Verify reports the refusal with the highest rank, because
// that secret came closest. For example, "too old" after a matching signature explains more than a malformed secret.
type refusal struct {
	reason string
	rank   int
}

const (
	rankForm = iota
	rankMatch
	rankTime
)

func refuse(reason string) *refusal {
	if reason == NoMatch {
		return &refusal{reason, rankMatch}
	}
	return &refusal{reason, rankForm}
}

// String returns the scheme, so that logging a Verifier cannot reveal a secret.
func (v *Verifier) String() string { return "verify by " + v.name }

// GoString returns the scheme too, because logging with %#v calls it instead of String.
func (v *Verifier) GoString() string { return v.String() }

// maxChallenge is the maximum length of a challenge. The challenges of Slack have about fifty characters.
const maxChallenge = 1000

// Challenge returns the challenge in a url_verification request, which Slack sends when someone enters the server's URL in Slack. The
// parameter body is the decoded JSON of a verified request. Challenge returns false for any other body.
func Challenge(body any) (string, bool) {
	object, _ := body.(map[string]any)
	if object["type"] != "url_verification" {
		return "", false
	}
	challenge, ok := object["challenge"].(string)
	if !ok || challenge == "" || len(challenge) > maxChallenge {
		return "", false
	}
	return challenge, true
}

// scheme describes how a provider authenticates its requests.
type scheme struct {
	headers []string // with credentials or signatures, in lower case
	timed   bool     // whether the signature covers a time
	bind    func(s Settings, secret string) (check, error)
}

// schemes holds all schemes. The scheme hmac has no headers here, because its header is a setting.
var schemes = map[string]scheme{
	// GitHub also sends x-hub-signature, with SHA-1. We ignore it.
	GitHub: {[]string{"x-hub-signature", "x-hub-signature-256"}, false, newPreset(Settings{
		Header: "X-Hub-Signature-256", Prefix: "sha256=",
	})},
	Slack: {[]string{"x-slack-signature"}, true, newPreset(Settings{
		Header: "X-Slack-Signature", Prefix: "v0=", Signed: "v0:{timestamp}:{body}", Timestamp: "X-Slack-Request-Timestamp",
	})},
	Shopify: {[]string{"x-shopify-hmac-sha256"}, false, newPreset(Settings{
		Header: "X-Shopify-Hmac-Sha256", Encoding: "base64",
	})},
	Stripe:           {[]string{"stripe-signature"}, true, bindStripe},
	GitLab:           {[]string{"x-gitlab-token", standardwebhooks.HeaderWebhookSignature}, true, bindGitLab},
	StandardWebhooks: {[]string{standardwebhooks.HeaderWebhookSignature}, true, bindStandardWebhooks},
	HMAC:             {nil, false, bindHMAC},
	None:             {nil, false, bindNone},
}

// newPreset returns a function for the field bind of a scheme that works like hmac, with fixed settings.
func newPreset(settings Settings) func(Settings, string) (check, error) {
	settings.Scheme = HMAC
	return func(_ Settings, secret string) (check, error) { return bindHMAC(settings, secret) }
}

// bindNone returns the check for the scheme "none", in which requests are not signed. The check compares the last segment of the request's
// URL path with the secret.
func bindNone(_ Settings, secret string) (check, error) {
	same := equalTo(secret)
	return func(r Request) (p proof, no *refusal) {
		if !same(r.Key) {
			no = refuse(NoMatch)
		}
		return p, no
	}, nil
}

// bindGitLab returns the check for requests of GitLab. It supports signing tokens (whsec_), which follow Standard Webhooks, and secret
// tokens, which GitLab sends in a header.
func bindGitLab(s Settings, secret string) (check, error) {
	if isWebhookSecret(secret) {
		return bindStandardWebhooks(s, secret)
	}
	same := equalTo(secret)
	return func(r Request) (p proof, no *refusal) {
		token, no := singleHeader(r.Header, "X-Gitlab-Token", noSignature)
		if no == nil && !same(token) {
			no = refuse(NoMatch)
		}
		return p, no
	}, nil
}

// equalTo returns a function that compares a string with the secret in constant time. It compares hashes to hide the secret's length.
func equalTo(secret string) func(string) bool {
	want := sha256.Sum256([]byte(secret))
	return func(s string) bool {
		got := sha256.Sum256([]byte(s))
		return hmac.Equal(got[:], want[:])
	}
}

// bindStandardWebhooks returns the check of signatures of Standard Webhooks. It uses the specification's own library, but checks the time
// itself, because the library uses its own clock and a fixed tolerance of five minutes.
func bindStandardWebhooks(_ Settings, secret string) (check, error) {
	key, err := webhookKey(secret)
	if err != nil {
		return nil, err
	}
	wh, err := standardwebhooks.NewWebhookRaw(key)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "make a verifier of Standard Webhooks")
	}
	return func(r Request) (p proof, no *refusal) {
		for _, name := range []string{
			standardwebhooks.HeaderWebhookSignature, standardwebhooks.HeaderWebhookID, standardwebhooks.HeaderWebhookTimestamp,
		} {
			missing := headerMissing
			if name == standardwebhooks.HeaderWebhookSignature {
				missing = noSignature
			}
			if _, no := singleHeader(r.Header, name, missing); no != nil {
				return p, no
			}
		}
		timestamp := r.Header.Get(standardwebhooks.HeaderWebhookTimestamp)
		if p.at, no = parseTime(timestamp); no != nil {
			return p, no
		}
		if wh.VerifyIgnoringTimestamp(r.Body, r.Header) != nil {
			return p, refuse(NoMatch)
		}
		plain := sha256.New() // the text that the library signs; it parses the time as a number, so leading zeros do not count
		fmt.Fprintf(plain, "%s.%s.%s", r.Header.Get(standardwebhooks.HeaderWebhookID), strings.TrimLeft(timestamp, "0"), r.Body)
		p.signed = sumOf(plain)
		return p, nil
	}, nil
}

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
	// Scheme is the name of a scheme, for example [GitHub]. It has no default.
	Scheme string
	// Header, for the scheme hmac, is the header with the signatures, which are separated by commas or spaces.
	Header string
	// Algorithm, for hmac, is sha256 (the default), sha512 or sha1.
	Algorithm string
	// Encoding, for hmac, is hex (the default) or base64.
	Encoding string
	// Prefix, for hmac, precedes each signature, for example "sha256=". Signatures without it are ignored.
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
	Setting string `json:"setting"` // its name in the configuration
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

// Check returns all problems of the settings as one fault of kind Invalid, whose data is a []Fault.
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

// complete returns the settings with the defaults in place of zero values.
func (s Settings) complete() Settings {
	s.Tolerance = cmp.Or(s.Tolerance, defaultTolerance)
	if s.Scheme == HMAC {
		s.Algorithm = cmp.Or(s.Algorithm, "sha256")
		s.Encoding = cmp.Or(s.Encoding, "hex")
		s.Signed = cmp.Or(s.Signed, "{body}")
	}
	return s
}

// signsTime reports whether the signature covers a time. If not, recorded requests can be replayed at any time.
func (s Settings) signsTime() bool {
	return schemes[s.Scheme].timed || s.Scheme == HMAC && s.Timestamp != ""
}

// Headers returns the lower-case names of the headers with credentials or signatures. These headers are left out of the document from
// which an event is made.
func (s Settings) Headers() []string {
	if s.Scheme == HMAC {
		return []string{strings.ToLower(s.Header)}
	}
	return slices.Clone(schemes[s.Scheme].headers)
}

// Limits for secrets.
const (
	MaxSecrets = 5  // the maximum number of secrets of a source
	minSecret  = 16 // bytes
	// minPathSecret is the minimum length of a secret in the URL's path (scheme none). Such secrets are often hexadecimal, and 24
	// hexadecimal digits have 96 bits.
	minPathSecret = 24
	maxSecret     = 1024

	webhookPrefix = "whsec_"
	minWebhookKey = 24 // Standard Webhooks, "Signature scheme"
	maxWebhookKey = 64
)

var pathSecret = regexp.MustCompile(`^[A-Za-z0-9._~-]+$`) // RFC 3986, 2.3: these characters are never escaped

// checkSecrets refuses secrets that are weak or look like mistakes. Its errors do not repeat any part of the secrets.
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
