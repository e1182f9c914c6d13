package events

import (
	"bytes"
	"strings"

	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/opaque"
)

// cursor is where a list goes on: after the entry of the catalog of that name, after the
// subscription with that id, or after a cursor of the backends' list. The zero value is nowhere.
type cursor struct {
	where byte
	after string
}

// The parts of a list. In a cursor of a list that is public the letter is a capital.
const (
	atCatalog       = 'c'
	atSubscriptions = 's'
	atBackends      = 'b'
)

// maxCursor bounds what is in a cursor, in bytes: the name of its list, the longest name of an entry, and more.
const maxCursor = 1200

// member is nextCursor in a result of that scope, for the list of that name.
func (c cursor) member(list, scope string) []byte {
	where := c.where
	if scope == method.Public {
		where -= 'a' - 'A'
	}
	b := append([]byte(`,"nextCursor":"`), opaque.Encode(append([]byte{where}, list+" "+c.after...))...)
	return append(b, '"')
}

// place is where a page begins.
type place struct {
	cursor
	list  string // its member in the result, which its cursors are for
	first int    // among the catalog's entries
	// scope is that of the page before; empty for the first.
	scope string
}

// readPlace reads the cursor of a request for a list; at is where the entries of the catalog are.
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

var errListCursor = method.InvalidParams("the cursor is not one of this list")

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
	n      int // entries so far
	room   int // how many more there may be
	next   cursor
	cache  *method.Caching
}

func newPage(from place, room int, cache *method.Caching) partedPage {
	return partedPage{from: from, pieces: [][]byte{[]byte(`"` + from.list + `":[`)}, room: room, cache: cache}
}

// add adds an entry, of which the pieces are joined.
func (p *partedPage) add(pieces ...[]byte) {
	if p.n > 0 {
		p.pieces = append(p.pieces, comma)
	}
	p.pieces = append(p.pieces, pieces...)
	p.n++
	p.room--
}

// addCatalog adds those entries of the catalog of which form makes something.
func (p *partedPage) addCatalog(list entries, form func(listed) [][]byte) {
	last := "" // not just the one before: its name may be none of the caller's business
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

// goesOn reports whether another part follows on this page; if it would but there
// is no room, it begins the next one.
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

// after is where a part begins on this page: its beginning, unless the page begins within it.
func (p *partedPage) after(part byte) string {
	if p.from.where != part {
		return ""
	}
	return p.from.after
}

var closing = []byte("]")

// result ends the page. All pages of a list have the same scope (2026-07-28, Caching): one that
// is not public any more is to be read from its beginning.
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
