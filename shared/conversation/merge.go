package conversation

import (
	"slices"
	"strings"
)

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
