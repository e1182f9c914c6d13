package api

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Kind is what a list is of.
type Kind uint8

// The kinds.
const (
	Tools Kind = iota
	Prompts
	Resources
	Templates
)

// Kinds are all of them.
var Kinds = []Kind{Tools, Prompts, Resources, Templates}

// kinds say how each is asked for and named.
var kinds = [...]struct {
	what, method, member, name, changed string
	prefixed                            bool
}{
	Tools:     {"tool", spec.MethodToolsList, "tools", "name", spec.NoteToolsChange, true},
	Prompts:   {"prompt", spec.MethodPromptsList, "prompts", "name", spec.NotePromptsChange, true},
	Resources: {"resource", spec.MethodResources, "resources", "uri", spec.NoteResourcesChange, false},
	Templates: {"resource template", spec.MethodTemplates, "resourceTemplates", "uriTemplate", spec.NoteResourcesChange, false},
}

// String is what one entry is called in messages.
func (k Kind) String() string { return kinds[k].what }

// Method lists it, Member of the result holds the entries, and Name of an entry its name or URI.
func (k Kind) Method() string { return kinds[k].method }

// Member is described at [Kind.Method].
func (k Kind) Member() string { return kinds[k].member }

// Name is described at [Kind.Method].
func (k Kind) Name() string { return kinds[k].name }

// Changed is the notification of a change of the list.
func (k Kind) Changed() string { return kinds[k].changed }

// Prefixed reports whether names get the backend's prefix. URIs do not.
func (k Kind) Prefixed() bool { return kinds[k].prefixed }

// Entry is one entry of a gathered list.
type Entry struct {
	// Name is the name or URI that the client uses: with the backend's prefix where names have one.
	Name string
	// JSON is the entry as the backend sent it, but for the name.
	JSON json.RawMessage
	// Backend has it, under the name Own.
	Backend, Own string
}

// For is the entry as a client of the revision can read it.
func (e Entry) For(version spec.Version) json.RawMessage { return translate.Tool(e.JSON, version) }

// List is what the backends of a principal have of a kind, in the order of the
// configuration and of each backend.
type List struct {
	Entries []Entry
	// Conflicts are names that more than one backend has; the first one serves them.
	Conflicts []string
	// TTL is how long a client may keep it: the shortest time that a backend gives.
	TTL time.Duration
	// Shared is true when every backend says that its list is the same for all callers.
	Shared bool
	// Parts are the backends in the order of Entries, and where those of each end.
	Parts []Part
}

// Part is where in a gathered list the entries of a backend are; it may have none.
type Part struct {
	Backend    string
	First, End int
}

// A cursor of a gathered list names the entry after which it goes on, the backend that
// has it and its place there. A backend's list may change between two pages: then the
// place stands for an entry that is gone, and the entry is found wherever it is now.
// Clients know that there may be gaps and duplicates then (2026-07-28, Caching,
// Interaction with Pagination), while most give up over a cursor that is refused.

// Page is the part of the list that begins after a cursor, or at the beginning for an empty one, with at
// most so many entries; next is the cursor of the page that follows, empty for the last. It
// reports false for a cursor of none of the backends of the list.
func (l *List) Page(cursor string, most int) (entries []Entry, next string, ok bool) {
	first, ok := l.after(cursor)
	if !ok {
		return nil, "", false
	}
	end := min(first+most, len(l.Entries))
	if end < len(l.Entries) && end > first {
		next = l.cursor(end - 1)
	}
	return l.Entries[first:end], next, true
}

// cursor is that of what follows the entry at i.
func (l *List) cursor(i int) string {
	e := l.Entries[i]
	place := 0
	for ; i > 0 && l.Entries[i-1].Backend == e.Backend; i-- {
		place++
	}
	return e.Backend + " " + strconv.Itoa(place) + " " + e.Own
}

// after is where a cursor goes on.
func (l *List) after(cursor string) (int, bool) {
	if cursor == "" {
		return 0, true
	}
	name, rest, _ := strings.Cut(cursor, " ")
	place, own, ok := strings.Cut(rest, " ")
	at, err := strconv.Atoi(place)
	if !ok || err != nil || at < 0 {
		return 0, false
	}
	for _, part := range l.Parts {
		if part.Backend != name {
			continue
		}
		for i := part.First; i < part.End; i++ {
			if l.Entries[i].Own == own {
				return i + 1, true
			}
		}
		return part.First + min(at, part.End-part.First), true
	}
	return 0, false
}
