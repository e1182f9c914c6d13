package gateway

import (
	"strconv"
	"strings"
)

// A cursor of a gathered list names the entry behind which it goes on, the backend that
// has it and its place there. A backend's list may change between two pages: then the
// place stands for an entry that is gone, and the entry is found wherever it is now.
// Clients are told that there may be gaps and duplicates then (2026-07-28, Caching,
// Interaction with Pagination), while most give up over a cursor that is refused.

// Page is the part of the list that begins behind a cursor, or at the beginning for an empty one, with at
// most so many entries; next is the cursor of the page that follows, empty for the last. It
// reports false for a cursor of none of the backends of the list.
func (l *List) Page(after string, most int) (entries []Entry, next string, ok bool) {
	first, ok := l.behind(after)
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
	for ; i > 0 && l.Entries[i-1].backend == e.backend; i-- {
		place++
	}
	return e.backend.Name + " " + strconv.Itoa(place) + " " + e.own
}

// behind is where a cursor goes on.
func (l *List) behind(cursor string) (int, bool) {
	if cursor == "" {
		return 0, true
	}
	name, rest, _ := strings.Cut(cursor, " ")
	place, own, ok := strings.Cut(rest, " ")
	at, err := strconv.Atoi(place)
	if !ok || err != nil || at < 0 {
		return 0, false
	}
	for _, part := range l.parts {
		if part.name != name {
			continue
		}
		for i := part.first; i < part.end; i++ {
			if l.Entries[i].own == own {
				return i + 1, true
			}
		}
		return part.first + min(at, part.end-part.first), true
	}
	return 0, false
}

// part is where in a gathered list the entries of a backend are; it may have none.
type part struct {
	name       string
	first, end int
}
