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
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// maxSignatures limits the signatures in one request. Providers send one for each of their active secrets.
const maxSignatures = 10

var hashes = map[string]func() hash.Hash{
	"": sha256.New, "sha1": sha1.New, "sha256": sha256.New, "sha512": sha512.New,
}

var decoders = map[string]func(string) ([]byte, error){
	"": hex.DecodeString, "hex": hex.DecodeString, "base64": base64.StdEncoding.Strict().DecodeString,
}

// mac verifies signatures that are message authentication codes (HMAC), with one secret.
type mac struct {
	hash   func() hash.Hash
	decode func(string) ([]byte, error)
	key    []byte
	signed template
}

// check verifies that at least one of the signatures matches the signed text of a request. It returns a hash of the signed text, or the
// reason for refusing the request.
func (m mac) check(r Request, timestamp string, signatures []string) (signed string, no *refusal) {
	if len(signatures) > maxSignatures {
		return "", refuse(manySignatures)
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
		// hmac.Equal returns early only if the lengths differ, and the length of a digest is not secret.
		same = hmac.Equal(got, want) || same
	}
	switch {
	case same:
		return sumOf(plain), nil
	case wellFormed:
		return "", refuse(NoMatch)
	}
	return "", refuse(malformed)
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
		header, no := singleHeader(r.Header, s.Header, noSignature)
		if no != nil {
			return p, no
		}
		var timestamp string
		if s.Timestamp != "" {
			if timestamp, no = singleHeader(r.Header, s.Timestamp, noTime); no != nil {
				return p, no
			}
			if p.at, no = parseTime(timestamp); no != nil {
				return p, no
			}
		}
		signatures, no := splitSignatures(header, s.Prefix)
		if no != nil {
			return p, no
		}
		p.signed, no = m.check(r, timestamp, signatures)
		return p, no
	}, nil
}

// splitSignatures splits the value of a header into signatures, at spaces and commas. If the prefix contains a comma, it splits only at
// spaces. Parts without the prefix are ignored.
func splitSignatures(header, prefix string) (out []string, no *refusal) {
	parts := strings.FieldsFunc(header, func(r rune) bool {
		return r == ' ' || r == '\t' || r == ',' && !strings.Contains(prefix, ",")
	})
	for _, part := range parts {
		if signature, ok := strings.CutPrefix(part, prefix); ok {
			out = append(out, signature)
		}
	}
	if len(out) == 0 {
		return nil, refuse(malformed)
	}
	return out, nil
}

// bindStripe returns the check of the header Stripe-Signature: t=…,v1=…,v1=…,v0=…. The signatures v0 are for test events and are ignored.
func bindStripe(_ Settings, secret string) (check, error) {
	signed, err := parseTemplate("{timestamp}.{body}")
	if err != nil {
		return nil, err
	}
	m := mac{sha256.New, hex.DecodeString, []byte(secret), signed}
	return func(r Request) (p proof, no *refusal) {
		header, no := singleHeader(r.Header, "Stripe-Signature", noSignature)
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
			return "", nil, refuse(noTime) // ambiguous: either could be the signed one
		case name == "t":
			timestamp = value
		case name == "v1":
			signatures = append(signatures, value)
		}
	}
	if timestamp == "" {
		return "", nil, refuse(noTime)
	}
	if len(signatures) == 0 {
		return "", nil, refuse(malformed)
	}
	return timestamp, signatures, nil
}

// singleHeader returns the value of a header that must occur exactly once. The parameter missing is the reason for refusing a request
// without the header.
func singleHeader(h http.Header, name, missing string) (string, *refusal) {
	switch values := h.Values(name); {
	case len(values) > 1:
		return "", refuse(headerTwice)
	case len(values) == 0 || values[0] == "":
		return "", refuse(missing)
	default:
		return values[0], nil
	}
}

// parseTime parses a time in RFC 3339, or as digits: seconds or milliseconds since 1970.
func parseTime(text string) (time.Time, *refusal) {
	const lastSecond = 99_999_999_999 // the last number that is read as seconds, in the year 5138; as milliseconds, it is in 1973
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
	return time.Time{}, refuse(noTime)
}

const (
	maxTemplate = 512
	maxParts    = 20
)

// template is the text that a provider signs, with placeholders for parts of the request.
type template []part

type part struct {
	kind partKind
	text string // the text of a literal, or the name of a header
}

type partKind int

const (
	partText partKind = iota
	partBody
	partTimestamp
	partHeader
)

// parseTemplate parses the text that a provider signs. The text may have the placeholders {body} (exactly once), {timestamp} and
// {header:NAME}.
func parseTemplate(text string) (template, error) {
	if len(text) > maxTemplate {
		return nil, fault.New(fault.Invalid, "has %d bytes, %d are allowed", len(text), maxTemplate)
	}
	var out template
	for rest := text; rest != ""; {
		literal, after, found := strings.Cut(rest, "{")
		if strings.Contains(literal, "}") {
			return nil, fault.New(fault.Invalid, "has a } without a {")
		}
		if literal != "" {
			out = append(out, part{partText, literal})
		}
		if !found {
			break
		}
		name, after, found := strings.Cut(after, "}")
		if strings.ToLower(name) == "header:host" {
			return nil, fault.New(fault.Invalid, "{%s} is not allowed: proxies change it, and the server does not have it among the headers", name)
		}
		p, ok := parsePlaceholder(name)
		if !found || !ok {
			return nil, fault.New(fault.Invalid, "{%.64s} is not allowed (allowed: {body}, {timestamp}, {header:NAME})", name)
		}
		out, rest = append(out, p), after
	}
	if len(out) > maxParts {
		return nil, fault.New(fault.Invalid, "has %d parts, %d are allowed", len(out), maxParts)
	}
	if n := out.count(partBody); n != 1 {
		return nil, fault.New(fault.Invalid, "has {body} %d times; it must appear once", n)
	}
	return out, nil
}

func parsePlaceholder(name string) (part, bool) {
	switch header, isHeader := strings.CutPrefix(name, "header:"); {
	case name == "body":
		return part{kind: partBody}, true
	case name == "timestamp":
		return part{kind: partTimestamp}, true
	case isHeader && isHeaderName(header):
		return part{partHeader, header}, true
	}
	return part{}, false
}

func (t template) has(k partKind) bool { return t.count(k) > 0 }

func (t template) count(k partKind) (n int) {
	for _, p := range t {
		if p.kind == k {
			n++
		}
	}
	return n
}

// write writes the signed text of r to w, for example to a hash. Writes to w must not fail.
func (t template) write(w io.Writer, r Request, timestamp string) *refusal {
	for _, p := range t {
		text := p.text
		switch p.kind {
		case partBody:
			_, _ = w.Write(r.Body)
			continue
		case partTimestamp:
			text = timestamp
		case partHeader:
			var no *refusal
			if text, no = singleHeader(r.Header, p.text, headerMissing); no != nil {
				return no
			}
		}
		_, _ = io.WriteString(w, text)
	}
	return nil
}
