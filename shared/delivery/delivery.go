package delivery

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/queue"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/subscription"
	"github.com/mcp-events/mcpevents/shared/switches"
)

// A delivery that does not succeed at once is kept as one item per (subscription, event), with
// its attempts. The rules that keep it from being attempted twice at the same time:
//
//   - Its version is the number of attempts recorded plus one. An outcome is
//     written only over the version it follows, so of two workers that made
//     the same attempt one records it, and only that one schedules the next.
//   - The item and its due entry are written in one transaction, before the
//     message for the next attempt is sent. A worker that dies in between loses
//     the message, not the delivery: the due entry brings it back.
//   - A message whose attempt is not the delivery's next one is stale and dropped.

// delivery is the value of its item.
type delivery struct {
	V            int                 `json:"v"`
	Workspace    string              `json:"ws"`
	Principal    string              `json:"pr"`
	Subscription string              `json:"sub"`
	Origin       subscription.Origin `json:"o"`
	Event        string              `json:"ev"`
	Key          string              `json:"k,omitempty"` // as in [SingleTask]
	URI          string              `json:"uri"`
	Name         string              `json:"name"`
	Target       string              `json:"url"`
	State        string              `json:"st"` // one of the state constants
	First        time.Time           `json:"t1"`
	Published    time.Time           `json:"pub,omitzero"` // the event, for [Watermark]
	// Due is when the next attempt is to be made, DueAt when its due entry acts:
	// the same when the queue cannot delay a message that long, and else a while
	// later, as a backup of the message.
	Due      time.Time `json:"due,omitzero"`
	DueAt    time.Time `json:"dueat,omitzero"`
	Attempts []attempt `json:"a,omitempty"`
	// Base is how many of them were made before a person had a dead letter retried: the schedule
	// begins anew after them.
	Base int `json:"base,omitempty"`
	// Test is set for a test event, which is delivered whatever the subscription asks for.
	Test bool `json:"test,omitempty"`
	// Parked is where it waits for a switch, since ParkedAt; see paused.go.
	Parked   parkedKey `json:"pk,omitzero"`
	ParkedAt time.Time `json:"pkt,omitzero"`
	// Control is set for a message that carries no event; Event is then its own id.
	Control *control `json:"ctl,omitempty"`

	made time.Time // when the next attempt was scheduled

	version int64     // of the item, 0 before it is written
	waits   store.Key // its due entry, or where it is parked; zero when there is neither
}

// attempt is one recorded attempt: a category, never what the endpoint said.
type attempt struct {
	At       time.Time `json:"at"`
	Category string    `json:"c"`
	Status   int       `json:"s,omitempty"`
	TookMS   int64     `json:"ms"`
}

const (
	statePending = "pending"
	stateDead    = "dead"
	// KeptFor is how long dead letters and records stay (design: 7 days).
	KeptFor = 7 * 24 * time.Hour
	// backup is how long after its time a due entry brings back a retry whose
	// message was lost.
	backup = 2 * time.Minute
	// dueShards spreads the entries of a minute.
	dueShards = 8
	// retriedFor is how long the event of a delivery is stored: for its retries, and then as a dead letter.
	retriedFor = 5*24*time.Hour + KeptFor
)

func (del *delivery) key() string { return cmp.Or(del.Key, del.Event) }

func deliveryKey(workspace, sub, eventKey string) store.Key {
	return store.Key{Table: store.Deliveries, Partition: "d#" + workspace + "#" + sub, Sort: eventKey}
}

func bodyKey(workspace, eventKey string) store.Key {
	return store.Key{Table: store.Deliveries, Partition: "b#" + workspace + "#" + eventKey, Sort: "-"}
}

func dueShard(sub, eventKey string) int {
	h := fnv.New32a()
	h.Write([]byte(sub + "#" + eventKey))
	return int(h.Sum32() % dueShards)
}

func duePartition(shard int, minute time.Time) string {
	return fmt.Sprintf("due#%d#%s", shard, minute.UTC().Format("200601021504"))
}

func dueKey(workspace, sub, eventKey string, at time.Time) store.Key {
	return store.Key{
		Table:     store.Deliveries,
		Partition: duePartition(dueShard(sub, eventKey), at.Truncate(time.Minute)),
		Sort:      sub + "#" + eventKey + "#" + workspace,
	}
}

func (del *delivery) item() store.Item {
	value, _ := json.Marshal(del) // times, strings and numbers
	expires := del.First.Add(retriedFor)
	if !del.ParkedAt.IsZero() {
		expires = del.ParkedAt.Add(switches.Kept + retriedFor)
	}
	return store.Item{
		Key:   deliveryKey(del.Workspace, del.Subscription, del.key()),
		Value: value, Version: int64(len(del.Attempts)) + 1,
		Expires: expires,
	}
}

// due is the next attempt.
func (del *delivery) due() dueEntry {
	return dueEntry{At: del.Due.UnixMilli(), Made: del.made.UnixMilli(), Task: SingleTask{
		V: taskVersion, Endpoint: endpointID(del.Target), Workspace: del.Workspace, Principal: del.Principal,
		Subscription: del.Subscription, Event: del.Event, Key: del.Key, Attempt: len(del.Attempts) + 1,
	}}
}

func (del *delivery) dueEntry() store.Item {
	value, _ := json.Marshal(del.due())
	return store.Item{
		Key: dueKey(del.Workspace, del.Subscription, del.key(), del.DueAt), Value: value, Expires: del.DueAt.Add(KeptFor),
	}
}

// dueEntry is the value of an entry in the due table.
type dueEntry struct {
	Task SingleTask `json:"t"`
	At   int64      `json:"at"` // milliseconds since 1970
	// Made is when the entry was written, in the same; the version before had none.
	Made int64 `json:"made,omitempty"`
}

func decodeDelivery(it *store.Item) (*delivery, error) {
	var del delivery
	if err := json.Unmarshal(it.Value, &del); err != nil {
		return nil, fault.Wrap(fault.Internal, err, "decode a delivery")
	}
	if del.State == statePending {
		del.version, del.waits = it.Version, del.place()
	}
	return &del, nil
}

// newDelivery is a delivery without attempts.
func newDelivery(sub *subscription.Subscriber, e *event.Event, now time.Time) *delivery {
	return &delivery{
		V: taskVersion, Workspace: e.Workspace, Principal: sub.Principal, Subscription: sub.ID, Origin: sub.Origin,
		Event: e.ID, Key: e.Key(), URI: e.URI, Name: e.Name, Target: sub.Target.URL, State: statePending, First: now,
		Published: e.Published,
	}
}

// forget deletes all that is stored of a delivery.
func (del *delivery) forget() []store.Op {
	if del.version == 0 {
		return nil
	}
	return []store.Op{store.Delete(deliveryKey(del.Workspace, del.Subscription, del.key())), store.Delete(del.waits)}
}

func (t dueEntry) outgoing(delay time.Duration) queue.Outgoing {
	// Whole seconds, rounded up: an attempt is never early.
	delay = (delay + time.Second - 1).Truncate(time.Second)
	return queue.Outgoing{Body: encode(t.Task), Group: t.Task.endpoint(), Delay: delay}
}

func continues(had int64) store.Condition {
	if had == 0 {
		return store.Absent()
	}
	return store.VersionIs(had)
}
