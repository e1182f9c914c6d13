package catalog

import (
	"regexp"
	"strings"

	"github.com/yosida95/uritemplate/v3"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
)

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)

// parseTemplate splits a URI template into segments. Of RFC 6570 it accepts only {name} as a whole segment, so that matching compares
// segments, is unambiguous and needs no regular expressions.
func parseTemplate(s string) ([]segment, error) {
	if len(s) > event.MaxURI {
		return nil, fault.New(fault.Invalid, "is longer than %d bytes", event.MaxURI)
	}
	if _, err := uritemplate.New(s); err != nil {
		return nil, fault.New(fault.Invalid, "is not a URI template (RFC 6570): %s",
			strings.TrimPrefix(err.Error(), "uritemplate:"))
	}
	if err := checkSimple(s); err != nil {
		return nil, err
	}
	rest, ok := strings.CutPrefix(s, Scheme)
	if !ok {
		return nil, fault.New(fault.Invalid, "does not begin with %s", Scheme)
	}
	var segs []segment
	seen := map[string]bool{}
	for i, part := range strings.Split(rest, "/") {
		seg, err := parseSegment(part, i == 0)
		if err != nil {
			return nil, err
		}
		if seg.variable != "" && seen[seg.variable] {
			return nil, fault.New(fault.Invalid, "has the variable {%s} twice", seg.variable)
		}
		seen[seg.variable] = true
		segs = append(segs, seg)
	}
	return segs, nil
}

func parseSegment(part string, authority bool) (segment, error) {
	if open := strings.IndexByte(part, '{'); open >= 0 {
		if open != 0 || strings.IndexByte(part, '}') != len(part)-1 {
			return segment{}, fault.New(fault.Invalid,
				"has a variable next to other text in %q; a variable must be a whole segment", strictyaml.Clip(part))
		}
		return segment{variable: part[1 : len(part)-1]}, nil
	}
	var b strings.Builder
	if err := canonicalSegment(&b, part, authority); err != nil {
		return segment{}, fault.New(fault.Invalid, "%s", strings.TrimPrefix(fault.Public(err), "the event URI "))
	}
	if b.String() != part {
		return segment{}, fault.New(fault.Invalid, "must be written canonically: %q as %q",
			strictyaml.Clip(part), strictyaml.Clip(b.String()))
	}
	return segment{literal: part}, nil
}

// checkSimple refuses the features of RFC 6570 beyond level 1.
func checkSimple(s string) error {
	for {
		_, after, found := strings.Cut(s, "{")
		if !found {
			return nil
		}
		expr, rest, _ := strings.Cut(after, "}")
		s = rest
		switch {
		case expr != "" && strings.IndexByte("+#./;?&=,!@|", expr[0]) >= 0:
			return fault.New(fault.Invalid, "has the operator %q in {%s}; only {name} is supported", expr[:1], strictyaml.Clip(expr))
		case strings.ContainsAny(expr, "*:"):
			return fault.New(fault.Invalid, "has a modifier in {%s}; only {name} is supported", strictyaml.Clip(expr))
		case strings.Contains(expr, ","):
			return fault.New(fault.Invalid, "has several variables in {%s}; give each its own segment", strictyaml.Clip(expr))
		case !variableName.MatchString(expr):
			return fault.New(fault.Invalid, "has the variable {%s}; a name is letters, digits and _, at most 64, not beginning with a digit", strictyaml.Clip(expr))
		}
	}
}
