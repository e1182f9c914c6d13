package stream

import (
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
)

// recent remembers what was returned lately, oldest first. With it a feed drops what the past and the tail of a
// partition, or overlapping partitions, bring twice.
type recent struct {
	keys  map[string]handedOut
	order []string
}

// handedOut is the position of an entry that was returned.
type handedOut struct {
	key    int64
	placed bool // its partition has a place of its own in cursors
}

// maxRecent bounds the memory of a feed. Duplicates are at most [eventlog.Window] and a page apart. With more entries in
// that time a feed repeats some.
const maxRecent = 4096

func (r *recent) add(id string, key int64, placed bool) bool {
	if _, ok := r.keys[id]; ok {
		return false
	}
	if r.keys == nil {
		r.keys = map[string]handedOut{}
	}
	if len(r.order) >= maxRecent {
		delete(r.keys, r.order[0])
		r.order = r.order[1:]
	}
	r.keys[id] = handedOut{key, placed}
	r.order = append(r.order, id)
	return true
}

// after lists the entries with a greater key. With places it leaves out those whose place is in the cursor. It forgets
// old entries.
func (r *recent) after(at int64, places bool) []string {
	for len(r.order) > 0 && r.keys[r.order[0]].key < at-2*eventlog.Window.Microseconds() {
		delete(r.keys, r.order[0])
		r.order = r.order[1:]
	}
	var ids []string
	for _, id := range r.order {
		if h := r.keys[id]; h.key > at && !(places && h.placed) {
			if ids = append(ids, id); len(ids) > eventlog.MaxSent {
				return ids
			}
		}
	}
	return ids
}
