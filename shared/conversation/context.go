package conversation

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// maxMemories bounds what is taken of one provider.
const maxMemories = 100

// Context is what providers have to say to a message: a ConversationContextResult.
type Context struct {
	// Text is every provider's text under a heading of ours, see [merge].
	Text string
	// Memories are sorted by relevance.
	Memories []Memory
	// Cut is set when something had to be left out.
	Cut bool
}

// Memory is a part of a structured context.
type Memory struct {
	Content   string  `json:"content"`
	Relevance float64 `json:"relevance"` // 0 to 1
	// Source begins with the provider's name; what the provider itself names follows
	// after a colon.
	Source string `json:"source"`
}

// Members encodes the result without braces; nil when it is empty.
func (c *Context) Members() []byte {
	type structured struct {
		Memories []Memory `json:"memories"`
	}
	out := struct {
		Text       string      `json:"context,omitempty"`
		Structured *structured `json:"structuredContext,omitempty"`
	}{Text: c.Text}
	if len(c.Memories) > 0 {
		out.Structured = &structured{c.Memories}
	}
	if c.Text == "" && out.Structured == nil {
		return nil
	}
	b := jsonrpc.Encode(out)
	return b[1 : len(b)-1]
}

// answer is what one provider said, cleaned.
type answer struct {
	text     string
	memories []Memory // by relevance; Source is the provider's own
	cut      bool
}

var errMalformed = fault.New(fault.Unprocessable, "the value is not a context")

// parseAnswer reads what a provider answered: valid JSON that is not to be trusted
// in any other way. A memory without content or without a finite relevance is passed over.
func parseAnswer(raw json.RawMessage) (a answer, err error) {
	if len(raw) == 0 || raw[0] != '{' {
		return a, errMalformed
	}
	if given := jsonrpc.Member(raw, "context"); given != nil {
		s, ok := jsonrpc.String(given)
		if !ok {
			return a, errMalformed
		}
		a.text = clean(s)
	}
	structured := jsonrpc.Member(raw, "structuredContext")
	if structured == nil {
		return a, nil
	}
	memories := jsonrpc.Member(structured, "memories")
	if structured[0] != '{' || memories != nil && memories[0] != '[' {
		return a, errMalformed
	}
	for one := range jsonrpc.Elements(memories) {
		m, ok := parseMemory(one)
		switch {
		case !ok:
		case len(a.memories) == maxMemories:
			a.cut = true
		default:
			a.memories = append(a.memories, m)
		}
	}
	slices.SortStableFunc(a.memories, byRelevance)
	return a, nil
}

func byRelevance(a, b Memory) int { return cmp.Compare(b.Relevance, a.Relevance) }

func parseMemory(raw json.RawMessage) (m Memory, ok bool) {
	content, _ := jsonrpc.String(jsonrpc.Member(raw, "content"))
	m.Content = clean(content)
	relevance, err := strconv.ParseFloat(string(jsonrpc.Member(raw, "relevance")), 64)
	if m.Content == "" || err != nil || math.IsNaN(relevance) || math.IsInf(relevance, 0) {
		return m, false
	}
	m.Relevance = min(max(relevance, 0), 1)
	source, _ := jsonrpc.String(jsonrpc.Member(raw, "source"))
	m.Source = clip(strings.Join(strings.Fields(clean(source)), " "), maxSource)
	return m, true
}

// maxSource bounds the source that a provider names, in bytes.
const maxSource = 200

// clean makes one kind of line break out of all, and takes off what is not a string.
func clean(s string) string {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r == '\r' || r == '\v' || r == '\f' || r == '\u0085' || r == '\u2028' || r == '\u2029':
			return '\n'
		case r < ' ' || r >= 0x7f && r < 0xa0:
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\ufffd"))
	return strings.TrimSpace(s)
}

// clip cuts a text at a border of characters.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}
