package delivery

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// The delivery log has one record per attempt that [Options.Records] keeps, and so that each question is
// one query, it lies under four keys, in the order of time:
//
//	r#   per subscription
//	re#  per event id
//	ro#  per origin of targets
//	ra#  all of the workspace
//
// The last three are three more writes, and may be more a second than a partition of DynamoDB takes, when
// many endpoints fail at once. There a process writes at most [indexRate] of these a second. In a file, which
// has no partitions, failures always have them, and of the successes [successRate] a second: more would cost
// an eighth of the throughput. The next record says how many were omitted before it. The subscription's own is
// never omitted.

// Record is an attempt in the delivery log.
type Record struct {
	V       int    `json:"v"`
	Event   string `json:"ev"`
	Attempt int    `json:"n"`
	attempt
	Subscription string              `json:"sub,omitempty"`
	Principal    string              `json:"pr,omitempty"`
	Protocol     subscription.Origin `json:"o,omitempty"`
	URI          string              `json:"uri,omitempty"`
	Name         string              `json:"name,omitempty"`
	Origin       string              `json:"or,omitempty"`
	// Next is when the next attempt is due; zero when there is none.
	Next time.Time `json:"next,omitzero"`
	// Dead says that this attempt was the last, and the delivery is a dead letter.
	Dead bool `json:"dead,omitempty"`
	Test bool `json:"test,omitempty"`
	// Omitted counts records that are missing before this one here.
	Omitted int64 `json:"om,omitempty"`
}

// recordVersion 1 had neither subscription nor origin, and lay under the subscription only.
const recordVersion = 2

// deliveryLog makes the records that are kept, and bounds those beside the subscriptions' own.
type deliveryLog struct {
	keep         Records
	limit        *rate.Limiter
	failuresFree bool // only successes are bounded
	omitted      *atomic.Int64
}

const (
	indexRate   = 50
	successRate = 200
	// burst is how many seconds of them may come at once.
	burst = 10
)

func newDeliveryLog(db store.DB, keep Records) deliveryLog {
	l := deliveryLog{keep: keep, limit: rate.NewLimiter(indexRate, burst*indexRate), omitted: new(atomic.Int64)}
	if db.Local() {
		l.limit, l.failuresFree = rate.NewLimiter(successRate, burst*successRate), true
	}
	return l
}

// takes reports whether the record of an attempt is to be written under the keys beside the subscription's.
func (l deliveryLog) takes(made attempt) bool {
	if l.failuresFree && made.Category != "" || l.limit.AllowN(made.At, 1) {
		return true
	}
	l.omitted.Add(1)
	return false
}

// add adds the record of an attempt to notes, if it is to be kept.
func (l deliveryLog) add(notes []store.Op, del *delivery, made attempt) []store.Op {
	switch {
	case l.keep == RecordNone:
		return notes
	case l.keep == RecordFailures && made.Category == "":
		return notes
	}
	r := Record{
		V: recordVersion, Event: del.Event, Attempt: len(del.Attempts), attempt: made, Subscription: del.Subscription,
		Principal: del.Principal, Protocol: del.Origin, URI: del.URI, Name: del.Name, Origin: subscription.OriginOf(del.Target), Test: del.Test,
	}
	if made.Category != "" {
		r.Next, r.Dead = del.Due, del.State == stateDead
	}
	value, _ := json.Marshal(r) // texts, times and numbers
	stamp := fmt.Sprintf("%016d#", made.At.UnixMicro())
	put := func(partition, sort string, value []byte) {
		notes = append(notes, store.Put(store.Item{
			Key: store.Key{Table: store.Deliveries, Partition: partition, Sort: stamp + sort}, Value: value, Expires: made.At.Add(KeptFor),
		}))
	}
	put(bySubscription(del.Workspace, del.Subscription), fmt.Sprintf("%s#%d", del.Event, len(del.Attempts)), value)
	if !l.takes(made) {
		return notes
	}
	if n := l.omitted.Swap(0); n > 0 {
		r.Omitted = n
		value, _ = json.Marshal(r)
	}
	sort := fmt.Sprintf("%s#%s#%d", del.Subscription, del.Event, len(del.Attempts))
	for _, partition := range []string{byEvent(del.Workspace, del.Event), byOrigin(del.Workspace, r.Origin), ofAll(del.Workspace)} {
		put(partition, sort, value)
	}
	return notes
}

func bySubscription(workspace, id string) string { return "r#" + workspace + "#" + id }
func byEvent(workspace, id string) string        { return "re#" + workspace + "#" + id }
func byOrigin(workspace, origin string) string   { return "ro#" + workspace + "#" + origin }
func ofAll(workspace string) string              { return "ra#" + workspace }

// The outcomes of an attempt.
const (
	Delivered = "delivered"
	Failed    = "failed" // to be attempted again
	Dead      = "dead"   // given up with this attempt
)

// Outcome is one of [Delivered], [Failed] and [Dead].
func (r Record) Outcome() string {
	switch {
	case r.Category == "":
		return Delivered
	case r.Dead:
		return Dead
	}
	return Failed
}

// Span is a span of time, both ends included; zero times are open.
type Span struct{ Since, Until time.Time }

// RecordQuery asks for records that have all that is given.
type RecordQuery struct {
	Subscription, Event, Origin string
	// Outcome is one of the outcomes; Failed takes Dead, too.
	Outcome string
	Span
}

// ListRecords returns the records that are asked for, newest first, those before the given key; next is ""
// at the end. It is one query, of at most limit records, by what narrows the most; what else is asked for is
// looked at in vain.
func ListRecords(ctx context.Context, db store.DB, workspace string, ask RecordQuery, before string, limit int) (list []Record, next string, err error) {
	q := store.Query{Table: store.Deliveries, Before: before, Limit: limit}
	switch {
	case ask.Subscription != "":
		q.Partition = bySubscription(workspace, ask.Subscription)
	case ask.Event != "":
		q.Partition = byEvent(workspace, ask.Event)
	case ask.Origin != "":
		q.Partition = byOrigin(workspace, ask.Origin)
	default:
		q.Partition = ofAll(workspace)
	}
	return newest(ctx, db, q, ask.Span, "read the delivery log", func(it *store.Item) (r Record, takes bool, err error) {
		if err := json.Unmarshal(it.Value, &r); err != nil {
			return r, false, fault.Wrap(fault.Internal, err, "decode a delivery record")
		}
		r.Subscription = cmp.Or(r.Subscription, ask.Subscription) // one of the version before has none
		return r, ask.takes(r), nil
	})
}

// newest reads one page of items, newest first, and returns those within a span that read accepts. An item that cannot be
// decoded is logged and left out, so that it does not hide the others. next is "" at the end.
func newest[T any](ctx context.Context, db store.DB, q store.Query, within Span, what string, read func(*store.Item) (T, bool, error)) (list []T, next string, err error) {
	q.Reverse = true
	q.Within(within.Since, within.Until)
	page, err := db.Query(ctx, q)
	if err != nil {
		return nil, "", fault.Wrap(fault.Unavailable, err, "%s", what)
	}
	for i := range page.Items {
		it := &page.Items[i]
		entry, takes, err := read(it)
		switch {
		case err != nil:
			slog.ErrorContext(ctx, "stored item not listed", "table", it.Table, "partition", it.Partition, "sort", it.Sort, "error", err)
		case takes:
			list = append(list, entry)
		}
	}
	if page.More {
		next = page.Last
	}
	return list, next, nil
}

func (ask RecordQuery) takes(r Record) bool {
	return (ask.Subscription == "" || ask.Subscription == r.Subscription) &&
		(ask.Event == "" || ask.Event == r.Event) &&
		(ask.Origin == "" || ask.Origin == r.Origin) &&
		(ask.Outcome == "" || ask.Outcome == r.Outcome() || ask.Outcome == Failed && r.Outcome() == Dead)
}
