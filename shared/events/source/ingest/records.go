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

// Each source of a workspace has a partition (so#) with the outcomes of its requests in the order of time, for
// [RecordsKept]. A flood must not become one of writes. So a process writes at most one outcome a second of each kind and
// source, and [othersRate] of all of them. What became an event is a delivery's beginning, and follows the delivery
// log: with "all" it is kept as far as that goes, in a file [successRate] a second; else one a minute. The next record
// of the kind says how many were omitted before it.
const (
	kindRate    = rate.Limit(1)
	kindBurst   = 10
	othersRate  = 10
	othersBurst = 50
	// successRate is that of the delivery log, see package delivery.
	successRate  = 200
	successBurst = 10 * successRate
)

// RecordsKept is how long outcomes can be looked at: as long as deliveries.
const RecordsKept = 7 * 24 * time.Hour

// The settings of --delivery-log.
const (
	KeepAll      = "all"
	KeepFailures = "failures"
	KeepNone     = "none"
)

// Longest parts of a record in bytes: what is in a request may be longer.
const (
	maxReason = 500
	maxID     = 256
	maxURI    = 2048
)

// recordTime bounds a write that the answer to a request waits for.
const recordTime = time.Second

// Record is an outcome as it is kept.
type Record struct {
	V      int       `json:"v"`
	Time   time.Time `json:"at"`
	Kind   Kind      `json:"k"`
	Reason string    `json:"r,omitempty"`
	Name   string    `json:"n,omitempty"`
	URI    string    `json:"uri,omitempty"`
	ID     string    `json:"id,omitempty"`
	// Omitted counts outcomes of the kind that are missing before this one.
	Omitted int64 `json:"om,omitempty"`
}

const recordVersion = 1

// Records is the [Recorder] for operators: it counts outcomes, and keeps the newest. Make it with [NewRecords].
type Records struct {
	db      store.DB
	keep    string
	metrics *metric.Set
	log     *slog.Logger

	others, successes *rate.Limiter // of the process
	mu                sync.Mutex
	kinds             map[kindOfSource]*allowance
}

type kindOfSource struct {
	workspace, source string
	kind              Kind
}

// allowance is what may be written of a kind, and what was not.
type allowance struct {
	limit   *rate.Limiter
	omitted int64
}

// maxAllowances bounds them when configurations come and go; a few more records are written when they begin anew.
const maxAllowances = 5000

// NewRecords makes one. Keep is one of [KeepAll], [KeepFailures] and [KeepNone]; empty is the second. Metrics and log
// may be nil.
func NewRecords(db store.DB, keep string, metrics *metric.Set, log *slog.Logger) *Records {
	r := &Records{
		db: db, keep: cmp.Or(keep, KeepFailures), metrics: metrics, log: log,
		others: rate.NewLimiter(othersRate, othersBurst), kinds: map[kindOfSource]*allowance{},
	}
	if r.successes = r.others; db.Ordered() {
		r.successes = rate.NewLimiter(successRate, successBurst)
	}
	if r.log == nil {
		r.log = slog.Default()
	}
	return r
}

// Record counts an outcome, and writes it if it is to be kept. A file takes it with its next commit; elsewhere the
// caller waits for the write, at most a second, for a function may be frozen after its answer.
func (r *Records) Record(ctx context.Context, o Outcome) {
	r.metrics.Sourced(o.Source, string(o.Kind), o.Kind.Refused())
	if r.keep == KeepNone {
		return
	}
	omitted, ok := r.takes(o)
	if !ok {
		return
	}
	value, _ := json.Marshal(Record{ // texts and a time
		V: recordVersion, Time: o.Time.UTC(), Kind: o.Kind, Reason: clip(o.Reason, maxReason), Name: clip(o.Name, maxID),
		URI: clip(o.URI, maxURI), ID: clip(o.ID, maxID), Omitted: omitted,
	})
	ctx, cancel := context.WithTimeout(store.Unhurried(context.WithoutCancel(ctx)), recordTime)
	defer cancel()
	err := r.db.Write(ctx, store.Put(store.Item{
		Key: store.Key{
			Table: store.Deliveries, Partition: ofSource(o.Workspace, o.Source), Sort: fmt.Sprintf("%016d#%.8s", o.Time.UnixMicro(), rand.Text()),
		},
		Value: value, Expires: o.Time.Add(RecordsKept),
	}))
	if err != nil {
		r.log.WarnContext(ctx, "source outcome not recorded", "source", o.Source, "outcome", string(o.Kind), "error", err)
	}
}

// takes reports whether an outcome is to be written, and how many of its kind were not since the last one.
func (r *Records) takes(o Outcome) (omitted int64, ok bool) {
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

func (r *Records) limitOf(k Kind) *rate.Limiter {
	switch {
	case !k.succeeded():
	case r.keep != KeepAll:
		return rate.NewLimiter(rate.Every(time.Minute), 1)
	case r.db.Ordered():
		return rate.NewLimiter(rate.Inf, 0)
	}
	return rate.NewLimiter(kindRate, kindBurst)
}

func ofSource(workspace, source string) string { return "so#" + workspace + "#" + source }

// clip cuts a text, which may end within a character, and makes it one that JSON can have.
func clip(s string, most int) string {
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "")
}

// Refused, as the kind of a [RecordQuery], is all kinds that [Kind.Refused] is true of.
const Refused Kind = "refused"

// RecordQuery asks for outcomes of a kind, or of any, in a span of time, both ends included; zero times are open.
type RecordQuery struct {
	Kind         Kind
	Since, Until time.Time
}

func (ask RecordQuery) takes(k Kind) bool {
	return ask.Kind == "" || ask.Kind == k || ask.Kind == Refused && k.Refused()
}

// lookedAt is how many records of other kinds a list of one kind looks at.
const lookedAt = 1000

// ListRecords returns up to limit outcomes of a source, newest first, those before the given key; next is "" at the end.
// It is one query. A list of one kind may have fewer although there are more.
func ListRecords(ctx context.Context, db store.DB, workspace, source string, ask RecordQuery, before string, limit int) (list []Record, next string, err error) {
	q := store.Query{Table: store.Deliveries, Partition: ofSource(workspace, source), Reverse: true, Before: before, Limit: limit}
	if ask.Kind != "" {
		q.Limit = lookedAt
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
		if ask.takes(r.Kind) {
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
