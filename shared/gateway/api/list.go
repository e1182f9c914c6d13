package api

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Kind says what a call is about: a tool, a prompt, and so on. Backends have a list of each kind, except where noted.
type Kind uint8

// The kinds of calls and lists.
const (
	Tools Kind = iota
	Prompts
	Resources
	Templates
	// Tasks is a kind without a list. A call of this kind names a task by its id.
	Tasks
	// Extensions is a kind without a list. A call of this kind names a method of an extension.
	Extensions
	// Events has a list only for backends that act for their callers (see [Backend.ActsForCallers]). Package relay stores the event types
	// of all other backends in the event catalog.
	Events
)

// Kinds are the kinds of lists that package relay watches for changes.
var Kinds = []Kind{Tools, Prompts, Resources, Templates}

var kinds = [...]struct {
	what, method, member, name, changed string
	prefixed                            bool
}{
	Tools:      {"tool", spec.MethodToolsList, "tools", "name", spec.NoteToolsChange, true},
	Prompts:    {"prompt", spec.MethodPromptsList, "prompts", "name", spec.NotePromptsChange, true},
	Resources:  {"resource", spec.MethodResources, "resources", "uri", spec.NoteResourcesChange, false},
	Templates:  {"resource template", spec.MethodTemplates, "resourceTemplates", "uriTemplate", spec.NoteResourcesChange, false},
	Tasks:      {what: "task"},
	Extensions: {what: "extension method"},
	Events:     {"event type", spec.MethodEvents, "events", "name", spec.NoteEventsChange, true},
}

// String returns the word for one entry of this kind in error messages, for example "resource template".
func (k Kind) String() string { return kinds[k].what }

// Method returns the MCP method that reads a list of this kind, for example tools/list.
func (k Kind) Method() string { return kinds[k].method }

// Member returns the name of the result's member that holds the entries of the list, for example "resourceTemplates".
func (k Kind) Member() string { return kinds[k].member }

// Name returns the name of the member that identifies an entry in the list, for example "uri".
func (k Kind) Name() string { return kinds[k].name }

// ChangedMethod returns the method of the notification with which a backend reports that its list of this kind has changed.
func (k Kind) ChangedMethod() string { return kinds[k].changed }

// IsListChange reports whether notifications with this method report a change of a list of one of the [Kinds].
func IsListChange(method string) bool {
	return slices.ContainsFunc(Kinds, func(k Kind) bool { return k.ChangedMethod() == method })
}

// Prefixed reports whether the gateway puts the backend's prefix before the names of this kind. URIs get no prefix.
func (k Kind) Prefixed() bool { return kinds[k].prefixed }

// LeftOut is stored in place of the hash of a backend's list if the backend did not respond and a client therefore got a combined list
// without the backend's entries. LeftOut differs from every hash. So when package relay can read the backend's list again, it finds a
// change and announces it, and the client reads the combined list again.
const LeftOut = "!"

// NewListHash returns the item that stores the hash of a backend's list, or [LeftOut] in its place. Each item gets a random version, so
// that a writer notices whether another process has replaced the item, even with the same hash.
func NewListHash(key store.Key, hash []byte) store.Item {
	return store.Item{Key: key, Value: hash, Version: rand.Int64()}
}

// Entry is one entry of the combined list of all backends, for example a tool.
type Entry struct {
	// Name is the name or URI that the client uses. It includes the backend's prefix unless it is a URI.
	Name string
	// JSON is the entry as the backend sent it, with the prefix added to its name, and without the members of _meta that only the gateway
	// may set.
	JSON json.RawMessage
	// Backend is the backend's name. Own is the entry's name or URI at the backend, without the prefix.
	Backend, Own string
}

// ForVersion returns the entry's JSON in a form that clients of the given MCP revision can read.
func (e Entry) ForVersion(version spec.Version) json.RawMessage {
	return translate.Tool(e.JSON, version)
}

// List is the combined list of the backends that a principal may use, in the order of the configuration.
type List struct {
	Entries []Entry
	// Conflicts has the names of entries that are not in the list because another backend has the same name or owns the name's prefix.
	Conflicts []string
	TTL       time.Duration // the minimum over all backends
	Shared    bool          // the list is the same for all callers
	Parts     []Part        // in the order of Entries
}

// Part says where a backend's entries are in a combined list: in Entries[First:End].
type Part struct {
	Backend    string
	First, End int
}

// The cursor of a page describes the last entry that the client got: the entry's backend, its position in the backend's list, and its
// name. If the backend's list has changed since, the next page begins after that entry wherever it is now, or at the old position if the
// entry is gone.
//
// So clients may miss entries or get them twice, which they have to expect (2026-07-28, Caching, Interaction with Pagination). Refusing
// such a cursor would be worse, because most clients give up then.

// Page returns the entries after the cursor and the cursor of the next page. The parameter most is the maximum number of entries. An
// empty cursor means the beginning, and an empty next means that there are no further pages. The result ok is false if the cursor is
// malformed or its backend is not in the list.
func (l *List) Page(cursor string, most int) (entries []Entry, next string, ok bool) {
	first, ok := l.indexAfter(cursor)
	if !ok {
		return nil, "", false
	}
	end := min(first+most, len(l.Entries))
	if end < len(l.Entries) && end > first {
		next = l.cursor(end - 1)
	}
	return l.Entries[first:end], next, true
}

func (l *List) cursor(i int) string {
	e := l.Entries[i]
	place := 0
	for ; i > 0 && l.Entries[i-1].Backend == e.Backend; i-- {
		place++
	}
	return e.Backend + " " + strconv.Itoa(place) + " " + e.Own
}

// indexAfter returns the index of the first entry after a cursor, and false if the cursor is invalid.
func (l *List) indexAfter(cursor string) (int, bool) {
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
