package eventlog

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// segment is the value of a log item. It has entries that were written together. The item's key is the key of the last entry,
// and the other entries have the keys just before it.
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

// events returns the readable entries of an item. It returns no entries for an item of a later release.
func (l *Log) events(ctx context.Context, item store.Item) []Entry {
	entries, _ := l.decode(ctx, item)
	return slices.DeleteFunc(entries, func(e Entry) bool { return e.Lost })
}

// decode returns the entries of an item. If the item cannot be decoded, one of them is [Entry.Lost], so that readers can
// continue after it and notify their clients.
func (l *Log) decode(ctx context.Context, item store.Item) ([]Entry, error) {
	last, err := parseKey(item.Sort)
	if err != nil {
		l.recordBroken(ctx, item, err)
		return nil, nil
	}
	s, err := decodeSegment(item)
	if err == ErrLater {
		if l.countBroken(item) {
			slog.ErrorContext(ctx, "log item of later release", "partition", item.Partition, "key", item.Sort)
		}
		return nil, err
	}
	if err != nil {
		l.recordBroken(ctx, item, err)
		return salvage(item, last), nil
	}
	first, step := keysOf(item, last, s.len())
	entries := make([]Entry, 0, s.len())
	for i := range s.Events {
		entries = append(entries, eventEntry(first+step*int64(i), &s.Events[i]))
	}
	for i, n := range s.Notices {
		entries = append(entries, Entry{Key: first + step*int64(i), NoticeID: n.ID, Notice: n.Body})
	}
	return entries, nil
}

// keysOf returns the key of the first of n entries of an item, and the distance between their keys. The distance is 0 in a
// partition with several writers, because different keys would mix the entries with the entries of other segments.
func keysOf(item store.Item, last int64, n int) (first, step int64) {
	if len(item.Sort) > stampSize {
		return last, 0
	}
	return last - int64(n) + 1, 1
}

// lostEntry returns the entry for the events of an item that cannot be read.
func lostEntry(item store.Item, key int64) Entry {
	return Entry{Key: key, Lost: true, id: "lost#" + item.Partition + "#" + item.Sort}
}

// salvage returns the events of a broken segment that can be decoded, and an entry for the others, with the key of the first of
// them.
func salvage(item store.Item, last int64) (entries []Entry) {
	lost := lostEntry(item, last)
	var s struct {
		V      int               `json:"v"`
		Events []json.RawMessage `json:"e"`
	}
	if json.Unmarshal(item.Value, &s) != nil || s.V != segmentVersion || len(s.Events) == 0 {
		return []Entry{lost}
	}
	first, step := keysOf(item, last, len(s.Events))
	added := false
	for i, raw := range s.Events {
		var e event.Event
		if json.Unmarshal(raw, &e) == nil {
			entries = append(entries, eventEntry(first+step*int64(i), &e))
		} else if !added {
			lost.Key, added = first+step*int64(i), true
			entries = append(entries, lost)
		}
	}
	return entries
}

// recordBroken counts and logs, once, an item that cannot be decoded, and records it for operators. The item itself stays where it is,
// so that all its readers meet it.
func (l *Log) recordBroken(ctx context.Context, item store.Item, reason error) {
	if !l.countBroken(item) {
		return
	}
	slog.ErrorContext(ctx, "log item skipped", "partition", item.Partition, "key", item.Sort, "error", reason)
	value, _ := json.Marshal(brokenItem{segmentVersion, item.Partition, item.Sort}) // texts
	hash := sha256.Sum256([]byte(item.Partition + "\x00" + item.Sort))
	record := store.Item{
		Key:   store.Key{Table: store.Log, Partition: brokenItems, Sort: hex.EncodeToString(hash[:])},
		Value: value, Expires: l.KeptUntil().Add(time.Hour),
	}
	if err := l.DB.Write(ctx, store.Put(record, store.Absent())); err != nil && !errors.Is(err, store.ErrConflict) {
		slog.WarnContext(ctx, "skipped log item not recorded", "error", err)
	}
}

// brokenItem names an item of the log that cannot be decoded.
type brokenItem struct {
	V         int    `json:"v"`
	Partition string `json:"p"`
	Sort      string `json:"s"`
}

const brokenItems = "x#"

// BrokenItems calls visit with the items that readers could not decode. If visit fails for an item, the next call visits it
// again. The record of an item stays as long as readers may find the item, so that they do not record it again.
func (l *Log) BrokenItems(ctx context.Context, visit func(*store.Item) error) error {
	partition := store.Key{Table: store.Log, Partition: brokenItems}
	return store.Each(ctx, l.DB, partition, "list undecodable items of the log", func(record *store.Item) error {
		var b brokenItem
		if record.Version != 0 || json.Unmarshal(record.Value, &b) != nil {
			return nil
		}
		item, err := store.One(ctx, l.DB, store.Key{Table: store.Log, Partition: b.Partition, Sort: b.Sort}, "read an undecodable item of the log")
		if err != nil {
			return err
		}
		if item != nil {
			if err := visit(item); err != nil {
				return err
			}
		}
		record.Version = 1
		return fault.Wrap(fault.Unavailable, l.DB.Write(ctx, store.Put(*record)), "note that an item of the log was dead-lettered")
	})
}

// countBroken counts an item that cannot be read, and reports whether it is the first time.
func (l *Log) countBroken(item store.Item) bool {
	if _, known := l.broken.Get(item.Key); known {
		return false
	}
	l.broken.Put(item.Key, true)
	l.Broken.Add(1)
	return true
}
