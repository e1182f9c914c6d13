package ingest

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Limits for storing the outcomes of requests to sources, so that a flood of requests does not cause a flood of writes. On average, a
// process stores at most one outcome per second for each source and kind, and [othersRate] per second overall. Each record says how many
// outcomes of its kind were omitted before it.
//
// Successful outcomes have other limits, which depend on the setting --delivery-log. With "all", a process with SQLite stores up to
// [successRate] of them per second, and a process with DynamoDB applies the limits above. With "failures", a process stores one per
// minute for each source and kind.
const (
	kindRate    = rate.Limit(1)
	kindBurst   = 10
	othersRate  = 10
	othersBurst = 50
	// successRate is the maximum number of records of successful requests to sources that one process writes to SQLite per second. It has the
	// same value as the limit for records of successful deliveries in shared/events/delivery/records.
	successRate  = 200
	successBurst = 10 * successRate
)

// RecordsKept is how long the outcomes of requests to sources are kept, which is as long as the records of deliveries.
const RecordsKept = 7 * 24 * time.Hour

// Values of the setting --delivery-log.
const (
	KeepAll      = "all"
	KeepFailures = "failures"
	KeepNone     = "none"
)

// Maximum lengths in bytes of the texts in a [Record]. Longer texts are cut.
const (
	maxReason = 500
	maxID     = 256
	maxURI    = 2048
)

// recordTime limits how long the response to a request waits until the request's outcome is stored.
const recordTime = time.Second

// Record is the stored form of an [Outcome].
type Record struct {
	V      int       `json:"v"`
	Time   time.Time `json:"at"`
	Kind   Kind      `json:"k"`
	Reason string    `json:"r,omitempty"`
	Name   string    `json:"n,omitempty"`
	URI    string    `json:"uri,omitempty"`
	ID     string    `json:"id,omitempty"`
	// Omitted is how many outcomes of the same source and kind were left out since the previous record, because this process had reached
	// a limit for records.
	Omitted int64 `json:"om,omitempty"`
}

const recordVersion = 1

// OutcomeLog counts the outcomes of requests to sources, and stores recent ones for operators. It implements [Recorder]. Use
// [NewOutcomeLog] to create one.
type OutcomeLog struct {
	db      store.DB
	keep    string
	metrics *metric.Set
	log     *slog.Logger

	others, successes *rate.Limiter // limits of this process
	mu                sync.Mutex
	kinds             map[kindOfSource]*allowance
}

type kindOfSource struct {
	workspace, source string
	kind              Kind
}

// allowance limits how often one source's outcomes of one kind are recorded, and counts the omitted ones.
type allowance struct {
	limit   *rate.Limiter
	omitted int64
}

// maxAllowances limits the number of allowances in memory, because the allowances of removed sources stay. When the limit is reached, all
// allowances are deleted, and a few more outcomes than usual are recorded.
const maxAllowances = 5000

// NewOutcomeLog returns an [OutcomeLog] that stores the outcomes of requests in db. The parameter keep says which outcomes are stored, for
// example [KeepAll]. An empty keep means [KeepFailures]. The parameters metrics and log may be nil.
func NewOutcomeLog(db store.DB, keep string, metrics *metric.Set, log *slog.Logger) *OutcomeLog {
	r := &OutcomeLog{
		db: db, keep: cmp.Or(keep, KeepFailures), metrics: metrics, log: cmp.Or(log, slog.Default()),
		others: rate.NewLimiter(othersRate, othersBurst), kinds: map[kindOfSource]*allowance{},
	}
	if r.successes = r.others; db.Local() {
		r.successes = rate.NewLimiter(successRate, successBurst)
	}
	return r
}

// Record counts an outcome, and stores it unless a setting or limit excludes it. With DynamoDB, Record waits for the write for at most a
// second, because a Lambda function may be frozen after its response.
func (r *OutcomeLog) Record(ctx context.Context, o Outcome) {
	r.metrics.SourceRequested(o.Source, string(o.Kind), o.Kind.Refused())
	if r.keep == KeepNone {
		return
	}
	omitted, ok := r.allows(o)
	if !ok {
		return
	}
	value, _ := json.Marshal(Record{ // cannot fail for strings and times
		V: recordVersion, Time: o.Time.UTC(), Kind: o.Kind, Reason: fault.Clip(o.Reason, maxReason), Name: fault.Clip(o.Name, maxID),
		URI: fault.Clip(o.URI, maxURI), ID: fault.Clip(o.ID, maxID), Omitted: omitted,
	})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	err := store.Unhurried(r.db).Write(ctx, store.Put(store.Item{
		Key: store.Key{
			Table: store.Deliveries, Partition: ofSource(o.Workspace, o.Source), Sort: fmt.Sprintf("%016d#%.8s", o.Time.UnixMicro(), rand.Text()),
		},
		Value: value, Expires: o.Time.Add(RecordsKept),
	}))
	if err != nil {
		r.log.WarnContext(ctx, "source outcome not recorded", "source", o.Source, "outcome", string(o.Kind), "error", err)
	}
}

// allows reports whether the limits allow storing an outcome, and how many outcomes of its kind were omitted since the last stored one.
func (r *OutcomeLog) allows(o Outcome) (omitted int64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := kindOfSource{o.Workspace, o.Source, o.Kind}
	a := r.kinds[key]
	if a == nil {
		if len(r.kinds) >= maxAllowances {
			clear(r.kinds)
		}
		a = &allowance{limit: r.limitOf(o.Kind)}
		r.kinds[key] = a
	}
	all := r.others
	if o.Kind.succeeded() {
		all = r.successes
	}
	if !a.limit.AllowN(o.Time, 1) || !all.AllowN(o.Time, 1) {
		a.omitted++
		return 0, false
	}
	omitted, a.omitted = a.omitted, 0
	return omitted, true
}

func (r *OutcomeLog) limitOf(k Kind) *rate.Limiter {
	switch {
	case !k.succeeded():
	case r.keep != KeepAll:
		return rate.NewLimiter(rate.Every(time.Minute), 1)
	case r.db.Local():
		return rate.NewLimiter(rate.Inf, 0)
	}
	return rate.NewLimiter(kindRate, kindBurst)
}

func ofSource(workspace, source string) string { return "so#" + workspace + "#" + source }

// Refused in a [RecordQuery] selects all kinds for which [Kind.Refused] is true.
const Refused Kind = "refused"

// RecordQuery selects the outcomes of requests to sources by kind and time. Since and Until are inclusive. Zero fields select all
// outcomes.
type RecordQuery struct {
	Kind         Kind
	Since, Until time.Time
}

func (ask RecordQuery) matches(k Kind) bool {
	return ask.Kind == "" || ask.Kind == k || ask.Kind == Refused && k.Refused()
}

// maxRead is the maximum number of records that [ListRecords] reads to find records of one kind, because the store cannot select by kind.
const maxRead = 1000

// ListRecords reads a single page of the store, and then selects records by ask.Kind, because the store cannot. So a list with a Kind may
// be shorter than limit although more records follow.
func ListRecords(ctx context.Context, db store.DB, workspace, source string, ask RecordQuery, before string, limit int) (list []Record, next string, err error) {
	q := store.Query{Table: store.Deliveries, Partition: ofSource(workspace, source), Reverse: true, Before: before, Limit: limit}
	if ask.Kind != "" {
		q.Limit = maxRead
	}
	q.Within(ask.Since, ask.Until)
	page, err := db.Query(ctx, q)
	if err != nil {
		return nil, "", fault.Wrap(fault.Unavailable, err, "read the outcomes of a source")
	}
	for i, it := range page.Items {
		var r Record
		if err := json.Unmarshal(it.Value, &r); err != nil {
			return nil, "", fault.Wrap(fault.Internal, err, "decode the outcome of a source")
		}
		if ask.matches(r.Kind) {
			list = append(list, r)
		}
		if len(list) == limit && (i+1 < len(page.Items) || page.More) {
			return list, it.Sort, nil
		}
	}
	if page.More {
		next = page.Last
	}
	return list, next, nil
}

// Outcome is the result of a request to a source, or of a document in a message of an AWS service.
type Outcome struct {
	Time              time.Time
	Workspace, Source string
	Kind              Kind
	// Reason says why the request or message was refused. It contains no secrets, but may contain names that the sender chose.
	Reason string
	// Name, URI and ID describe the event that the request or message contains, as far as they are known.
	Name, URI, ID string
}

// withError returns o with the time and, if err is not nil, with the error's kind and reason.
func (o Outcome) withError(err error, now time.Time) Outcome {
	o.Time = now
	if err != nil {
		o.Kind, o.Reason = kindOf(err), strings.ToValidUTF8(fault.Public(err), "")
	}
	return o
}

// Kind classifies the outcomes of requests to sources.
type Kind string

// The kinds of outcomes.
const (
	Accepted    Kind = "accepted"
	Duplicate   Kind = "duplicate"   // the event was accepted before
	Unmatched   Kind = "unmatched"   // no mapping matches
	Verified    Kind = "verified"    // the provider checked that we own the URL, and got its challenge back
	Unverified  Kind = "unverified"  // the signature is missing, wrong or too old
	Invalid     Kind = "invalid"     // not a valid document
	Unfit       Kind = "unfit"       // a mapping matches, but the event would not be valid; dead-lettered
	Limited     Kind = "limited"     // over the quota
	Unavailable Kind = "unavailable" // an error on our side
)

// Refused reports whether a request should have become an event but could not, for example because its signature is wrong. It is false
// for requests that no mapping matches.
func (k Kind) Refused() bool {
	switch k {
	case Unverified, Invalid, Unfit, Limited, Unavailable:
		return true
	}
	return false
}

// succeeded reports whether the provider's request had the effect that it asked for.
func (k Kind) succeeded() bool { return k == Accepted || k == Duplicate || k == Verified }

// Recorder records the outcomes of requests to sources for operators. Record must return soon even if the store is slow, and it handles
// errors itself.
type Recorder interface {
	Record(ctx context.Context, o Outcome)
}

func kindOf(err error) Kind {
	kind := fault.KindOf(err)
	if kind == fault.TooLarge && faultsOf(err) != nil { // the event is too large, not the request
		kind = fault.Unprocessable
	}
	switch kind {
	case fault.Unauthenticated:
		return Unverified
	case fault.Exhausted:
		return Limited
	case fault.Unprocessable:
		return Unfit
	case fault.Unavailable, fault.Internal, fault.Conflict:
		return Unavailable
	}
	return Invalid
}
