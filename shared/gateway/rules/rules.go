// Package rules decides which tools, prompts, resources and extensions of a backend callers may use, by their names or URIs.
package rules

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Rules are the access rules for one kind of entries of a backend, for example for its tools. Without rules, callers may use all entries.
type Rules struct {
	// Allow lists globs for the entries that callers may use. If it is empty, they may use all.
	Allow []string `json:"allow,omitempty"`
	// Deny lists globs for the entries that callers must not use. It takes precedence over Allow.
	Deny []string `json:"deny,omitempty"`
	// Scopes maps a glob to the scopes that a caller needs for the entries that the glob matches. If several globs match an entry, the
	// caller needs the scopes of all of them.
	Scopes map[string][]string `json:"scopes,omitempty"`
}

// Empty reports whether the rules permit everything.
func (r Rules) Empty() bool { return len(r.Allow) == 0 && len(r.Deny) == 0 && len(r.Scopes) == 0 }

// Limits of the rules. A glob has at most maxGlob bytes, and each member of Rules has at most MaxGlobs globs. If there are any rules,
// they deny all names of more than maxName bytes.
const (
	maxGlob  = 256
	MaxGlobs = 100
	maxName  = 2048
)

// CheckGlob returns an error if a glob is invalid.
func CheckGlob(glob string) error {
	switch {
	case glob == "":
		return fmt.Errorf("the glob is empty")
	case len(glob) > maxGlob:
		return fmt.Errorf("the glob has %d bytes (allowed: up to %d)", len(glob), maxGlob)
	case !utf8.ValidString(glob) || strings.ContainsFunc(glob, unicode.IsControl):
		return fmt.Errorf("the glob has control characters or invalid Unicode")
	}
	if _, ok := unify(glob); !ok {
		return fmt.Errorf("the glob is percent-encoded more than %d times, or has /../ after a ? or #", maxEncodings-1)
	}
	return nil
}

// Set has rules in a form that is fast to evaluate. The zero value permits everything.
type Set struct {
	uris        bool
	allow, deny []forms
	scopes      []scoped
}

// forms are the spellings of a name or a glob that the rules compare. A name has only its original spelling. A URI has four forms, in
// this order: the original, the result of normalize, the result of flatten, and the form without its end that [bareForm] describes.
type forms []string

// bareForm is the index in [forms] of a URI without its query, its fragment and the slashes at its end. Deny and Scopes compare this
// form, too. For example, denying file:///a also denies file:///a?x, because a server may read both in the same way. Allow does not
// compare it, so x://list?page=* allows x://list?page=2, but not x://list.
const bareForm = 3

type scoped struct {
	glob   forms
	scopes []string
}

// New returns the set of rules for names. [CheckGlob] must have accepted the globs of r.
func New(r Rules) Set { return newSet(r, false) }

// NewForURIs returns the set of rules for URIs. A caller can spell the same URI in several ways, so the set compares several [forms] of
// the URI and the globs. For example, file:///public/* does not allow file:///public/../secret.
func NewForURIs(r Rules) Set { return newSet(r, true) }

func newSet(r Rules, uris bool) Set {
	s := Set{uris: uris}
	for _, glob := range r.Allow {
		s.allow = append(s.allow, s.formsOf(glob, true))
	}
	for _, glob := range r.Deny {
		s.deny = append(s.deny, s.formsOf(glob, true))
	}
	for _, glob := range slices.Sorted(maps.Keys(r.Scopes)) {
		s.scopes = append(s.scopes, scoped{s.formsOf(glob, true), r.Scopes[glob]})
	}
	return s
}

// formsOf returns the forms of a name or a glob, or nil if [unify] refuses it. The bare form of a glob keeps the query, so that a rule
// for x://a?b does not apply to x://a.
func (s Set) formsOf(text string, glob bool) forms {
	if !s.uris {
		return forms{text}
	}
	plain, ok := unify(text)
	if !ok {
		return nil
	}
	flat := flatten(plain)
	bare := flat
	if at := strings.IndexAny(flat, "?#"); at >= 0 && !glob {
		bare = flat[:at]
	}
	return forms{text, normalize(plain), flat, strings.TrimRight(bare, "/")}
}

// PerCaller reports whether some entries need scopes, so that callers may see different entries.
func (s Set) PerCaller() bool { return len(s.scopes) > 0 }

// Permits reports whether the rules allow a name or a URI, and which scopes a caller needs for it.
func (s Set) Permits(name string) (scopes []string, ok bool) {
	if len(s.allow) == 0 && len(s.deny) == 0 && len(s.scopes) == 0 {
		return nil, true
	}
	if len(name) > maxName || s.uris && isTrimmable(name) {
		return nil, false
	}
	spelled := s.formsOf(name, false)
	if spelled == nil {
		return nil, false
	}
	for i, form := range spelled {
		matches := func(glob forms) bool { return matchGlob(glob[i], form) }
		if slices.ContainsFunc(s.deny, matches) || len(s.allow) > 0 && i != bareForm && !slices.ContainsFunc(s.allow, matches) {
			return nil, false
		}
		for _, rule := range s.scopes {
			if matches(rule.glob) {
				scopes = append(scopes, rule.scopes...)
			}
		}
	}
	slices.Sort(scopes)
	return slices.Compact(scopes), true
}

// matchGlob reports whether a glob matches the whole name. A * stands for any text, including slashes and the empty text, and every other
// character stands for itself. [path.Match] is not suitable, because its * does not match slashes, so a * in Deny would deny too little.
//
// The running time is at most proportional to the product of the lengths, because matchGlob tries only the text after the last * at
// several positions. The text before it is matched as early as possible, which leaves the most for the rest.
func matchGlob(glob, name string) bool {
	g, n := 0, 0
	star, from := -1, 0 // the index of the last * in glob, and the index in name at which the text after the * is tried
	for n < len(name) {
		switch {
		case g < len(glob) && glob[g] == '*':
			star, from = g, n
			g++
		case g < len(glob) && glob[g] == name[n]:
			g++
			n++
		case star >= 0:
			from++
			g, n = star+1, from
		default:
			return false
		}
	}
	return strings.Trim(glob[g:], "*") == ""
}

// isTrimmable reports whether a URI has characters that some URL parsers remove before they look for dot segments: tabs, line breaks, and
// other control characters and spaces at the ends. Parsers of the URL Standard, as in the official SDKs, do this. No valid URI has these
// characters.
func isTrimmable(uri string) bool {
	return strings.ContainsFunc(uri, unicode.IsControl) || strings.TrimSpace(uri) != uri
}

// maxEncodings limits how often unify removes percent-encoding from a URI.
const maxEncodings = 4

// unify returns a URI without percent-encoding, and with slashes for backslashes. The result ok is false if the URI is encoded
// maxEncodings times or more. It is also false if the query or fragment has a .. segment, because servers disagree about which parts the
// .. in file:///a/b?/../c removes.
func unify(uri string) (plain string, ok bool) {
	for range maxEncodings {
		decoded := decode(uri)
		if ok = decoded == uri; ok {
			break
		}
		uri = decoded
	}
	uri = strings.ReplaceAll(uri, `\`, "/")
	if at := strings.IndexAny(uri, "?#"); at >= 0 && strings.Contains(uri[at:]+"/", "/../") {
		return "", false
	}
	return uri, ok
}

// normalize returns the form in which a lenient server may read a URI: scheme and host are in lower case, and there are no empty or dot
// segments. The parameter uri must be a result of [unify].
func normalize(uri string) string {
	if scheme, rest, found := strings.Cut(uri, "://"); found {
		host, path, rooted := strings.Cut(rest, "/")
		normal := strings.ToLower(scheme + "://" + host)
		if normal == "file://localhost" { // RFC 8089, section 2
			normal = "file://"
		}
		if rooted {
			normal += "/" + clean(path)
		}
		return normal
	}
	if scheme, rest, found := strings.Cut(uri, ":"); found {
		return strings.ToLower(scheme) + ":" + clean(rest)
	}
	return clean(uri)
}

// flatten returns a URI as it is understood by a server that treats the host as the first segment of the path. For such a server,
// notes://public/../private and notes:///private are both notes://private. Access rules are also checked against this form, so that a
// client cannot bypass them. The parameter uri must be a result of [unify].
func flatten(uri string) string {
	if scheme, rest, found := strings.Cut(uri, "://"); found {
		return strings.ToLower(scheme) + "://" + clean(rest)
	}
	return normalize(uri)
}

// clean removes empty segments, "." and ".." from a path. It keeps a slash at the end.
func clean(path string) string {
	parts := strings.Split(path, "/")
	var kept []string
	for i, part := range parts {
		switch {
		case part == "..":
			kept = kept[:max(0, len(kept)-1)]
		case part != "" && part != ".":
			kept = append(kept, part)
			continue
		}
		if i == len(parts)-1 && len(kept) > 0 {
			kept = append(kept, "")
		}
	}
	return strings.Join(kept, "/")
}

// decode decodes the percent-encoded bytes of a URI once. It leaves malformed encodings as they are.
func decode(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if b, err := hex.DecodeString(s[i+1 : i+3]); err == nil {
				out = append(out, b[0])
				i += 2
				continue
			}
		}
		out = append(out, s[i])
	}
	return string(out)
}
