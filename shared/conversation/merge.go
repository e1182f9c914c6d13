package conversation

import (
	"slices"
	"strings"
)

// part is what one provider contributes.
type part struct {
	name, title string
	answer
}

// merge makes one context of several, the most important first, within most bytes of
// text. Who comes first takes what it needs: of the last text that does not fit the
// beginning is taken, memories are taken whole or not.
//
// Each provider's text stands under a heading that names it, and each of its lines
// begins with "> ". A line that does not is ours, so no provider can speak with the
// voice of another.
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
	slices.SortStableFunc(c.Memories, byRelevance)
	return c
}

const (
	between = "\n\n"
	// leastText is the least of a text that is worth to be there.
	leastText = 32
)

// source names where a memory comes from. Names of providers have no colon.
func (p part) source(own string) string {
	if own == "" {
		return p.name
	}
	return p.name + ": " + own
}

// quote is a provider's text under its heading in at most room bytes, and whether
// that is all of it; empty when there is no room.
func quote(p part, room int) (block string, whole bool) {
	heading := "Context from " + p.name
	if p.title != "" {
		heading += " (" + p.title + ")"
	}
	block = heading + ":\n" + quoted(p.text)
	if len(block) <= room {
		return block, true
	}
	heading += ", of which the end is missing:\n"
	room -= len(heading)
	for size := room; size >= leastText; {
		block = quoted(strings.TrimSpace(clip(p.text, size)))
		if len(block) <= room {
			return heading + block, false
		}
		size -= len(block) - room
	}
	return "", false
}

func quoted(text string) string { return "> " + strings.ReplaceAll(text, "\n", "\n> ") }
