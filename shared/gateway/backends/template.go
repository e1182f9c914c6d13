package backends

import (
	"strings"

	"github.com/yosida95/uritemplate/v3"
)

// Limits, because a backend chooses its templates and a client chooses the URIs to match.
const (
	maxVariables = 16
	maxMatched   = 2048 // bytes of a template or a URI
)

// matcher returns a function that reports whether a URI matches the template (RFC 6570), or nil if the template is invalid or too
// large.
//
// The function ignores the names in a query and the lengths of prefixes, because the backend itself refuses a URI that it does not
// have. In return its running time is at most proportional to the length of the URI times the number of expressions, which
// uritemplate's Match does not guarantee.
func matcher(template string) func(uri string) bool {
	t, err := uritemplate.New(template)
	if err != nil || len(template) > maxMatched || len(t.Varnames()) > maxVariables || strings.Count(template, "{") > maxVariables {
		return nil
	}
	var parts []part
	for rest := template; rest != ""; {
		literal, expression, found := strings.Cut(rest, "{")
		parts = append(parts, part{literal: literal})
		if !found {
			break
		}
		expression, rest, _ = strings.Cut(expression, "}")
		parts = append(parts, expansion(expression))
	}
	return func(uri string) bool { return len(uri) <= maxMatched && matches(parts, uri) }
}

// part is a piece of a template: a literal or an expression.
type part struct {
	literal string
	// first is the first character of a non-empty expansion, or 0 if that can be any character.
	first byte
	// others has the characters that an expansion may contain beyond letters, digits and -._~%; "*" allows all.
	others string
}

// expansion describes the possible expansions of an expression (RFC 6570, section 3.2).
func expansion(expression string) part {
	switch operator := expression[0]; operator {
	case '+':
		return part{others: "*"}
	case '#':
		return part{first: '#', others: "*"}
	case '.', '/':
		return part{first: operator, others: ",=" + string(operator)}
	case ';':
		return part{first: ';', others: ",=;"}
	case '?', '&':
		return part{first: operator, others: ",=&"}
	}
	return part{others: ",="}
}

// matches reports whether the parts match the whole URI. It tracks the set of positions at which the parts so far can end.
func matches(parts []part, uri string) bool {
	at := make([]bool, len(uri)+1)
	at[0] = true
	for _, p := range parts {
		next := make([]bool, len(at))
		inside := false // an expansion has begun and can continue here
		for i := range at {
			switch {
			case p.others == "":
				if at[i] && strings.HasPrefix(uri[i:], p.literal) {
					next[i+len(p.literal)] = true
				}
			case inside || at[i]:
				next[i] = true
				inside = i < len(uri) && (inside && p.allows(uri[i]) || at[i] && p.begins(uri[i]))
			}
		}
		at = next
	}
	return at[len(uri)]
}

// begins reports whether an expansion can begin with the character.
func (p part) begins(c byte) bool {
	if p.first != 0 {
		return c == p.first
	}
	return p.allows(c)
}

// allows reports whether an expansion can have the character after its first one.
func (p part) allows(c byte) bool {
	switch {
	case p.others == "*", 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return strings.IndexByte("-._~%", c) >= 0 || strings.IndexByte(p.others, c) >= 0
}
