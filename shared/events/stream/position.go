package stream

import (
	"slices"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
)

// position is how far a feed has come in each of its partitions.
type position struct {
	log     *eventlog.Log
	sources map[string]*source // by the names of their partitions
	back    []*source          // the sources that still read their past
	sole    bool               // [Request.Sole]
	// begun is the position from which the feed was opened, and given is when that was the end of the log; see
	// [eventlog.Cursor.Given].
	begun, given int64
}

// source is one partition of a feed.
type source struct {
	part    eventlog.Partition
	pattern string // the key of the pattern, or the topic; no two patterns share a partition
	topic   bool
	growing bool // keys grow in commit order
	start   int64
	floor   int64  // every entry with a key up to it was returned
	past    int64  // how far the feed itself has read
	bound   int64  // no floor of the past may pass it; 0 is no bound
	handed  int64  // the greatest key returned, if keys are growing
	place   uint64 // names the partition of a concrete URI in a cursor
	// stuck says that the next item is of a later release. The source keeps its position, so that a client that resumes
	// when that release runs gets all entries after it. The other sources continue.
	stuck bool

	// The rest is for [exactMerge].
	ahead    []queued     // read and not returned yet
	caughtUp bool         // the tail has all later entries
	written  func() int64 // returns the last key that was written; nil if the store cannot be watched
}

func (at *position) has(s *source) bool { return at.sources[s.part.Name()] == s }

// furthestBack returns the source that is furthest back in its past, or nil if no source reads its past.
func (at *position) furthestBack() (behind *source) {
	if len(at.back) == 0 {
		return nil
	}
	at.back = slices.DeleteFunc(at.back, func(s *source) bool { return !at.has(s) }) // removed
	for _, s := range at.back {
		if behind == nil || s.past < behind.past {
			behind = s
		}
	}
	return behind
}

// leaveBack notes that a source has read its past.
func (at *position) leaveBack(s *source) {
	at.back = slices.DeleteFunc(at.back, func(other *source) bool { return other == s })
}

// recent remembers recently returned entries, oldest first. With it a feed drops entries that it reads twice, from the past
// and the tail of a partition or from overlapping partitions.
type recent struct {
	keys  map[string]handedOut
	order []string
}

// handedOut is the position of an entry that was returned.
type handedOut struct {
	key    int64
	placed bool // its partition has a place of its own in cursors
}

// maxRecent bounds the memory of a feed. Duplicates are at most [eventlog.Window] and a page apart. If there are more entries
// in that time, a feed may repeat some.
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

// idsAfter returns the ids of the entries with a greater key, and forgets old entries. If places is true, it leaves out entries
// of partitions with a place in the cursor.
func (r *recent) idsAfter(at int64, places bool) []string {
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
