package catalog

import (
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Scheme is the beginning of every event URI.
const Scheme = "event://"

// Wildcard is the segment of a pattern for an omitted variable.
const Wildcard = "*"

// Canonical validates an event URI and returns its canonical spelling, which all equal URIs share: the scheme is in lower case, and all
// characters of a segment except the unreserved ones of RFC 3986 are percent-encoded in upper case. For example, it returns
// event://a/b%3Ac for EVENT://a/b:c. Clients that expand a template as RFC 6570 says get the canonical form.
//
// The segments are case-sensitive. The error is of kind fault.Invalid if the URI has a query, a fragment, user information, an empty
// segment, a dot segment (URI libraries remove those), a control character or invalid UTF-8, or if it is longer than [event.MaxURI]
// bytes.
func Canonical(uri string) (string, error) { return canonical(uri, false) }

// CanonicalPattern returns the canonical form of a pattern, as [Canonical] does for a URI. It keeps segments that are [Wildcard].
func CanonicalPattern(uri string) (string, error) { return canonical(uri, true) }

func canonical(uri string, wildcards bool) (string, error) {
	if len(uri) > 3*event.MaxURI {
		return "", invalidURI("is longer than %d bytes", event.MaxURI).AtLimit("eventURI", event.MaxURI)
	}
	if len(uri) < len(Scheme) || !strings.EqualFold(uri[:len(Scheme)], Scheme) {
		return "", invalidURI("does not begin with %s", Scheme)
	}
	rest := uri[len(Scheme):]
	if rest == "" {
		return "", invalidURI("names no event")
	}
	if uri[:len(Scheme)] == Scheme && len(uri) <= event.MaxURI && isCanonical(rest, wildcards) {
		return uri, nil
	}
	var b strings.Builder
	b.Grow(len(uri) + 16)
	b.WriteString(Scheme)
	for i, seg := range strings.Split(rest, "/") {
		if i > 0 {
			b.WriteByte('/')
		}
		if wildcards && seg == Wildcard {
			b.WriteString(seg)
		} else if err := canonicalSegment(&b, seg, i == 0); err != nil {
			return "", err
		}
	}
	if b.Len() > event.MaxURI {
		return "", invalidURI("is longer than %d bytes", event.MaxURI).AtLimit("eventURI", event.MaxURI)
	}
	return b.String(), nil
}

func invalidURI(format string, args ...any) *fault.Error {
	return fault.New(fault.Invalid, "the event URI "+format, args...)
}

// isCanonical reports whether all segments have only unreserved characters. It is the fast path of canonical.
func isCanonical(rest string, wildcards bool) bool {
	for seg := range strings.SplitSeq(rest, "/") {
		if wildcards && seg == Wildcard {
			continue
		}
		if seg == "" || isDots(seg) {
			return false
		}
		for i := range len(seg) {
			if !isUnreserved(seg[i]) {
				return false
			}
		}
	}
	return true
}

func canonicalSegment(b *strings.Builder, seg string, authority bool) error {
	if seg == "" {
		return invalidURI("has an empty segment")
	}
	for i := 0; i < len(seg); i++ {
		switch c := seg[i]; {
		case c == '?':
			return invalidURI("must not have a query")
		case c == '#':
			return invalidURI("must not have a fragment")
		case c == '@' && authority:
			return invalidURI("must not have user information")
		case c == '{' || c == '}':
			return invalidURI("has a variable that was not filled in")
		case c <= ' ' || c == 0x7f || strings.IndexByte("\"<>\\^`|", c) >= 0:
			return invalidURI("has a character that must be percent-encoded")
		}
	}
	text, err := url.PathUnescape(seg)
	switch {
	case err != nil:
		return invalidURI("has a broken percent-encoding")
	case !validText(text):
		return invalidURI("has a control character, or is not UTF-8")
	case isDots(text):
		return invalidURI("has a dot segment")
	}
	encode(b, text)
	return nil
}

func validText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f })
}

func isDots(s string) bool { return s == "." || s == ".." }

func isUnreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		c == '-' || c == '_' || c == '.' || c == '~'
}

// encode writes a value in the way in which RFC 6570 expands a simple variable.
func encode(b *strings.Builder, s string) {
	const hex = "0123456789ABCDEF"
	for i := 0; i < len(s); i++ {
		if c := s[i]; isUnreserved(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
}
