package events

import (
	"bytes"
	"strings"

	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/opaque"
)

// cursor is the position at which a list continues: after an entry of the catalog, after a subscription, or after a cursor of the backends'
// list. The zero value is the end of the list.
type cursor struct {
	where byte
	after string
}

// The parts of a list. The cursor of a public list contains the letter in upper case.
const (
	atCatalog       = 'c'
	atSubscriptions = 's'
	atBackends      = 'b'
)

// maxCursor is the maximum length of a decoded cursor. It suffices for the name of its list and the longest name of an entry.
const maxCursor = 1200

// member returns the member nextCursor for a result with the given scope.
func (c cursor) member(list, scope string) []byte {
	where := c.where
	if scope == method.Public {
		where -= 'a' - 'A'
	}
	b := append([]byte(`,"nextCursor":"`), opaque.Encode(append([]byte{where}, list+" "+c.after...))...)
	return append(b, '"')
}

// place is the position at which a page begins.
type place struct {
	cursor
	list  string // the list's member in the result
	first int    // index of the first entry of the catalog
	// scope is the scope of the previous page. It is empty for the first page.
	scope string
}

// readPlace reads the cursor in a request for a list. at contains the indices of the catalog's entries.
func readPlace(c *method.Call, list string, at map[string]int) (place, error) {
	token, given, err := c.Text("cursor")
	if err != nil || !given {
		return place{cursor: cursor{where: atCatalog}, list: list}, err
	}
	p, ok := parseCursor(list, token)
	if ok && p.where == atCatalog {
		p.first, ok = at[p.after]
		p.first++
	}
	if !ok {
		return place{}, errListCursor
	}
	return p, nil
}

var errListCursor = method.InvalidParams("the cursor is not from this list")

func parseCursor(list, token string) (p place, ok bool) {
	raw, err := opaque.Decode(token)
	if err != nil || len(raw) == 0 || len(raw) > maxCursor {
		return p, false
	}
	p.where, p.scope = raw[0], method.Private
	if p.list, p.after, _ = strings.Cut(string(raw[1:]), " "); p.list != list {
		return p, false
	}
	if p.where < 'a' {
		p.where += 'a' - 'A'
		p.scope = method.Public
	}
	return p, bytes.IndexByte([]byte{atCatalog, atSubscriptions, atBackends}, p.where) >= 0
}

// partedPage is a page of a list that has several parts.
type partedPage struct {
	from   place
	pieces [][]byte
	n      int // number of entries
	room   int // number of entries that can still be added
	next   cursor
	cache  *method.Caching
}

func newPage(from place, room int, cache *method.Caching) partedPage {
	return partedPage{from: from, pieces: [][]byte{[]byte(`"` + from.list + `":[`)}, room: room, cache: cache}
}

// add adds an entry. It joins the pieces.
func (p *partedPage) add(pieces ...[]byte) {
	if p.n > 0 {
		p.pieces = append(p.pieces, comma)
	}
	p.pieces = append(p.pieces, pieces...)
	p.n++
	p.room--
}

// addCatalog adds entries of the catalog. form encodes an entry, or returns nil to leave it out.
func (p *partedPage) addCatalog(list entries, form func(listed) [][]byte) {
	last := "" // the last visible entry, because the caller must not learn the names of others
	for _, x := range list.all[min(p.from.first, len(list.all)):] {
		pieces := form(x)
		if pieces == nil {
			continue
		}
		if p.room == 0 {
			p.next = cursor{atCatalog, last}
			return
		}
		p.add(pieces...)
		last = x.entry.Name
	}
}

var comma = []byte(",")

// goesOn reports whether another part of the list follows on this page. If the page is full, the next page begins with that part.
func (p *partedPage) goesOn(part byte) bool {
	if p.next != (cursor{}) {
		return false
	}
	if p.room > 0 {
		return true
	}
	p.next = cursor{where: part}
	return false
}

// after returns the position at which a part begins on this page. It is empty unless the page begins within the part.
func (p *partedPage) after(part byte) string {
	if p.from.where != part {
		return ""
	}
	return p.from.after
}

var closing = []byte("]")

// result returns the page. All pages of a list must have the same scope (2026-07-28, Caching), so a list that is no longer public has to be
// read from the beginning.
func (p *partedPage) result(meta []byte) (method.Result, error) {
	switch p.from.scope {
	case method.Public:
		if p.cache.Scope != method.Public {
			return method.Result{}, errListCursor
		}
	case method.Private:
		p.cache.Scope = method.Private
	}
	r := method.Result{Members: append(p.pieces, closing), Meta: meta, Cache: p.cache}
	if p.next != (cursor{}) {
		r.Members = append(r.Members, p.next.member(p.from.list, p.cache.Scope))
	}
	return r, nil
}
