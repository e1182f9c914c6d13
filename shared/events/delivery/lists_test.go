package delivery

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
)

// counted is a store that counts its reads. The tests of the stores ensure that each counted query is cheap: store/dynamo makes
// one DynamoDB request per query, and the query plans of store/sqlite read no more items than the limit.
type counted struct {
	store.DB
	queries, gets, most int
}

func (c *counted) Query(ctx context.Context, q store.Query) (store.Page, error) {
	c.queries++
	c.most = max(c.most, q.Limit)
	return c.DB.Query(ctx, q)
}

func (c *counted) Get(ctx context.Context, keys ...store.Key) ([]*store.Item, error) {
	c.gets++
	return c.DB.Get(ctx, keys...)
}

const (
	listSubs    = 1000
	listOrigins = 20
	listTypes   = 5
	listLimit   = 100 // the largest page of the admin API
)

var listsBegin = time.Unix(1_800_000_000, 0).UTC()

// listed returns delivery number i. Its subscription, origin and event depend on i, and each event has ten deliveries.
func listed(i int) *state.Delivery {
	sub := i % listSubs
	return &state.Delivery{
		V: task.Version, Workspace: "default", Principal: "alice", Subscription: fmt.Sprintf("sub_%d", sub), Event: fmt.Sprintf("evt_%d", i/10),
		Key: fmt.Sprintf("evt_%d#k", i/10), URI: "event://ci/build-finished", Name: fmt.Sprintf("type_%d", sub%listTypes),
		Target: fmt.Sprintf("https://%d.example.com/%d", sub%listOrigins, sub), State: state.Pending, First: listsBegin,
	}
}

// fillLists writes the records of attempts, a third of which failed, and dead letters, one of each per millisecond. It returns
// the time of the last one.
func fillLists(t testing.TB, db store.DB, attempts, letters int) time.Time {
	t.Helper()
	log := records.Log{Keep: records.All, Limit: rate.NewLimiter(rate.Inf, 0), Omitted: new(atomic.Int64)}
	var ops []store.Op
	flush := func(most int) {
		if len(ops) <= most {
			return
		}
		if err := db.WriteAll(t.Context(), ops...); err != nil {
			t.Fatal(err)
		}
		ops = ops[:0]
	}
	at := func(i int) time.Time { return listsBegin.Add(time.Duration(i) * time.Millisecond) }
	for i := range attempts {
		del, made := listed(i), state.Result{At: at(i), Status: 200, TookMS: 12}
		if i%3 == 0 {
			made.Status, made.Category = 503, "http_5xx"
		}
		del.Attempts = []state.Result{made}
		ops = log.Add(ops, del, made)
		flush(5000)
	}
	for i := range letters {
		del := listed(i)
		del.State = state.Dead
		for n := range 8 {
			del.Attempts = append(del.Attempts, state.Result{At: at(i + n), Category: "http_5xx", Status: 503, TookMS: 7})
		}
		value := del.Item().Value
		for _, key := range del.LetterKeys(at(i)) {
			ops = append(ops, store.Put(store.Item{Key: key, Value: value, Version: 1, Expires: at(i).Add(state.KeptFor)}))
		}
		flush(5000)
	}
	flush(0)
	return at(max(attempts, letters))
}

// listPage is one list of the admin API: it returns the times of its entries, and the position of the next page.
type listPage struct {
	name    string
	queries int // at most
	list    func(ctx context.Context, before string) (times []time.Time, next string, err error)
}

// listPages returns all lists of deliveries and dead letters.
func listPages(db store.DB, end time.Time) (pages []listPage) {
	const workspace, origin = "default", "https://7.example.com"
	middle := records.Span{Since: listsBegin.Add(end.Sub(listsBegin) / 4), Until: listsBegin.Add(end.Sub(listsBegin) / 2)}
	for name, ask := range map[string]records.Query{
		"of a subscription": {Subscription: "sub_7"}, "of an event": {Event: "evt_100"}, "of an origin": {Origin: origin}, "all": {},
		"in a span": {Span: middle}, "failed, of an origin": {Origin: origin, Outcome: records.Failed}, "delivered, in a span": {Span: middle, Outcome: records.Delivered},
	} {
		pages = append(pages, listPage{"deliveries, " + name, 1, func(ctx context.Context, before string) (times []time.Time, _ string, _ error) {
			list, next, err := records.List(ctx, db, workspace, ask, before, listLimit)
			for _, r := range list {
				times = append(times, r.At)
			}
			return times, next, err
		}})
	}
	o := deadletter.NewOperations(deadletter.Options{DB: db})
	for name, ask := range map[string]deadletter.LetterQuery{
		"of a subscription": {Subscription: "sub_7"}, "of an origin": {Origin: origin}, "of an event type": {Event: "type_2"}, "all": {},
		"in a span": {Span: records.Span{Until: listsBegin.Add(time.Second)}},
	} {
		pages = append(pages, listPage{"dead letters, " + name, 1, func(ctx context.Context, before string) (times []time.Time, _ string, _ error) {
			list, next, err := o.Letters(ctx, workspace, ask, before, listLimit)
			for _, l := range list {
				times = append(times, l.Dead)
			}
			return times, next, err
		}})
	}
	var own []string // as many as a list of an owner goes over
	for i := range 100 {
		own = append(own, fmt.Sprintf("sub_%d", i))
	}
	pages = append(pages, listPage{"deliveries, of an owner of 100 subscriptions", 2 * len(own), func(ctx context.Context, before string) (times []time.Time, _ string, _ error) {
		list, next, err := records.Merge(ctx, db, workspace, own, records.Query{}, before, listLimit)
		for _, r := range list {
			times = append(times, r.At)
		}
		return times, next, err
	}})
	slices.SortFunc(pages, func(a, b listPage) int { return cmp.Compare(a.name, b.name) })
	return pages
}

// listSizes returns the number of records and dead letters in the tests of the lists. The full size needs 3 GB of disk.
func listSizes() (attempts, letters int) {
	if os.Getenv("MCPEVENTS_TEST_FULL") != "" { // as harness.Size, which this package cannot import
		return 1_000_000, 100_000
	}
	return 20_000, 2_000
}

// openLists fills a file with records and dead letters, closes it, and returns it opened again.
func openLists(t testing.TB, attempts, letters int) (store.DB, time.Time) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "events.db")
	var options sqlite.Options
	options.SweepEvery = -1
	options.Engine.Now = func() time.Time { return listsBegin }
	open := func() *sqlite.DB {
		db, err := sqlite.Open(path, options)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	db := open()
	end := fillLists(t, db, attempts, letters)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return open(), end
}

// TestListsAtScale: OPS-03 and OPS-04. Whatever the number of entries, each page of each list takes one query, which reads
// at most as many items as a page may have.
func TestListsAtScale(t *testing.T) {
	file, end := openLists(t, 20_000, 2_000)
	db := &counted{DB: file}
	for _, list := range listPages(db, end) {
		t.Run(fmt.Sprintf("OPS-03 OPS-04 a page of %s in queries: %d", list.name, list.queries), func(t *testing.T) {
			before, found := "", 0
			for n, last := 0, end; n == 0 || before != "" && n < 5; n++ {
				*db = counted{DB: file}
				times, next, err := list.list(t.Context(), before)
				if err != nil {
					t.Fatal(err)
				}
				if db.queries > list.queries || db.queries == 0 || db.gets != 0 || db.most > listLimit {
					t.Errorf("page %d: %d queries of up to %d items, %d reads", n, db.queries, db.most, db.gets)
				}
				for _, at := range times {
					if at.After(last) {
						t.Errorf("page %d: %v comes after %v", n, at, last)
					}
					last = at
				}
				found, before = found+len(times), next
			}
			if found == 0 {
				t.Error("the list is empty")
			}
		})
	}
}

// BenchmarkLists reads pages of each list, from the newest to far back. With MCPEVENTS_TEST_FULL there are a million records
// and 100,000 dead letters, the sizes for which OPS-03 states a time.
func BenchmarkLists(b *testing.B) {
	attempts, letters := listSizes()
	db, end := openLists(b, attempts, letters)
	for _, list := range listPages(db, end) {
		b.Run(list.name, func(b *testing.B) {
			var took []time.Duration
			before := ""
			for b.Loop() {
				began := time.Now()
				_, next, err := list.list(b.Context(), before)
				if err != nil {
					b.Fatal(err)
				}
				took, before = append(took, time.Since(began)), next
			}
			slices.Sort(took)
			for name, share := range map[string]int{"p50-ms": 50, "p99-ms": 99} {
				b.ReportMetric(float64(took[(len(took)-1)*share/100].Microseconds())/1e3, name)
			}
		})
	}
}
