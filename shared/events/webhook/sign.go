package webhook

import (
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Sign returns the webhook-signature header. It contains one v1 signature (HMAC-SHA256 over id, Unix seconds and body) for each key,
// separated by spaces, so that a receiver can use the old or the new secret during a rotation. Without keys it is empty.
func Sign(keys [][]byte, id string, at time.Time, body []byte) string {
	if len(keys) == 1 {
		return sign(keys[0], id, at, body)
	}
	all := make([]string, len(keys))
	for i, key := range keys {
		all[i] = sign(key, id, at, body)
	}
	return strings.Join(all, " ")
}

func sign(key []byte, id string, at time.Time, body []byte) string {
	m := hmac.New(sha256.New, key)
	var scratch [256]byte
	m.Write(appendPreamble(scratch[:0], id, at.Unix()))
	m.Write(body)
	const version = "v1,"
	b := append(scratch[:0], version...)
	b = base64.StdEncoding.AppendEncode(b, m.Sum(scratch[128:128]))
	return string(b)
}

// signHub returns the X-Hub-Signature-256 header, which is an HMAC-SHA256 of the body only.
func signHub(secret, body []byte) string {
	m := hmac.New(sha256.New, secret)
	m.Write(body)
	return "sha256=" + hex.EncodeToString(m.Sum(nil))
}

// Identity adds an ed25519 signature (Standard Webhooks v1a) to each webhook. It proves that this server sent the
// webhook, because only the server has the private key, whereas everyone with the shared secret can make the other
// signatures. [Identity.JWKS] publishes the public key.
type Identity struct{ key ed25519.PrivateKey }

// NewIdentity returns an Identity that signs with key.
func NewIdentity(key ed25519.PrivateKey) *Identity { return &Identity{key} }

// Sign returns an ed25519 signature (v1a) over the same bytes as the function [Sign].
func (i *Identity) Sign(id string, at time.Time, body []byte) string {
	return "v1a," + base64.StdEncoding.EncodeToString(ed25519.Sign(i.key, append(appendPreamble(nil, id, at.Unix()), body...)))
}

// appendPreamble appends "ID.SECONDS.", which precedes the body in the signed bytes.
func appendPreamble(b []byte, id string, at int64) []byte {
	b = append(b, id...)
	b = append(b, '.')
	b = strconv.AppendInt(b, at, 10)
	return append(b, '.')
}

const secretPrefix = "whsec_"

// Lengths of a signing key in bytes (Standard Webhooks, "Signature scheme").
const (
	minKey = 24
	maxKey = 64
	newKey = 32
)

// NewSecret returns a new Standard Webhooks secret of 32 random bytes, as whsec_ text and as a key for [Sign].
func NewSecret() (secret string, key []byte) {
	key = make([]byte, newKey)
	_, _ = rand.Read(key) // never fails; the program ends instead
	return formatSecret(key), key
}

// formatSecret returns the whsec_ text of a key.
func formatSecret(key []byte) string {
	return secretPrefix + base64.StdEncoding.EncodeToString(key)
}

// NewRawSecret returns a new secret without a special format (SEP-1803 WebhookSecret "raw"). Its key is the text itself.
func NewRawSecret() (secret string, key []byte) {
	b := make([]byte, newKey)
	_, _ = rand.Read(b)
	secret = base64.RawURLEncoding.EncodeToString(b)
	return secret, []byte(secret)
}

// ParseSecret decodes a whsec_ secret of 24 to 64 bytes in padded base64. Its faults of kind Invalid contain no part of the secret.
func ParseSecret(secret string) ([]byte, error) {
	text, ok := strings.CutPrefix(secret, secretPrefix)
	if !ok {
		return nil, fault.New(fault.Invalid, "the secret does not start with %s", secretPrefix)
	}
	// Refuse line breaks, because Go's decoder skips them but the decoders of other libraries do not.
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

const identityPrefix = "whsk_"

// GenerateIdentity returns a new ed25519 key in the whsk_ format (Standard Webhooks), for [ParseIdentity].
func GenerateIdentity() string {
	seed := make([]byte, ed25519.SeedSize)
	_, _ = rand.Read(seed)
	return identityPrefix + base64.StdEncoding.EncodeToString(ed25519.NewKeyFromSeed(seed))
}

// ParseIdentity decodes a whsk_ key: the 64 bytes of an ed25519 private key or its 32-byte seed.
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

// Verify checks that one of a received webhook's signatures matches one of the secrets, and that the timestamp is within five
// minutes of now. A secret without whsec_ is used as the key itself. The error is of kind Unauthenticated, or Invalid for a
// malformed secret.
func Verify(h http.Header, body []byte, secrets ...string) error {
	for _, secret := range secrets {
		key := []byte(secret)
		if strings.HasPrefix(secret, secretPrefix) {
			var err error
			if key, err = ParseSecret(secret); err != nil {
				return err
			}
		}
		if len(key) == 0 {
			continue // ignore an empty key, because anyone can sign with it
		}
		wh, _ := standardwebhooks.NewWebhookRaw(key)
		err := wh.Verify(body, h)
		if err == nil {
			return nil
		}
		if !errors.Is(err, standardwebhooks.ErrNoMatchingSignature) {
			return fault.New(fault.Unauthenticated, "verify the webhook: %s", describeError(err))
		}
	}
	return fault.New(fault.Unauthenticated, "verify the webhook: no signature matches a known secret")
}

func describeError(err error) string {
	for _, known := range []error{
		standardwebhooks.ErrRequiredHeaders, standardwebhooks.ErrMessageTooOld, standardwebhooks.ErrMessageTooNew,
	} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return standardwebhooks.ErrInvalidHeaders.Error()
}

// MaxReceived is the largest body that a receiver should accept, in bytes: twice the size of the largest webhook.
const MaxReceived = 2 * MaxBody

// Challenge returns the challenge in a verified request, or false if the request is not a challenge. An event's data
// could look like a challenge, so Challenge also checks the webhook-id, which is covered by the signature.
func Challenge(h http.Header, body []byte) (string, bool) {
	if !strings.HasPrefix(h.Get(HeaderID), VerificationPrefix) {
		return "", false
	}
	var v verification
	if json.Unmarshal(body, &v) != nil || v.Type != "verification" || v.Challenge == "" {
		return "", false
	}
	return v.Challenge, true
}

// VerificationPrefix begins the webhook-id of each challenge (SEP-3415).
const VerificationPrefix = "msg_verification_"

// receiverPath is the path of a document in which an origin may declare which of its paths receive webhooks (SEP-3415, "Endpoint
// verification").
const receiverPath = "/.well-known/mcp-webhook-receiver.json"

// challengeTimeout limits each request of [Sender.Verify]. It is short because a client is waiting.
const challengeTimeout = 10 * time.Second

// verification is the body of a request with a challenge. Its fields are in the order in which they are sent.
type verification struct {
	Type      string `json:"type"`
	Challenge string `json:"challenge"`
}

// Verify checks that an endpoint wants deliveries (SEP-3415). It posts a new challenge, signed like a delivery, and expects to find it in
// the body of a 2xx response. If the endpoint does not echo the challenge, Verify also accepts an endpoint whose path, or a path above
// it, is listed in /.well-known/mcp-webhook-receiver.json at its origin. Callers must limit the number of calls (SRF-07).
//
// If the guard refuses the target, Verify returns a fault of kind Invalid. Other failures are faults of kind Unavailable with the data
// {"reason": category}, where category is one of the six in SEP-3415 (see [Category.ToPublished]). The data is missing if the failure was
// on our side.
func (s *Sender) Verify(ctx context.Context, target, subscriptionID string, keys [][]byte) error {
	u, err := s.guard.checkURL(target)
	if err != nil {
		return err
	}
	failure := s.challenge(ctx, target, subscriptionID, keys)
	if failure == nil {
		return nil
	}
	reached := failure.Category == ChallengeFailed || failure.Category == HTTP4xx || failure.Category == HTTP5xx
	if reached && s.isDeclared(ctx, u) {
		return nil
	}
	if failure.Category == Aborted || failure.Category == Internal {
		return fault.Wrap(fault.Unavailable, failure, "verify the target")
	}
	return &fault.Error{
		Kind: fault.Unavailable, Message: "the target could not be verified: " + string(failure.Category.ToPublished()),
		Data: map[string]any{"reason": string(failure.Category.ToPublished())}, Err: failure,
	}
}

func (s *Sender) challenge(ctx context.Context, target, subscriptionID string, keys [][]byte) *Failure {
	nonce := rand.Text() + rand.Text() // 2 × 130 random bits
	body, _ := json.Marshal(verification{Type: "verification", Challenge: nonce})
	a, failure := s.post(ctx, &Request{
		URL: target, ID: NewMessageID("verification"), SubscriptionID: subscriptionID,
		Body: body, Keys: keys, Timeout: challengeTimeout,
	}, make([]byte, 0, 512))
	if failure != nil {
		return failure
	}
	if c := ofStatus(a.status); c != "" {
		return &Failure{c, "the challenge was not accepted"}
	}
	if !echoes(a.body, nonce) {
		return &Failure{ChallengeFailed, "the challenge was not echoed"}
	}
	return nil
}

// echoes reports whether a response body repeats the challenge. It compares them in constant time.
func echoes(body []byte, nonce string) bool {
	var echo struct {
		Challenge string `json:"challenge"`
	}
	if len(body) > maxAnswer || json.Unmarshal(body, &echo) != nil {
		return false
	}
	return subtle.ConstantTimeCompare([]byte(echo.Challenge), []byte(nonce)) == 1
}

// isDeclared reports whether the target's origin lists the target's path, or a path above it, in [receiverPath].
func (s *Sender) isDeclared(ctx context.Context, target *url.URL) bool {
	u := &url.URL{Scheme: target.Scheme, Host: target.Host, Path: receiverPath}
	req := http.Request{
		Method: http.MethodGet, URL: u, Host: u.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"User-Agent": s.userAgent, "Accept": contentType},
	}
	a, failure := s.exchange(ctx, &req, challengeTimeout, make([]byte, 0, 512))
	if failure != nil || a.status != http.StatusOK || len(a.body) > maxAnswer {
		return false
	}
	var doc struct {
		Receivers []string `json:"receivers"`
	}
	if json.Unmarshal(a.body, &doc) != nil {
		return false
	}
	path := target.EscapedPath()
	// Refuse dot segments and encoded slashes, because the endpoint may resolve them to a path outside the declared prefix.
	lower := strings.ToLower(path)
	if strings.Contains(path, "/.") || strings.Contains(lower, "%2e") || strings.Contains(lower, "%2f") {
		return false
	}
	return slices.ContainsFunc(doc.Receivers, func(prefix string) bool {
		return strings.HasPrefix(prefix, "/") && (path == prefix || strings.HasPrefix(path, strings.TrimSuffix(prefix, "/")+"/"))
	})
}

// NewMessageID returns a new webhook-id, msg_KIND_RANDOM, for a message that has no event (SEP-3415).
func NewMessageID(kind string) string {
	b := make([]byte, 18)
	_, _ = rand.Read(b)
	return "msg_" + kind + "_" + base64.RawURLEncoding.EncodeToString(b)
}
