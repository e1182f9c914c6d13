// Package records writes the delivery log, which has a record of each attempt to send a webhook, and lists the records.
package records

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// The delivery log has one record per attempt to send a webhook, unless the [Keep] setting leaves the attempt out. Each record is stored
// under four keys that sort by time, so that each of these lists can be read with one query:
//
//	r#   per subscription
//	re#  per event id
//	ro#  per endpoint origin, for example https://example.com
//	ra#  all records of the workspace
//
// The record in the subscription's list is always written. The copies in the other three lists are limited. On DynamoDB, a process writes
// copies for at most [indexRate] attempts per second, because many endpoints that fail at the same time could otherwise exceed a
// partition's write limit. SQLite has no such limit, so it gets copies of all failures, but only of [successRate] successes per second,
// because more would cost an eighth of the throughput.
//
// If a process omits copies, its next copy has the number of omitted records ([Record.Omitted]).

// Record is the entry of the delivery log for one attempt to send a webhook.
type Record struct {
	V       int    `json:"v"`
	Event   string `json:"ev"`
	Attempt int    `json:"n"`
	state.Result
	Subscription string              `json:"sub,omitempty"`
	Principal    string              `json:"pr,omitempty"`
	Protocol     subscription.Origin `json:"o,omitempty"`
	URI          string              `json:"uri,omitempty"`
	Name         string              `json:"name,omitempty"`
	Origin       string              `json:"or,omitempty"`
	// Next is when the next attempt of the delivery is due, or zero if no further attempt follows.
	Next time.Time `json:"next,omitzero"`
	// Dead is set if the delivery became a dead letter after this attempt.
	Dead bool `json:"dead,omitempty"`
	Test bool `json:"test,omitempty"`
	// Response is the beginning of the response to a failed attempt, for operators (SRF-05). It is kept only with --keep-responses, and
	// only in the subscription's own list.
	Response string `json:"resp,omitempty"`
	// Omitted is the number of records that this process did not copy to the shared lists right before this record, because of
	// [Log.Limit].
	Omitted int64 `json:"om,omitempty"`
}

// recordVersion is the format version of the records that this release writes. Version 1 had no Subscription.
const recordVersion = 2

// encode returns the record as JSON, with the members that the tags of [Record] define. It does not use encoding/json, which would take
// almost a tenth of the CPU time of an event with a hundred subscribers.
func (r *Record) encode() []byte {
	b := make([]byte, 0, 512)
	text := func(member, value string) {
		if value != "" {
			b = jsonrpc.AppendString(append(b, member...), value)
		}
	}
	number := func(member string, value int64) {
		if value != 0 {
			b = strconv.AppendInt(append(b, member...), value, 10)
		}
	}
	moment := func(member string, value time.Time) {
		b = value.AppendFormat(append(b, member...), `"`+time.RFC3339Nano+`"`)
	}
	b = strconv.AppendInt(append(b, `{"v":`...), int64(r.V), 10)
	b = jsonrpc.AppendString(append(b, `,"ev":`...), r.Event)
	b = strconv.AppendInt(append(b, `,"n":`...), int64(r.Attempt), 10)
	moment(`,"at":`, r.At)
	b = jsonrpc.AppendString(append(b, `,"c":`...), r.Category)
	number(`,"s":`, int64(r.Status))
	b = strconv.AppendInt(append(b, `,"ms":`...), r.TookMS, 10)
	text(`,"sub":`, r.Subscription)
	text(`,"pr":`, r.Principal)
	text(`,"o":`, string(r.Protocol))
	text(`,"uri":`, r.URI)
	text(`,"name":`, r.Name)
	text(`,"or":`, r.Origin)
	if !r.Next.IsZero() {
		moment(`,"next":`, r.Next)
	}
	if r.Dead {
		b = append(b, `,"dead":true`...)
	}
	if r.Test {
		b = append(b, `,"test":true`...)
	}
	text(`,"resp":`, r.Response)
	number(`,"om":`, r.Omitted)
	return append(b, '}')
}

// Log makes the records of attempts, and limits how many of them are copied to the lists that several subscriptions share.
type Log struct {
	Keep         Keep
	Limit        *rate.Limiter
	failuresFree bool          // if true, Limit applies only to successful attempts
	Omitted      *atomic.Int64 // the number of records left out of the shared lists since the last record that was copied there
}

const (
	indexRate   = 50
	successRate = 200
	// burst is how many seconds of its unused limit a process may use up later. For example, after 10 seconds without attempts, it may
	// copy 10 × indexRate records immediately.
	burst = 10
)

// NewLog returns a Log that writes the records that keep selects.
func NewLog(db store.DB, keep Keep) Log {
	l := Log{Keep: keep, Limit: rate.NewLimiter(indexRate, burst*indexRate), Omitted: new(atomic.Int64)}
	if db.Local() {
		l.Limit, l.failuresFree = rate.NewLimiter(successRate, burst*successRate), true
	}
	return l
}

// allowCopies reports whether the limit permits copies of an attempt's record in the lists that several subscriptions share. If not, it
// counts the record as omitted. The parameter made is the attempt's result.
func (l Log) allowCopies(made state.Result) bool {
	if l.failuresFree && made.Category != "" || l.Limit.AllowN(made.At, 1) {
		return true
	}
	l.Omitted.Add(1)
	return false
}

// Add appends the store operations that write the record of an attempt to notes, and returns notes. It appends nothing if the [Keep]
// setting leaves the attempt out. The parameter made is the attempt's result, and response is "" or the beginning of the response to a
// failed attempt.
func (l Log) Add(notes []store.Op, del *state.Delivery, made state.Result, response string) []store.Op {
	switch {
	case l.Keep == None:
		return notes
	case l.Keep == Failures && made.Category == "":
		return notes
	}
	r := Record{
		V: recordVersion, Event: del.Event, Attempt: len(del.Attempts), Result: made, Subscription: del.Subscription,
		Principal: del.Principal, Protocol: del.Origin, URI: del.URI, Name: del.Name, Origin: subscription.OriginOf(del.Target), Test: del.Test,
	}
	if made.Category != "" {
		r.Next, r.Dead = del.Due, del.State == state.Dead
	}
	value := r.encode()
	own := value
	if response != "" {
		with := r
		with.Response = response
		own = with.encode()
	}
	stamp := fmt.Sprintf("%016d#", made.At.UnixMicro())
	put := func(partition, sort string, value []byte) {
		notes = append(notes, store.Put(store.Item{
			Key: store.Key{Table: store.Deliveries, Partition: partition, Sort: stamp + sort}, Value: value, Expires: made.At.Add(state.KeptFor),
		}))
	}
	put(BySubscription(del.Workspace, del.Subscription), fmt.Sprintf("%s#%d", del.Event, len(del.Attempts)), own)
	if !l.allowCopies(made) {
		return notes
	}
	if n := l.Omitted.Swap(0); n > 0 {
		r.Omitted = n
		value = r.encode()
	}
	sort := fmt.Sprintf("%s#%s#%d", del.Subscription, del.Event, len(del.Attempts))
	for _, partition := range []string{ByEvent(del.Workspace, del.Event), ByOrigin(del.Workspace, r.Origin), OfAll(del.Workspace)} {
		put(partition, sort, value)
	}
	return notes
}

// BySubscription returns the store partition with the records of a subscription.
func BySubscription(workspace, id string) string { return "r#" + workspace + "#" + id }

// ByEvent returns the store partition with the records of an event.
func ByEvent(workspace, id string) string { return "re#" + workspace + "#" + id }

// ByOrigin returns the store partition with the records of an endpoint's origin, for example https://example.com.
func ByOrigin(workspace, origin string) string { return "ro#" + workspace + "#" + origin }

// OfAll returns the store partition with all records of a workspace.
func OfAll(workspace string) string { return "ra#" + workspace }

// The outcomes of an attempt.
const (
	Delivered = "delivered"
	Failed    = "failed" // another attempt follows
	Dead      = "dead"   // the delivery was given up after this attempt
)

// Outcome returns the outcome of the attempt: [Delivered], [Failed] or [Dead].
func (r Record) Outcome() string {
	switch {
	case r.Category == "":
		return Delivered
	case r.Dead:
		return Dead
	}
	return Failed
}

// Span is a period that includes both ends. If Since or Until is zero, the period has no limit on that side.
type Span struct{ Since, Until time.Time }

// Query selects the records that match all of its fields. Empty fields match every record.
type Query struct {
	Subscription, Event, Origin string
	// Outcome is [Delivered], [Failed] or [Dead]. Failed also matches records whose outcome is Dead.
	Outcome string
	Span
}

// List returns one page of the records that match a query, newest first. The parameter before is "" for the first page, and then the
// previous page's result next. After the last page, next is "".
//
// List reads at most [MaxRead] records, selected by the query's most selective field, and filters them by the other fields. So a page may
// have fewer records than the limit, or be empty, although more pages follow.
func List(ctx context.Context, db store.DB, workspace string, ask Query, before string, limit int) (list []Record, next string, err error) {
	return listUpTo(ctx, db, workspace, ask, before, limit, MaxRead)
}

func listUpTo(ctx context.Context, db store.DB, workspace string, ask Query, before string, limit, most int) ([]Record, string, error) {
	q := store.Query{Table: store.Deliveries, Before: before, Limit: limit}
	switch {
	case ask.Subscription != "":
		q.Partition = BySubscription(workspace, ask.Subscription)
	case ask.Event != "":
		q.Partition = ByEvent(workspace, ask.Event)
	case ask.Origin != "":
		q.Partition = ByOrigin(workspace, ask.Origin)
	default:
		q.Partition = OfAll(workspace)
	}
	return ListNewest(ctx, db, q, most, ask.Span, "read the delivery log", func(it *store.Item) (r Record, takes bool, err error) {
		if err := json.Unmarshal(it.Value, &r); err != nil {
			return r, false, fault.Wrap(fault.Internal, err, "decode a delivery record")
		}
		r.Subscription = cmp.Or(r.Subscription, ask.Subscription) // records of version 1 do not name the subscription
		return r, ask.matches(r), nil
	})
}

const maxLook = 200 // the maximum number of records that [OfEvent] reads

// OfEvent returns the records of an event in a subscription's list, newest first. It reads only the oldest [maxLook] records of the list
// since the given time. If that is the event's time of publication, these records usually include all records of the event.
func OfEvent(ctx context.Context, db store.DB, workspace, sub, event string, since time.Time) (list []Record, err error) {
	q := store.Query{Table: store.Deliveries, Partition: BySubscription(workspace, sub), Limit: maxLook}
	q.Within(since, time.Time{})
	page, err := db.Query(ctx, q)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the delivery log")
	}
	for _, it := range slices.Backward(page.Items) {
		var r Record
		if err := json.Unmarshal(it.Value, &r); err == nil && r.Event == event {
			r.Subscription = sub
			list = append(list, r)
		}
	}
	return list, nil
}

// MaxRead is the maximum number of items that [ListNewest] reads for one page.
const MaxRead = 1000

// ListNewest returns a page of up to q.Limit entries, newest first, and the position for the next page, or "" after the last page. The
// function read decodes an item, and reports whether its entry belongs in the list. Items that cannot be decoded are logged and left out.
//
// The parameter most limits how many items ListNewest reads for one page, so a page may be short. But it always reads q.Limit items if
// there are so many. The parameter what names the operation in errors.
func ListNewest[T any](ctx context.Context, db store.DB, q store.Query, most int, within Span, what string, read func(*store.Item) (T, bool, error)) (list []T, next string, err error) {
	limit := q.Limit
	q.Reverse = true
	q.Within(within.Since, within.Until)
	for left := max(most, limit); ; q.Limit = min(2*q.Limit, left) { // twice as many as before, because few of them belong in the list
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
			if len(list) == limit && (page.More || i < len(page.Items)-1) {
				return list, it.Sort, nil
			}
		}
		left -= q.Limit
		if !page.More {
			return list, "", nil
		}
		if q.Before = page.Last; left <= 0 {
			return list, page.Last, nil
		}
	}
}

func (ask Query) matches(r Record) bool {
	return (ask.Subscription == "" || ask.Subscription == r.Subscription) &&
		(ask.Event == "" || ask.Event == r.Event) &&
		(ask.Origin == "" || ask.Origin == r.Origin) &&
		(ask.Outcome == "" || ask.Outcome == r.Outcome() || ask.Outcome == Failed && r.Outcome() == Dead)
}

// Keep is the --delivery-log setting, which says for which attempts the delivery log has records.
type Keep string

// The settings: a record of each attempt, a record of each failed attempt, or no records.
const (
	All      Keep = "all"
	Failures Keep = "failures"
	None     Keep = "none"
)

// ListOf returns a page of the records of several subscriptions, as [List] does. It merges the lists of these subscriptions. If subs is
// nil, it lists the records of all subscriptions.
func ListOf(ctx context.Context, db store.DB, workspace string, subs []string, ask Query, before string, limit int) ([]Record, string, error) {
	if subs == nil {
		return List(ctx, db, workspace, ask, before, limit)
	}
	return MergeLists(subs, before, limit, func(id, before string, limit int) ([]Record, string, error) {
		ask.Subscription = id
		return listUpTo(ctx, db, workspace, ask, before, limit, MaxRead/len(subs))
	}, func(r Record) string { return fmt.Sprintf("%016d#%s#%d", r.At.UnixMicro(), r.Event, r.Attempt) })
}

const minStep = 4 // the minimum number of entries that [MergeLists] asks for in one query

// MergeLists returns the newest entries of several subscriptions' lists as one page. The function list reads a page of one of these
// lists, and the function keyOf returns an entry's sort key. Entries with the same key are on the same page.
//
// MergeLists first reads a few entries of each list. The unread rest of a list may have any entry that is older than the last one read,
// so the page has only entries that are newer than the unread rest of every list. If these are too few, MergeLists reads more of the list
// whose unread rest begins with the newest entry. It makes at most as many further reads as there are lists, so a page may be short.
func MergeLists[T any](subs []string, before string, limit int, list func(id, before string, limit int) ([]T, string, error), keyOf func(T) string) (page []T, next string, err error) {
	type keyed struct {
		key string
		T   T
	}
	var all []keyed
	stands := make([]string, len(subs))
	read := func(i int, before string, limit int) error {
		items, stand, err := list(subs[i], before, limit)
		for _, item := range items {
			all = append(all, keyed{keyOf(item), item})
		}
		stands[i] = stand
		return err
	}
	step := min(limit, max(minStep, 2*limit/max(len(subs), 1)))
	for i := range subs {
		if err := read(i, before, step); err != nil {
			return nil, "", err
		}
	}
	highest := func() int {
		at := 0
		for i := range stands {
			if stands[i] > stands[at] {
				at = i
			}
		}
		return at
	}
	for range subs {
		i := highest()
		next, known := stands[i], 0
		for _, it := range all {
			if it.key >= next {
				known++
			}
		}
		if next == "" || known >= limit {
			break
		}
		if err := read(i, next, step); err != nil {
			return nil, "", err
		}
	}
	if len(subs) > 0 {
		next = stands[highest()]
	}
	slices.SortStableFunc(all, func(a, b keyed) int { return cmp.Compare(b.key, a.key) })
	n := 0
	for n < len(all) && all[n].key >= next && (n < limit || all[n].key == all[n-1].key) {
		page = append(page, all[n].T)
		n++
	}
	if n < len(all) && n > 0 && n >= limit {
		next = all[n-1].key
	}
	return page, next, nil
}
