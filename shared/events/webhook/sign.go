package webhook

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strconv"
	"strings"
	"time"
)

// Sign returns the webhook-signature header. It contains one v1 signature (HMAC-SHA256 over id, Unix seconds and
// body) for each key, separated by spaces, so that a receiver can use either secret during a rotation. Without keys
// it is empty.
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
	m.Write(preamble(scratch[:0], id, at.Unix()))
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

// Identity adds ed25519 signatures (Standard Webhooks v1a) to those with shared secrets. They prove that the server
// sent the webhook, rather than someone else who has the secret. The public key is served as a JWKS.
type Identity struct{ key ed25519.PrivateKey }

// NewIdentity returns an Identity that signs with key.
func NewIdentity(key ed25519.PrivateKey) *Identity { return &Identity{key} }

// Sign returns a v1a signature over the same bytes as [Sign].
func (i *Identity) Sign(id string, at time.Time, body []byte) string {
	return "v1a," + base64.StdEncoding.EncodeToString(ed25519.Sign(i.key, append(preamble(nil, id, at.Unix()), body...)))
}

// preamble appends the part of the signed bytes that precedes the body.
func preamble(b []byte, id string, at int64) []byte {
	b = append(b, id...)
	b = append(b, '.')
	b = strconv.AppendInt(b, at, 10)
	return append(b, '.')
}
