// Package deadletter lists and retries dead letters: webhook deliveries that were given up, and queue messages that no handler could
// process. It also delivers past events again (replays), and finds all data that the store has about a subscription's deliveries.
package deadletter

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/opaque"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Letter is a dead letter: a webhook delivery that was given up, or a queue message that no handler could process. Attributes are set
// only for a message, and Subscription only for a delivery.
type Letter struct {
	ID           string
	Queue        string // [WebhookQueue] if the letter is a delivery
	Attributes   map[string]string
	Subscription string
	Principal    string
	Protocol     subscription.Origin
	Event        string
	URI, Name    string
	Origin       string
	// Reason is the category of a delivery's last failure, or "expired" if the delivery was never attempted. For a message, it is the
	// reason why its queue gave the message up.
	Reason   string
	Dead     time.Time
	First    time.Time
	Attempts []state.Result
	Test     bool
}

// ReasonExpired is the reason of a dead letter whose delivery was never attempted. Usually, the event was no longer stored when the
// attempt was due.
const ReasonExpired = "expired"

func letterOf(del *state.Delivery, at time.Time) Letter {
	l := Letter{
		ID:    encodeLetterID(fmt.Sprintf("%s#%016d#%s", del.Subscription, at.UnixMicro(), del.EventKey())),
		Queue: WebhookQueue, Subscription: del.Subscription, Principal: del.Principal, Protocol: del.Origin,
		Event: del.Event, URI: del.URI, Name: del.Name, Origin: subscription.OriginOf(del.Target), Reason: ReasonExpired, Dead: at.UTC(),
		First: del.First, Attempts: del.Attempts, Test: del.Test,
	}
	if n := len(del.Attempts); n > 0 {
		l.Reason = del.Attempts[n-1].Category
	}
	return l
}

// encodeLetterID returns the id of a dead letter, which encodes where the letter is stored. For a webhook delivery, the parameter place is
// the id of the subscription, a #, and the letter's sort key in the subscription's list of dead letters.
func encodeLetterID(place string) string { return opaque.Encode([]byte(place)) }

func parseLetterID(id string) (sub, sort string, ok bool) {
	b, err := opaque.Decode(id)
	sub, sort, found := strings.Cut(string(b), "#")
	return sub, sort, err == nil && found && sub != "" && len(sort) > 17 && len(sort) <= 400
}

// LetterQuery selects the dead letters that match all of its fields. Empty fields match every letter.
type LetterQuery struct {
	Subscription string
	Origin       string
	Event        string // the name of the event type
	Queue        string
	records.Span
}

// Options configure [Operations]. DB and Queue must be set.
type Options struct {
	DB    store.DB
	Queue queue.Sender
	Now   func() time.Time
	Log   *slog.Logger
	// Metrics counts the messages that AWS services put into the dead letter queue.
	Metrics *metric.Set
}

// Operations lists and retries dead letters, delivers events again, and sends test events. It also finds a subscription's stored data,
// which package erase deletes. Create it with [NewOperations].
type Operations struct {
	Deliveries *state.Deliveries
	metrics    *metric.Set
	tests      *quota.Buckets[string] // limits test events, by endpoint
}

const maxTested = 20_000 // the maximum number of endpoints in Operations.tests

// NewOperations returns Operations for the store o.DB.
func NewOperations(o Options) *Operations {
	return &Operations{
		Deliveries: state.NewDeliveries(o.DB, o.Queue, o.Now, o.Log), metrics: o.Metrics, tests: quota.NewBuckets[string](1, 1, maxTested),
	}
}

// ListLetters returns a page of the dead letters that match a query, newest first. It pages and filters like [records.List], so a
// page may be short or empty although more pages follow.
func (o *Operations) ListLetters(ctx context.Context, workspace string, ask LetterQuery, before string, limit int) (list []Letter, next string, err error) {
	return o.listUpTo(ctx, workspace, ask, before, limit, records.MaxRead)
}

func (o *Operations) listUpTo(ctx context.Context, workspace string, ask LetterQuery, before string, limit, most int) ([]Letter, string, error) {
	q := store.Query{Table: store.Deliveries, Before: before, Limit: limit}
	switch {
	case ask.Subscription != "":
		q.Partition = state.LettersOf(workspace, ask.Subscription).Partition
	case ask.Origin != "":
		q.Partition = "xo#" + workspace + "#" + ask.Origin
	case ask.Event != "":
		q.Partition = "xe#" + workspace + "#" + ask.Event
	case ask.Queue != "" && ask.Queue != WebhookQueue:
		q.Partition = "xq#" + workspace + "#" + ask.Queue
	default:
		q.Partition = "xa#" + workspace
	}
	return records.ListNewest(ctx, o.Deliveries.DB, q, most, ask.Span, "list dead letters", func(it *store.Item) (Letter, bool, error) {
		l, err := readLetter(it)
		return l, ask.matches(l), err
	})
}

func (ask LetterQuery) matches(l Letter) bool {
	return (ask.Subscription == "" || ask.Subscription == l.Subscription) && (ask.Origin == "" || ask.Origin == l.Origin) &&
		(ask.Event == "" || ask.Event == l.Name) && (ask.Queue == "" || ask.Queue == l.Queue)
}

func readLetter(it *store.Item) (Letter, error) {
	if _, rest, _ := strings.Cut(it.Sort, "#"); strings.HasPrefix(rest, ofQueue) {
		return decodeQueueLetter(it)
	}
	del, at, err := DecodeLetter(it)
	if err != nil {
		return Letter{}, err
	}
	return letterOf(del, at), nil
}

// DecodeLetter returns the delivery of a webhook's dead letter, and when the delivery was given up. Do not call it for a queue's dead
// letter, which has a message instead of a delivery.
func DecodeLetter(it *store.Item) (*state.Delivery, time.Time, error) {
	del, err := state.Decode(it)
	if err != nil {
		return nil, time.Time{}, err
	}
	// Clear the fields that describe the stored delivery, because the dead letter is only a copy of the delivery.
	del.Version, del.Stored, del.Place, del.Died = 0, state.None, store.Key{}, time.Time{}
	var micros int64
	if _, err := fmt.Sscanf(it.Sort, "%d#", &micros); err != nil {
		return nil, time.Time{}, fault.Wrap(fault.Internal, err, "decode the key of a dead letter")
	}
	return del, time.UnixMicro(micros), nil
}

// FindLetter returns the dead letter with this id, or nil if it does not exist.
func (o *Operations) FindLetter(ctx context.Context, workspace, id string) (*Letter, error) {
	it, err := o.findOfQueue(ctx, workspace, id)
	if err == nil && it == nil {
		it, err = o.findOfWebhook(ctx, workspace, id)
	}
	if err != nil || it == nil {
		return nil, err
	}
	l, err := readLetter(it)
	return &l, err
}

func (o *Operations) findOfWebhook(ctx context.Context, workspace, id string) (*store.Item, error) {
	sub, sort, ok := parseLetterID(id)
	if !ok {
		return nil, nil
	}
	key := state.LettersOf(workspace, sub)
	key.Sort = sort
	return store.One(ctx, o.Deliveries.DB, key, "read a dead letter")
}

// Retry retries a dead letter and deletes it. For a webhook, it delivers the event again after a delay, with the same webhook-id and a
// new retry schedule. For a queue, it sends the message back to the queue.
//
// Retry returns false if the letter no longer exists. The error is of kind Conflict if the letter cannot be retried, for example because
// its subscription has ended.
func (o *Operations) Retry(ctx context.Context, workspace string, l Letter, sub *subscription.Subscription, delay time.Duration) (bool, error) {
	if l.Queue != WebhookQueue {
		return o.sendBack(ctx, workspace, l.ID, delay)
	}
	return o.retry(ctx, workspace, l.ID, sub, delay)
}

func (o *Operations) retry(ctx context.Context, workspace, id string, sub *subscription.Subscription, delay time.Duration) (bool, error) {
	it, err := o.findOfWebhook(ctx, workspace, id)
	if err != nil || it == nil {
		return false, err
	}
	del, at, err := DecodeLetter(it)
	if err != nil {
		return false, err
	}
	if sub == nil || sub.State == subscription.Disabled {
		return false, newSkippedError(SkippedEnded, "the subscription of the dead letter has ended")
	}
	if sub.State == subscription.Suspended {
		return false, newSkippedError(SkippedSuspended, "the subscription of the dead letter is suspended until its subscriber refreshes it (events/subscribe); retry it after that")
	}
	items, err := o.Deliveries.DB.Get(ctx, state.Key(workspace, del.Subscription, del.EventKey()), state.BodyKey(workspace, del.EventKey()))
	if err != nil {
		return false, fault.Wrap(fault.Unavailable, err, "read a dead letter")
	}
	e, err := del.EventIn(items[1])
	if err != nil {
		o.Deliveries.Log.ErrorContext(ctx, "stored event not decoded", "workspace", workspace, "event", del.Event, "error", err)
		return false, newSkippedError(SkippedExpired, "the event of the dead letter cannot be decoded")
	}
	if e == nil {
		return false, newSkippedError(SkippedExpired, "the event of the dead letter is not stored any more")
	}
	now := o.Deliveries.Now()
	if items[0] != nil {
		current, err := state.Decode(items[0])
		if err != nil {
			return false, o.Deliveries.SetAside(ctx, items[0], err)
		}
		if state.IsUnderWay(current.Stored) {
			if left, err := o.findOfWebhook(ctx, workspace, id); err != nil || left == nil {
				return false, err // another worker has retried the letter meanwhile
			}
			return false, newSkippedError(SkippedUnderway, "the event is being delivered to the subscription already")
		}
		del.Base = len(del.Attempts) // so that TakePlaceOf does not add the letter's attempts, which the stored delivery already has
		del.TakePlaceOf(current)
	}
	keys := del.LetterKeys(at)
	gone := []store.Op{store.Delete(keys[0], store.Exists())}
	for _, key := range keys[1:] {
		gone = append(gone, store.Delete(key))
	}
	if err := o.Deliveries.StoreBody(ctx, del, e, state.RetriedFor); err != nil { // keep the event for as long as the new retries may take
		return false, err
	}
	del.Again, del.First, del.Base, del.Target = true, now, len(del.Attempts), sub.Target.URL
	return o.Deliveries.Schedule(ctx, del, nil, now.Add(delay), gone...)
}

// SendTest delivers a test event to a subscription and returns the event's id. Each process sends an endpoint at most one test event per
// second, because anybody who may subscribe could otherwise flood the endpoint. For further test events, the error is of kind Exhausted
// with [quota.RetryAfter].
func (o *Operations) SendTest(ctx context.Context, sub *subscription.Subscription) (id string, err error) {
	now := o.Deliveries.Now().UTC()
	if !o.tests.Get(task.EndpointID(sub.Target.URL)).AllowN(now, 1) {
		return "", quota.Exceeded("testsPerEndpoint", 1, "the limit testsPerEndpoint of 1 test event per second is reached")
	}
	e := event.Event{
		Workspace: sub.Workspace, ID: "test_" + event.NewID(), URI: sub.EventURIs[0], Name: TestType, Time: now, Published: now,
		Data: json.RawMessage(`{"test":true}`),
	}
	if sub.Origin == subscription.MCPEvents { // an MCP Events endpoint expects the event name to which the client subscribed
		e.Name = sub.Name
	}
	return e.ID, o.deliver(ctx, sub, &e, true)
}

// TestType is the "type" in the webhook of a test event.
const TestType = "mcpevents.test"

// Deliver delivers an event to a subscription again, with the same event id. The error is of kind Conflict if the event is
// already being delivered to the subscription.
func (o *Operations) Deliver(ctx context.Context, sub *subscription.Subscription, e *event.Event) error {
	return o.deliver(ctx, sub, e, false)
}

func (o *Operations) deliver(ctx context.Context, sub *subscription.Subscription, e *event.Event, test bool) error {
	now := o.Deliveries.Now()
	subscriber := sub.Subscriber()
	del := state.New(&subscriber, e, now)
	del.Test, del.Again = test, true
	written, err := o.Deliveries.Schedule(ctx, del, e, now)
	if err == nil && !written {
		return fault.New(fault.Conflict, "the event is being delivered to the subscription already")
	}
	return err
}

// FindStoredEvent returns an event with its payload, or nil if the event is not stored. The store keeps an event only while a delivery of
// the event may be retried.
func (o *Operations) FindStoredEvent(ctx context.Context, workspace, uri, id string) (*event.Event, error) {
	it, err := store.One(ctx, o.Deliveries.DB, state.BodyKey(workspace, event.Event{URI: uri, ID: id}.Key()), "read a stored event")
	if err != nil || it == nil {
		return nil, err
	}
	return state.DecodeEvent(it)
}

// MergeLetters lists the dead letters of several subscriptions like [Operations.ListLetters], newest first. If subs is nil, it lists the
// letters of all subscriptions.
func (o *Operations) MergeLetters(ctx context.Context, workspace string, subs []string, ask LetterQuery, before string, limit int) ([]Letter, string, error) {
	if subs == nil {
		return o.ListLetters(ctx, workspace, ask, before, limit)
	}
	return records.MergeLists(subs, before, limit, func(id, before string, limit int) ([]Letter, string, error) {
		ask.Subscription = id
		return o.listUpTo(ctx, workspace, ask, before, limit, records.MaxRead/len(subs))
	}, func(l Letter) string {
		_, sort, _ := parseLetterID(l.ID)
		return sort
	})
}

// StoredData is one piece of data that the store has about a subscription. Kind says whether it is, for example, a dead letter or a
// delivery. The data may consist of several items, whose keys are in Keys.
type StoredData struct {
	Kind string
	Keys []store.Key
	// At is when the data was created, or zero if that is unknown.
	At time.Time
	// For a delivery or its dead letter, Body is the key of the stored event, and URI is the event's URI. Own is true for a test event,
	// because no other subscription uses its stored event.
	Body store.Key
	URI  string
	Own  bool
}

// VisitStoredData calls visit for each piece of data that the store has about the deliveries of a subscription, for example for each dead
// letter. The parameter id is the subscription's id.
func (o *Operations) VisitStoredData(ctx context.Context, workspace, id string, visit func(StoredData) error) error {
	visitPartition := func(kind string, partition store.Key, add func(*store.Item, *StoredData)) error {
		return store.Each(ctx, o.Deliveries.DB, partition, "list what is stored of a subscription", func(it *store.Item) error {
			b := StoredData{Kind: kind, Keys: []store.Key{it.Key}}
			if add != nil {
				add(it, &b)
			}
			return visit(b)
		})
	}
	body := func(del *state.Delivery, b *StoredData) {
		b.Body, b.URI, b.Own = state.BodyKey(workspace, del.EventKey()), del.URI, del.Test
	}
	err := visitPartition("deliveries", state.Key(workspace, id, ""), func(it *store.Item, b *StoredData) {
		if del, err := state.Decode(it); err == nil {
			body(del, b)
			b.At = del.First
			if del.Place != (store.Key{}) {
				b.Keys = append(b.Keys, del.Place)
			}
		}
	})
	if err == nil {
		err = visitPartition("deadLetters", state.LettersOf(workspace, id), func(it *store.Item, b *StoredData) {
			if del, at, err := DecodeLetter(it); err == nil {
				body(del, b)
				b.At, b.Keys = at, del.LetterKeys(at)
			}
		})
	}
	if err == nil {
		err = visitPartition("records", store.Key{Table: store.Deliveries, Partition: records.BySubscription(workspace, id)}, func(it *store.Item, b *StoredData) {
			var r records.Record
			stamp, rest, ok := strings.Cut(it.Sort, "#")
			if json.Unmarshal(it.Value, &r) != nil || !ok {
				return
			}
			b.At = r.At
			for _, partition := range []string{records.ByEvent(workspace, r.Event), records.ByOrigin(workspace, r.Origin), records.OfAll(workspace)} {
				b.Keys = append(b.Keys, store.Key{Table: store.Deliveries, Partition: partition, Sort: stamp + "#" + id + "#" + rest})
			}
		})
	}
	if err == nil {
		err = visitPartition("statuses", subscription.StatusKey(workspace, id), nil)
	}
	if err == nil {
		err = visitPartition("statuses", state.GapKey(workspace, id), nil)
	}
	return err
}

// An attempt under way may still write items after its subscription was erased. So the store keeps the ids of erased
// subscriptions for [erasedSwept], and a periodic job deletes items of subscriptions with these ids ([Operations.SweepErased]).
// To save space, an id is stored as 16 raw bytes, without the prefix "sub_".

const (
	ErasedPartition = "erased"
	erasedSwept     = 5 * time.Minute
	// maxErased limits the erased subscriptions in one stored item, and erasedID is the size of an id in bytes.
	maxErased = 10_000
	erasedID  = 16
)

type erased struct {
	Workspace string `json:"ws"`
	At        int64  `json:"at"` // the time of the erasure, in seconds since 1970
	IDs       []byte `json:"ids"`
}

// SweepLater records the ids of erased subscriptions for [Operations.SweepErased], because running attempts may still write items
// of these subscriptions.
func (o *Operations) SweepLater(ctx context.Context, workspace string, ids []string) error {
	var numbers []byte
	for _, id := range ids {
		if n, err := hex.DecodeString(strings.TrimPrefix(id, "sub_")); err == nil && len(n) == erasedID {
			numbers = append(numbers, n...)
		}
	}
	if len(numbers) == 0 {
		return nil
	}
	if q, ok := o.Deliveries.Queue.(queue.Discarder); ok { // the subscriptions' deliveries were deleted, so their messages are useless
		if err := q.Discard(ctx, queue.Slow, ids...); err != nil {
			return err
		}
	}
	now := o.Deliveries.Now()
	var ops []store.Op
	for part := range slices.Chunk(numbers, maxErased*erasedID) {
		value, _ := json.Marshal(erased{Workspace: workspace, At: now.Unix(), IDs: part}) // cannot fail for strings and numbers
		key := store.Key{Table: store.Deliveries, Partition: ErasedPartition, Sort: fmt.Sprintf("%016d#%s", now.UnixMicro(), rand.Text())}
		ops = append(ops, store.Put(store.Item{Key: key, Value: value}))
	}
	return fault.Wrap(fault.Unavailable, o.Deliveries.DB.WriteAll(ctx, ops...), "record the erased subscriptions")
}

// SweepErased deletes the items that were written for subscriptions after their erasure, and returns how many pieces of data it deleted. If
// a client has created a subscription with the same id again, the items of the new subscription stay.
func (o *Operations) SweepErased(ctx context.Context) (n int, err error) {
	err = store.Each(ctx, o.Deliveries.DB, store.Key{Table: store.Deliveries, Partition: ErasedPartition}, "list the erasures", func(it *store.Item) error {
		var e erased
		if err := json.Unmarshal(it.Value, &e); err != nil {
			return o.Deliveries.SetAside(ctx, it, fault.Wrap(fault.Internal, err, "decode an erasure"))
		}
		var ops []store.Op
		for number := range slices.Chunk(e.IDs, erasedID) {
			id := "sub_" + hex.EncodeToString(number)
			subs := subscription.Service{Store: subscription.Store{DB: o.Deliveries.DB, Now: o.Deliveries.Now}}
			again, err := subs.Find(ctx, e.Workspace, id)
			if err != nil {
				return err
			}
			err = o.VisitStoredData(ctx, e.Workspace, id, func(b StoredData) error {
				if again != nil && (b.At.IsZero() || !b.At.Before(again.Created)) {
					return nil
				}
				n++
				for _, key := range b.Keys {
					ops = append(ops, store.Delete(key))
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		if o.Deliveries.Now().Sub(time.Unix(e.At, 0)) > erasedSwept {
			ops = append(ops, store.Delete(it.Key))
		}
		if len(ops) == 0 {
			return nil
		}
		return o.Deliveries.DB.WriteAll(ctx, ops...)
	})
	if err == nil && n > 0 {
		err = store.Scrub(ctx, o.Deliveries.DB)
	}
	return n, fault.Wrap(fault.Unavailable, err, "delete the records that were written after an erasure")
}
