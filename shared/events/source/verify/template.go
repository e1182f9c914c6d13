package verify

import (
	"io"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

const (
	maxTemplate = 512
	maxParts    = 20
)

// template describes the signed text of a request.
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

// parseTemplate parses text with the placeholders {body}, {timestamp} and {header:NAME}. It must contain {body}
// exactly once.
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
		p, ok := placeholder(name)
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

func placeholder(name string) (part, bool) {
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

// write writes the signed text of r to w, whose writes must not fail.
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
			if text, no = one(r.Header, p.text, HeaderMissing); no != nil {
				return no
			}
		}
		_, _ = io.WriteString(w, text)
	}
	return nil
}
