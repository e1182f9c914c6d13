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

// maxMemories limits the memories accepted from one provider.
const maxMemories = 100

// Context is the merged context for a message, a ConversationContextResult.
type Context struct {
	// Text contains each provider's text under a heading that the server adds; see [merge].
	Text string
	// Memories are sorted by relevance.
	Memories []Memory
	// Cut is true if some context was left out.
	Cut bool
}

// Memory is a part of a structured context.
type Memory struct {
	Content   string  `json:"content"`
	Relevance float64 `json:"relevance"` // 0 to 1
	// Source begins with the provider's name. If the provider names a source itself, that follows after a colon.
	Source string `json:"source"`
}

// Members encodes the result as JSON members without braces. It returns nil if there is no context.
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

// answer is one provider's context, after cleaning.
type answer struct {
	text     string
	memories []Memory // sorted by relevance; Source is as the provider sent it
	cut      bool
}

var errMalformed = fault.New(fault.Unprocessable, "the value is not a context")

// parseAnswer parses a provider's response. It must be valid JSON, and is otherwise untrusted. Memories without
// content or a finite relevance are skipped.
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
	slices.SortStableFunc(a.memories, compareRelevance)
	return a, nil
}

func compareRelevance(a, b Memory) int { return cmp.Compare(b.Relevance, a.Relevance) }

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

// maxSource is the maximum length in bytes of the source that a provider names.
const maxSource = 200

// clean normalizes line breaks and removes control characters.
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

// clip cuts a string to a maximum length, without splitting a character.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

// part is the contribution of one provider.
type part struct {
	name, title string
	answer
}

// merge combines the providers' contexts, the most important first, into one with at most the given number of bytes.
// Each provider uses as much of the remaining space as it needs. A text that does not fit is cut at the end. A memory that
// does not fit is left out.
//
// Each provider's text is under a heading with its name, and each of its lines begins with "> ". Any other line is
// ours, so a provider cannot imitate another one.
func merge(parts []part, most int) *Context {
	c := &Context{}
	var text strings.Builder
	used := 0
	for _, p := range parts {
		c.Cut = c.Cut || p.cut
		if p.text != "" {
			block, whole := quote(p, most-used-len(between))
			if block != "" {
				if text.Len() > 0 {
					text.WriteString(between)
				}
				text.WriteString(block)
				used += len(block) + len(between)
			}
			c.Cut = c.Cut || !whole
		}
		for _, m := range p.memories {
			if m.Source = p.source(m.Source); used+len(m.Content)+len(m.Source) > most {
				c.Cut = true
				continue
			}
			used += len(m.Content) + len(m.Source)
			c.Memories = append(c.Memories, m)
		}
	}
	c.Text = text.String()
	slices.SortStableFunc(c.Memories, compareRelevance)
	return c
}

const (
	between = "\n\n"
	// leastText is the minimum length of a text that has been cut. Shorter ones are left out.
	leastText = 32
)

// source returns the source of a memory. Providers' names contain no colon.
func (p part) source(own string) string {
	if own == "" {
		return p.name
	}
	return p.name + ": " + own
}

// quote returns a provider's text under its heading, in at most room bytes, and whether it is complete. It returns ""
// if there is not enough room.
func quote(p part, room int) (block string, whole bool) {
	heading := "Context from " + p.name
	if p.title != "" {
		heading += " (" + p.title + ")"
	}
	block = heading + ":\n" + quoteLines(p.text)
	if len(block) <= room {
		return block, true
	}
	heading += ", cut at the end:\n"
	room -= len(heading)
	for size := room; size >= leastText; {
		block = quoteLines(strings.TrimSpace(clip(p.text, size)))
		if len(block) <= room {
			return heading + block, false
		}
		size -= len(block) - room
	}
	return "", false
}

func quoteLines(text string) string { return "> " + strings.ReplaceAll(text, "\n", "\n> ") }
