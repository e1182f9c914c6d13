package eventlog

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Appended is the result of [Log.Append].
type Appended struct {
	// First reports that these may be the first events of the URI on its day, which begins at the same time each day
	// (see dayOf).
	First bool
	// After is a position before all these events.
	After int64

	stamps map[string]int64 // the keys of the events in their own partition, by event id, where writers stamp
}

// appendTo appends events to a partition of the URI. It leaves out events that the partition's last segment already names.
func (l *Log) appendTo(ctx context.Context, p Partition, uri string, events []event.Event, copies ...Partition) (done Appended, err error) {
	last, err := l.DB.Query(ctx, store.Query{Table: store.Log, Partition: p.name, Reverse: true, Limit: 1})
	if err != nil {
		return done, fault.Wrap(fault.Unavailable, err, "read the end of the log of %s", uri)
	}
	done.After = l.Position()
	fresh := events
	var floor, before int64
	var written []event.Event // of the batch
	done.stamps = map[string]int64{}
	if len(last.Items) == 1 {
		end, err := parseKey(last.Items[0].Sort)
		if err != nil {
			return done, err
		}
		s, err := decodeSegment(last.Items[0])
		if err != nil && err != ErrLater {
			l.recordBroken(ctx, last.Items[0], err)
		}
		floor, before = end, end
		repeatable := l.keys().repeatable(end)
		fresh = slices.DeleteFunc(slices.Clone(events), func(e event.Event) bool {
			found := repeatable && s.has(&e, end)
			if found {
				written = append(written, e)
			}
			return found
		})
		for i, e := range written { // for an event of an earlier segment the key is not exact, but has the same order
			done.stamps[e.ID] = end - int64(len(written)-1-i)
		}
		if len(written) > 0 { // the earlier segments of the batch are shortly before this one
			done.After = min(done.After, end-time.Minute.Microseconds())
		}
	}
	again := len(written) > 0 // the batch was interrupted at an unknown point
	const timeSize = 17       // of a publication time in a list, until the year 2286
	room := maxSegment
	for _, e := range events {
		room -= len(e.ID) + 3 + timeSize
	}
	for _, part := range pack(fresh, room, store.MaxTransaction-1-len(copies)) {
		s := segment{V: segmentVersion, Events: part}
		for _, e := range written {
			s.Before, s.BeforeAt = append(s.Before, e.ID), append(s.BeforeAt, e.Published.UnixMicro())
		}
		if floor, err = l.keys().put(ctx, p, s, floor, copies...); err != nil {
			return done, fault.Wrap(fault.Unavailable, err, "append to the log of %s", uri)
		}
		for i, e := range part {
			done.stamps[e.ID] = floor - int64(len(part)-1-i)
		}
		written = append(written, part...)
	}
	done.First = again || dayOf(uri, before) != dayOf(uri, l.Time().UnixMicro())
	return done, nil
}

// dayOf returns the number of the URI's day to which a stamp belongs. The URI's hash chooses when its day begins. Otherwise,
// all sub-resources of a parent would be recorded in the parent's partition within seconds after midnight.
func dayOf(uri string, stamp int64) int64 {
	const day = 24 * time.Hour
	h := fnv.New32a()
	h.Write([]byte(uri))
	begins := time.Duration(h.Sum32()) * time.Second % day
	return (stamp + begins.Microseconds()) / day.Microseconds()
}

// item returns the item of a segment without its key, and how long the log keeps it.
func (l *Log) item(p Partition, s segment) (item store.Item, life time.Duration, err error) {
	value, err := s.encode()
	if life = l.Reaches() + time.Hour; s.life > 0 {
		life = min(life, s.life)
	}
	return store.Item{Key: store.Key{Table: store.Log, Partition: p.name}, Value: value, Version: int64(s.len())}, life, err
}

// Notify appends a notice to a topic.
func (l *Log) Notify(ctx context.Context, workspace, topic string, notice json.RawMessage) error {
	return l.NotifyAs(ctx, workspace, topic, nonce(), notice)
}

// NotifyAs is [Log.Notify] for a notice that several processes may append. Readers treat notices with the same id
// within a few seconds as one.
func (l *Log) NotifyAs(ctx context.Context, workspace, topic, id string, notice json.RawMessage) error {
	return l.notify(ctx, workspace, topic, id, notice, 0)
}

// NotifyFor is [Log.Notify] for a notice that is of no use after a while. Readers no longer get it after life, or
// after the retention if that is shorter.
func (l *Log) NotifyFor(ctx context.Context, workspace, topic string, life time.Duration, notice json.RawMessage) error {
	return l.notify(ctx, workspace, topic, nonce(), notice, life)
}

func (l *Log) notify(ctx context.Context, workspace, topic, id string, notice json.RawMessage, life time.Duration) error {
	s := segment{V: segmentVersion, Notices: []noticeEnvelope{{ID: id, Body: notice}}, life: life}
	if _, err := l.keys().put(ctx, Topic(workspace, topic), s, 0); err != nil {
		return fault.Wrap(fault.Unavailable, err, "notify topic %s", topic)
	}
	return nil
}

func nonce() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // crypto/rand.Read never fails (Go 1.24)
	return hex.EncodeToString(b[:])
}

// batches are the batches of events for which fanout is looking for subscribers or appending to the log in this process.
type batches struct {
	mu      sync.Mutex
	running map[chan struct{}]bool
}

// BeginBatch notes that a batch of events begins to look for subscribers. The caller calls end when the log has the events.
func (l *Log) BeginBatch() (end func()) {
	done := make(chan struct{})
	l.batches.mu.Lock()
	defer l.batches.mu.Unlock()
	if l.batches.running == nil {
		l.batches.running = map[chan struct{}]bool{}
	}
	l.batches.running[done] = true
	return func() {
		l.batches.mu.Lock()
		defer l.batches.mu.Unlock()
		delete(l.batches.running, done)
		close(done)
	}
}

// AwaitBatches waits until the batches that have begun in this process are in the log. A new subscriber calls it before it
// reads the log, because such a batch may have looked for subscribers before there was this one.
func (l *Log) AwaitBatches(ctx context.Context) error {
	l.batches.mu.Lock()
	var running []chan struct{}
	for done := range l.batches.running {
		running = append(running, done)
	}
	l.batches.mu.Unlock()
	for _, done := range running {
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
