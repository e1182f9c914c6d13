package state

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Deliveries stores the deliveries that did not succeed with their first attempt: their items, due entries and events.
type Deliveries struct {
	DB     store.DB
	Queue  queue.Sender
	Now    func() time.Time
	Log    *slog.Logger
	bodies *bounded.Map[string, storedBody] // by workspace and key

	mu      sync.Mutex
	storing map[string]*newBody // events that are being stored, by workspace and key
}

// maxBodies bounds the events of which a process knows that they are stored.
const maxBodies = 20_000

// NewDeliveries returns the deliveries of a store. The clock and the log may be nil.
func NewDeliveries(db store.DB, q queue.Sender, now func() time.Time, log *slog.Logger) *Deliveries {
	if now == nil {
		now = time.Now
	}
	return &Deliveries{
		DB: db, Queue: q, Now: now, Log: cmp.Or(log, slog.Default()),
		bodies: bounded.NewMap[string, storedBody](maxBodies), storing: map[string]*newBody{},
	}
}

// RememberStored is how long a process remembers that an event is stored. The event may be deleted meanwhile, because the
// only subscriber whose delivery failed was erased.
const RememberStored = time.Minute

// expiryTolerance is how much earlier than required a stored event may expire. Most deliveries of an event fail within it,
// so its item is written once.
const expiryTolerance = time.Hour

// storedBody is what a process remembers about the event that is stored under a key.
type storedBody struct {
	published int64 // microseconds since 1970
	expires   time.Time
	seen      time.Time
}

// StoreBody stores the event of a delivery for its retries, for at least as long as keep. All subscribers share one item,
// which is written at the first failure and again when it would expire too early.
//
// If the item holds an event that was published under the same id at another time, StoreBody gives the delivery a key that
// includes the time of publication, so that both events are delivered.
func (ds *Deliveries) StoreBody(ctx context.Context, del *Delivery, e *event.Event, keep time.Duration) error {
	for range maxContests {
		body, err := ds.claimBody(ctx, del, e, keep)
		if body == nil || err != nil {
			return err
		}
		if err := ds.storeClaimed(ctx, body); err != nil {
			return fault.Wrap(fault.Unavailable, err, "store the event for its retries")
		}
	}
	return fault.New(fault.Unavailable, "store the event for its retries: its item changes too often")
}

// storeClaimed stores a claimed event and releases it.
func (ds *Deliveries) storeClaimed(ctx context.Context, body *newBody) (err error) {
	written := false
	defer func() { body.release(written, err) }()
	body.stored, err = ds.putBody(ctx, body.item, body.stored.published)
	written = err == nil
	return err
}

// newBody is an event that this process is about to store. Other deliveries of the event wait for its release.
type newBody struct {
	item   store.Item
	stored storedBody // the event in the store, if it was written
	// release ends the wait of the other deliveries. If the event could not be written because of an error, they fail with
	// that error. After a conflict they look again.
	release func(written bool, err error)
	done    chan struct{}
	err     error // may be read when done is closed
}

// claimBody returns the event of a delivery for storing it, or nil if this process knows that it is stored. It waits while
// another delivery stores the same event.
func (ds *Deliveries) claimBody(ctx context.Context, del *Delivery, e *event.Event, keep time.Duration) (*newBody, error) {
	now, published := ds.Now(), e.Published.UnixMicro()
	expires := now.Add(keep)
	for ctx.Err() == nil {
		id := e.Workspace + "#" + del.EventKey()
		ds.mu.Lock()
		known, ok := ds.bodies.Get(id)
		ok = ok && now.Sub(known.seen) < RememberStored
		storing := ds.storing[id]
		switch {
		case ok && known.published != published:
			ds.mu.Unlock()
			del.Key = del.ownKey()
			continue
		case ok && !known.expires.Before(expires.Add(-expiryTolerance)):
			ds.mu.Unlock()
			return nil, nil
		case storing != nil:
			ds.mu.Unlock()
			select {
			case <-storing.done:
				if storing.err != nil {
					return nil, storing.err
				}
			case <-ctx.Done():
			}
			continue
		}
		body := &newBody{done: make(chan struct{}), stored: storedBody{published: published, expires: expires}}
		ds.storing[id] = body
		ds.mu.Unlock()
		body.release = func(written bool, err error) {
			ds.mu.Lock()
			defer ds.mu.Unlock()
			switch {
			case written && body.stored != (storedBody{}):
				body.stored.seen = now
				ds.bodies.Put(id, body.stored)
			case err != nil && !errors.Is(err, store.ErrConflict) && !errors.Is(err, context.Canceled):
				body.err = fault.Wrap(fault.Unavailable, err, "store the event for its retries")
			}
			delete(ds.storing, id)
			close(body.done)
		}
		value, err := json.Marshal(e)
		if err != nil {
			body.release(false, nil)
			return nil, fault.Wrap(fault.Internal, err, "encode the event")
		}
		// The version is the expiry, so that of two processes that extend it the later expiry wins.
		body.item = store.Item{Key: BodyKey(e.Workspace, del.EventKey()), Value: value, Version: expires.Unix(), Expires: expires}
		return body, nil
	}
	return nil, fault.Wrap(fault.Unavailable, ctx.Err(), "wait for the event to be stored")
}

// putBody writes the item of an event, unless the stored item has another event or lasts long enough, and returns the stored
// body. The result is zero if another process changed the item meanwhile.
func (ds *Deliveries) putBody(ctx context.Context, it store.Item, published int64) (storedBody, error) {
	written := storedBody{published: published, expires: it.Expires}
	items, err := ds.DB.Get(ctx, it.Key) // first, because the event is usually stored
	if err != nil {
		return storedBody{}, err
	}
	unchanged := store.Absent()
	if items[0] != nil {
		if had, err := DecodeEvent(items[0]); err == nil {
			stored := storedBody{published: had.Published.UnixMicro(), expires: items[0].Expires}
			if stored.published != published || !stored.expires.Before(it.Expires.Add(-expiryTolerance)) {
				return stored, nil
			}
		}
		unchanged = store.VersionIs(items[0].Version)
	}
	err = ds.DB.Write(ctx, store.Put(it, unchanged))
	if errors.Is(err, store.ErrConflict) {
		return storedBody{}, nil
	}
	return written, err
}

// EventIn decodes the stored event of a delivery. It returns nil if the event is not stored, or if the stored event has the same
// id but another time of publication.
func (del *Delivery) EventIn(it *store.Item) (*event.Event, error) {
	if it == nil {
		return nil, nil
	}
	e, err := DecodeEvent(it)
	if err != nil || otherPublication(e.Published, del.Published) {
		return nil, err
	}
	return e, nil
}

func DecodeEvent(it *store.Item) (*event.Event, error) {
	var e event.Event
	if err := json.Unmarshal(it.Value, &e); err != nil {
		return nil, fault.Wrap(fault.Internal, err, "decode a stored event")
	}
	return &e, nil
}
