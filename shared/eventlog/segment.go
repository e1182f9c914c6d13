package eventlog

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/store"
)

// segment is the value of a log item: entries that were written together. Its key is that of the last entry; the
// others have the keys just before.
type segment struct {
	V       int              `json:"v"`
	Events  []event.Event    `json:"e,omitempty"`
	Notices []noticeEnvelope `json:"n,omitempty"`
	// Before are the ids of the batch's events that earlier segments hold, and BeforeAt their publication times in
	// microseconds since 1970. So if the batch is repeated, its last segment tells which events were written. Segments
	// of earlier releases have no times.
	Before   []string `json:"b,omitempty"`
	BeforeAt []int64  `json:"bp,omitempty"`

	life  time.Duration // 0 is the retention plus an hour
	stamp int64         // of the last event in its own partition; 0 is unknown
}

type noticeEnvelope struct {
	ID   string          `json:"id"`
	Body json.RawMessage `json:"b"`
}

const segmentVersion = 1

func (s segment) encode() ([]byte, error) {
	events := s.Events
	s.Events = nil
	value, err := json.Marshal(s)
	if err == nil && len(events) > 0 {
		value = event.AppendMember(value, "e", events)
	}
	return value, err
}

// has reports whether the segment or an earlier one of its batch holds an event. end is the segment's stamp.
func (s segment) has(e *event.Event, end int64) bool {
	published := e.Published.UnixMicro()
	for i, id := range s.Before {
		switch {
		case id != e.ID:
		case len(s.BeforeAt) == len(s.Before):
			if s.BeforeAt[i] == published {
				return true
			}
		case published <= end: // the event was in the batch, or its publisher used the id again before the batch was written
			return true
		}
	}
	return slices.ContainsFunc(s.Events, func(seen event.Event) bool {
		return seen.ID == e.ID && seen.Published.UnixMicro() == published
	})
}

func (s segment) len() int { return len(s.Events) + len(s.Notices) }

// maxSegment keeps a segment under the limit of an item, with room for keys.
const maxSegment = store.MaxItem - 4<<10

// pack divides events into segments of at most room bytes and most events.
func pack(events []event.Event, room, most int) [][]event.Event {
	var out [][]event.Event
	size := 0
	for i, e := range events {
		n := len(e.Data) + len(e.URI) + 512
		if i == 0 || size+n > room || len(out[len(out)-1]) == most {
			out, size = append(out, nil), 0
		}
		out[len(out)-1] = append(out[len(out)-1], e)
		size += n
	}
	return out
}

// ErrLater is returned for a segment of a later release, which that release can read. A reader stops before it in its
// partition and continues with the others.
var ErrLater = fault.New(fault.Unavailable, "a segment of the log is of a later release")

func decodeSegment(item store.Item) (s segment, err error) {
	if err := json.Unmarshal(item.Value, &s); err != nil {
		return segment{}, fault.Wrap(fault.Internal, err, "decode log segment %s", item.Sort)
	}
	if s.V > segmentVersion {
		return segment{}, ErrLater
	}
	if s.V != segmentVersion {
		return segment{}, fault.New(fault.Internal, "decode log segment %s: unknown version %d", item.Sort, s.V)
	}
	return s, nil
}

// decode returns the entries of an item. An item that cannot be decoded has none, so that it does not stop its
// readers for ever.
func (l *Log) decode(ctx context.Context, item store.Item) ([]Entry, error) {
	last, err := parseKey(item.Sort)
	if err != nil {
		l.pass(ctx, item, err)
		return nil, nil
	}
	s, err := decodeSegment(item)
	if err == ErrLater {
		if l.count(item) {
			slog.ErrorContext(ctx, "log item of later release", "partition", item.Partition, "key", item.Sort)
		}
		return nil, err
	}
	if err != nil {
		l.pass(ctx, item, err)
		return salvage(item, last), nil
	}
	// With several writers, entries with keys of their own would mix with those of other segments.
	first, step := last-int64(s.len())+1, int64(1)
	if len(item.Sort) > stampSize {
		first, step = last, 0
	}
	entries := make([]Entry, 0, s.len())
	for i := range s.Events {
		entries = append(entries, eventEntry(first+step*int64(i), &s.Events[i]))
	}
	for i, n := range s.Notices {
		entries = append(entries, Entry{Key: first + step*int64(i), NoticeID: n.ID, Notice: n.Body})
	}
	return entries, nil
}

// salvage returns the events of a broken segment that can be decoded.
func salvage(item store.Item, last int64) (entries []Entry) {
	var s struct {
		V      int               `json:"v"`
		Events []json.RawMessage `json:"e"`
	}
	if json.Unmarshal(item.Value, &s) != nil || s.V != segmentVersion {
		return nil
	}
	first := last - int64(len(s.Events)) + 1
	for i, raw := range s.Events {
		var e event.Event
		if json.Unmarshal(raw, &e) == nil {
			entries = append(entries, eventEntry(first+int64(i), &e))
		}
	}
	return entries
}

// pass counts and logs, once, an item that cannot be decoded.
func (l *Log) pass(ctx context.Context, item store.Item, err error) {
	if l.count(item) {
		slog.ErrorContext(ctx, "log item skipped", "partition", item.Partition, "key", item.Sort, "error", err)
	}
}

// count counts an item that cannot be read, and reports whether it is the first time.
func (l *Log) count(item store.Item) bool {
	if _, known := l.broken.Get(item.Key); known {
		return false
	}
	l.broken.Put(item.Key, true)
	l.Broken.Add(1)
	return true
}
