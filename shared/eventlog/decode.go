package eventlog

import (
	"context"
	"encoding/json"
	"log/slog"

	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/store"
)

// errLater is a segment of a later release: it is whole, and whoever is of that release can read it.
var errLater = fault.New(fault.Unavailable, "a segment of the log is of a later release")

func decodeSegment(item store.Item) (s segment, err error) {
	if err := json.Unmarshal(item.Value, &s); err != nil {
		return segment{}, fault.Wrap(fault.Internal, err, "decode log segment %s", item.Sort)
	}
	if s.V > segmentVersion {
		return segment{}, errLater
	}
	if s.V != segmentVersion {
		return segment{}, fault.New(fault.Internal, "decode log segment %s: unknown version %d", item.Sort, s.V)
	}
	return s, nil
}

// decode returns the entries of an item. One that cannot be decoded has none: it must not stop
// its readers for ever.
func (l *Log) decode(ctx context.Context, item store.Item) ([]Entry, error) {
	last, err := parseKey(item.Sort)
	if err != nil {
		l.pass(ctx, item, err)
		return nil, nil
	}
	s, err := decodeSegment(item)
	if err == errLater {
		return nil, err
	}
	if err != nil {
		l.pass(ctx, item, err)
		return salvage(item, last), nil
	}
	// Where several write, their segments' keys would mingle if each entry had its own.
	first, step := last-int64(s.len())+1, int64(1)
	if len(item.Sort) > stampSize {
		first, step = last, 0
	}
	entries := make([]Entry, 0, s.len())
	for i := range s.Events {
		entries = append(entries, Entry{Key: first + step*int64(i), Event: &s.Events[i], id: s.Events[i].Key()})
	}
	for i, n := range s.Notices {
		entries = append(entries, Entry{Key: first + step*int64(i), NoticeID: n.ID, Notice: n.Body})
	}
	return entries, nil
}

// salvage returns those events of a broken segment that are whole.
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
			entries = append(entries, Entry{Key: first + int64(i), Event: &e, id: e.Key()})
		}
	}
	return entries
}

// pass counts and logs, once, an item that cannot be decoded.
func (l *Log) pass(ctx context.Context, item store.Item, err error) {
	if _, known := l.broken.Get(item.Key); known {
		return
	}
	l.broken.Put(item.Key, true)
	l.Broken.Add(1)
	slog.ErrorContext(ctx, "log item skipped", "partition", item.Partition, "key", item.Sort, "error", err)
}
