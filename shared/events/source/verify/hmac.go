package verify

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
)

// maxSignatures limits the signatures in one request. Providers send one for each of their active secrets.
const maxSignatures = 10

var hashes = map[string]func() hash.Hash{
	"": sha256.New, "sha1": sha1.New, "sha256": sha256.New, "sha512": sha512.New,
}

var decoders = map[string]func(string) ([]byte, error){
	"": hex.DecodeString, "hex": hex.DecodeString, "base64": base64.StdEncoding.Strict().DecodeString,
}

// mac verifies message authentication codes.
type mac struct {
	hash   func() hash.Hash
	decode func(string) ([]byte, error)
	key    []byte
	signed template
}

// check verifies that one of the signatures matches the signed text of r, and returns a hash of that text. It
// compares all signatures.
func (m mac) check(r Request, timestamp string, signatures []string) (signed string, no *refusal) {
	if len(signatures) > maxSignatures {
		return "", refuse(ManySignatures)
	}
	h, plain := hmac.New(m.hash, m.key), sha256.New()
	if no := m.signed.write(io.MultiWriter(h, plain), r, timestamp); no != nil {
		return "", no
	}
	want := h.Sum(nil)
	wellFormed, same := false, false
	for _, s := range signatures {
		got, err := m.decode(s)
		wellFormed = wellFormed || err == nil && len(got) == len(want)
		// This may depend on the length, because the length of a digest is not secret.
		same = hmac.Equal(got, want) || same
	}
	switch {
	case same:
		return sumOf(plain), nil
	case wellFormed:
		return "", refuse(NoMatch)
	}
	return "", refuse(Malformed)
}

func sumOf(h hash.Hash) string { return base64.RawURLEncoding.EncodeToString(h.Sum(nil)) }

func bindHMAC(s Settings, secret string) (check, error) {
	s = s.complete()
	signed, err := parseTemplate(s.Signed)
	if err != nil {
		return nil, err
	}
	m := mac{hashes[s.Algorithm], decoders[s.Encoding], []byte(secret), signed}
	return func(r Request) (p proof, no *refusal) {
		header, no := one(r.Header, s.Header, NoSignature)
		if no != nil {
			return p, no
		}
		var timestamp string
		if s.Timestamp != "" {
			if timestamp, no = one(r.Header, s.Timestamp, NoTime); no != nil {
				return p, no
			}
			if p.at, no = parseTime(timestamp); no != nil {
				return p, no
			}
		}
		signatures, no := split(header, s.Prefix)
		if no != nil {
			return p, no
		}
		p.signed, no = m.check(r, timestamp, signatures)
		return p, no
	}, nil
}

// split returns the signatures in a header. They are separated by commas or spaces, which an encoded signature cannot
// contain. If the prefix contains a comma, only spaces separate.
func split(header, prefix string) (out []string, no *refusal) {
	parts := strings.FieldsFunc(header, func(r rune) bool {
		return r == ' ' || r == '\t' || r == ',' && !strings.Contains(prefix, ",")
	})
	for _, part := range parts {
		if signature, ok := strings.CutPrefix(part, prefix); ok {
			out = append(out, signature)
		}
	}
	if len(out) == 0 {
		return nil, refuse(Malformed)
	}
	return out, nil
}

// bindStripe verifies the header Stripe-Signature, which holds a time and signatures: t=…,v1=…,v1=…,v0=…. Only v1 is
// used; v0 is the signature of test events.
func bindStripe(_ Settings, secret string) (check, error) {
	signed, err := parseTemplate("{timestamp}.{body}")
	if err != nil {
		return nil, err
	}
	m := mac{sha256.New, hex.DecodeString, []byte(secret), signed}
	return func(r Request) (p proof, no *refusal) {
		header, no := one(r.Header, "Stripe-Signature", NoSignature)
		if no != nil {
			return p, no
		}
		timestamp, signatures, no := splitStripe(header)
		if no != nil {
			return p, no
		}
		if p.at, no = parseTime(timestamp); no != nil {
			return p, no
		}
		p.signed, no = m.check(r, timestamp, signatures)
		return p, no
	}, nil
}

func splitStripe(header string) (timestamp string, signatures []string, no *refusal) {
	for part := range strings.SplitSeq(header, ",") {
		switch name, value, _ := strings.Cut(strings.TrimSpace(part), "="); {
		case name == "t" && timestamp != "":
			return "", nil, refuse(NoTime) // ambiguous: either could be the signed one
		case name == "t":
			timestamp = value
		case name == "v1":
			signatures = append(signatures, value)
		}
	}
	if timestamp == "" {
		return "", nil, refuse(NoTime)
	}
	if len(signatures) == 0 {
		return "", nil, refuse(Malformed)
	}
	return timestamp, signatures, nil
}

// one returns the value of a header that must occur exactly once.
func one(h http.Header, name, missing string) (string, *refusal) {
	switch values := h.Values(name); {
	case len(values) > 1:
		return "", refuse(HeaderTwice)
	case len(values) == 0 || values[0] == "":
		return "", refuse(missing)
	default:
		return values[0], nil
	}
}

// parseTime parses a time in RFC 3339, or as digits: seconds or milliseconds since 1970.
func parseTime(text string) (time.Time, *refusal) {
	const lastSecond = 99_999_999_999 // in the year 5138; as milliseconds it is in 1973
	n, err := strconv.ParseUint(text, 10, 63)
	if err == nil && n > lastSecond {
		return time.UnixMilli(int64(n)), nil
	}
	if err == nil {
		return time.Unix(int64(n), 0), nil
	}
	if at, err := event.ParseTime(text); err == nil && !at.IsZero() {
		return at, nil
	}
	return time.Time{}, refuse(NoTime)
}
