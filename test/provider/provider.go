// Package provider signs requests to sources as those who send webhooks do, so that tests can speak as any of them. It
// is made from the providers' documentation and shares nothing with package verify, which it is to be held against.
package provider

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Scheme is a scheme of verification as its sender knows it.
type Scheme struct {
	// Name is its name in the configuration.
	Name string
	// Verify is the member "verify" of a source, in YAML.
	Verify string
	// Secret is the value of the environment variable Env, which Verify names.
	Secret, Env string
	// Timed reports whether the signature includes a time.
	Timed bool
	// ID is the pointer to the id of a delivery, which [Scheme.Headers] sets.
	ID string
	// Credential is the header with the signature or the token; empty for the scheme none.
	Credential string

	sign func(s Scheme, h http.Header, id string, body []byte, at time.Time)
}

// Schemes returns all schemes, each with its own secret.
func Schemes() []Scheme {
	return []Scheme{
		{
			Name: "github", Verify: "{scheme: github, secrets: ['env:E2E_GITHUB']}", Env: "E2E_GITHUB", Secret: "gh-3f0f5f0b2a6d4b6f9f6f",
			ID: "/headers/x-github-delivery", Credential: "X-Hub-Signature-256",
			sign: func(s Scheme, h http.Header, id string, body []byte, _ time.Time) {
				h.Set("X-GitHub-Event", "pull_request")
				h.Set("X-GitHub-Delivery", id)
				h.Set(s.Credential, "sha256="+mac(sha256.New, s.Secret, string(body)))
			},
		},
		{
			Name: "stripe", Verify: "{scheme: stripe, secrets: ['env:E2E_STRIPE']}", Env: "E2E_STRIPE", Secret: "whsec_5f1d2c3b4a59687786958473aa",
			ID: "/headers/x-id", Credential: "Stripe-Signature", Timed: true,
			sign: func(s Scheme, h http.Header, id string, body []byte, at time.Time) {
				h.Set("X-Id", id)
				t := seconds(at)
				h.Set(s.Credential, "t="+t+",v1="+mac(sha256.New, s.Secret, t+"."+string(body)))
			},
		},
		{
			Name: "slack", Verify: "{scheme: slack, secrets: ['env:E2E_SLACK']}", Env: "E2E_SLACK", Secret: "8f742231b10e8888abcd99yyyzzz85a5",
			ID: "/headers/x-id", Credential: "X-Slack-Signature", Timed: true,
			sign: func(s Scheme, h http.Header, id string, body []byte, at time.Time) {
				h.Set("X-Id", id)
				t := seconds(at)
				h.Set("X-Slack-Request-Timestamp", t)
				h.Set(s.Credential, "v0="+mac(sha256.New, s.Secret, "v0:"+t+":"+string(body)))
			},
		},
		{
			Name: "shopify", Verify: "{scheme: shopify, secrets: ['env:E2E_SHOPIFY']}", Env: "E2E_SHOPIFY", Secret: "shpss_0123456789abcdef0123",
			ID: "/headers/x-shopify-event-id", Credential: "X-Shopify-Hmac-SHA256",
			sign: func(s Scheme, h http.Header, id string, body []byte, _ time.Time) {
				h.Set("X-Shopify-Event-Id", id)
				raw, _ := hex.DecodeString(mac(sha256.New, s.Secret, string(body)))
				h.Set(s.Credential, base64.StdEncoding.EncodeToString(raw))
			},
		},
		{
			Name: "gitlab", Verify: "{scheme: gitlab, secrets: ['env:E2E_GITLAB']}", Env: "E2E_GITLAB", Secret: "glwt-71b2d4c9e0aa55f1",
			ID: "/headers/x-gitlab-event-uuid", Credential: "X-Gitlab-Token",
			sign: func(s Scheme, h http.Header, id string, _ []byte, _ time.Time) {
				h.Set("X-Gitlab-Event-UUID", id)
				h.Set(s.Credential, s.Secret)
			},
		},
		{
			Name: "standard-webhooks", Verify: "{scheme: standard-webhooks, secrets: ['env:E2E_STANDARD']}", Env: "E2E_STANDARD",
			Secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", ID: "/headers/webhook-id", Credential: "Webhook-Signature", Timed: true,
			sign: func(s Scheme, h http.Header, id string, body []byte, at time.Time) {
				key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(s.Secret, "whsec_"))
				raw, _ := hex.DecodeString(mac(sha256.New, string(key), id+"."+seconds(at)+"."+string(body)))
				h.Set("Webhook-Id", id)
				h.Set("Webhook-Timestamp", seconds(at))
				h.Set(s.Credential, "v1,"+base64.StdEncoding.EncodeToString(raw))
			},
		},
		{
			Name: "hmac", Verify: "{scheme: hmac, secrets: ['env:E2E_HMAC'], header: X-Sig, algorithm: sha1, prefix: 's=', signed: '{timestamp}/{body}', timestamp: X-Time, tolerance: 1m}",
			Env: "E2E_HMAC", Secret: "own-scheme-0f1e2d3c4b5a", ID: "/headers/x-id", Credential: "X-Sig", Timed: true,
			sign: func(s Scheme, h http.Header, id string, body []byte, at time.Time) {
				h.Set("X-Id", id)
				h.Set("X-Time", seconds(at))
				h.Set(s.Credential, "s="+mac(sha1.New, s.Secret, seconds(at)+"/"+string(body)))
			},
		},
		{
			Name: "none", Verify: "{scheme: none, secrets: ['env:E2E_NONE']}", Env: "E2E_NONE", Secret: "0123456789abcdef0123456789abcdef", ID: "/headers/x-id",
			sign: func(_ Scheme, h http.Header, id string, _ []byte, _ time.Time) { h.Set("X-Id", id) },
		},
	}
}

// Path returns the path at which a source accepts requests of the scheme.
func (s Scheme) Path(source string) string {
	if s.Credential == "" {
		return "/sources/" + source + "/" + s.Secret
	}
	return "/sources/" + source
}

// Headers returns the headers of a delivery with a JSON body, signed at a time.
func (s Scheme) Headers(id string, body []byte, at time.Time) http.Header {
	h := http.Header{"Content-Type": {"application/json"}}
	s.sign(s, h, id, body, at)
	return h
}

// Setting returns the secret's environment variable as NAME=VALUE.
func (s Scheme) Setting() string { return s.Env + "=" + s.Secret }

// Source returns the configuration of a source with the scheme's name. Its deliveries become events of one type, which has no
// variables and the body as its data.
func (s Scheme) Source(event string) string {
	return fmt.Sprintf("  - {name: %s, verify: %s, events: [{name: %s, id: %s, data: /body}]}\n", s.Name, s.Verify, event, s.ID)
}

func mac(of func() hash.Hash, key, text string) string {
	h := hmac.New(of, []byte(key))
	h.Write([]byte(text))
	return hex.EncodeToString(h.Sum(nil))
}

func seconds(at time.Time) string { return strconv.FormatInt(at.Unix(), 10) }
