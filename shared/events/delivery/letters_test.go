package delivery

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/fanout"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	queuesqlite "github.com/mcp-events/mcpevents/shared/storage/queue/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

// overtaken is a store at which someone does the same right after the first read.
type overtaken struct {
	store.DB
	other func()
}

func (o *overtaken) Get(ctx context.Context, keys ...store.Key) ([]*store.Item, error) {
	items, err := o.DB.Get(ctx, keys...)
	if other := o.other; other != nil {
		o.other = nil
		other()
	}
	return items, err
}

// OPS-04: of two processes that make the same step of a replay, one counts a letter, and the other does not count it as skipped.
func TestALetterThatAnotherRetries(t *testing.T) {
	r, sub := registered(t)
	r.script = tooLarge
	r.run("evt_1")
	first := r.operationsOn(r.db, mortal{r.db, r})
	expect.OK(t, expect.ErrOf(first.File(t.Context(), []queue.Message{{ID: "1", From: queue.Inbox, Sent: r.now, Outgoing: queue.Outgoing{Body: []byte("x")}}})))
	for _, l := range r.letters(deadletter.LetterQuery{}, 2) {
		again := func(o *deadletter.Operations) (bool, error) { return o.Retry(t.Context(), "default", l, sub, 0) }
		db := &overtaken{DB: r.db, other: func() {
			if done, err := again(first); err != nil || !done {
				t.Errorf("%s: the first has %v, %v", l.Queue, done, err)
			}
		}}
		if done, err := again(r.operationsOn(db, mortal{db, r})); err != nil || done {
			t.Errorf("%s: the second has %v, %v", l.Queue, done, err)
		}
	}
}

func TestWorkspaceOfALetter(t *testing.T) {
	var noise strings.Builder
	for range 2 * queue.MaxBody {
		noise.WriteByte(byte('a' + rand.IntN(26)))
	}
	for name, tt := range map[string]struct {
		from       queue.Name
		body, want string
	}{
		"OPS-04 of a stage":                       {queue.Events, `{"v":1,"ws":"red","workspace":"blue"}`, "red"},
		"OPS-04 of a direct sender":               {queue.Inbox, `{"ws":"red","data":{"workspace":"green"},"workspace":"blue"}`, "blue"},
		"OPS-04 that names none":                  {queue.Inbox, `{"uri":"event://a"}`, "default"},
		"OPS-04 that is no text":                  {queue.Inbox, `{"workspace":7}`, "default"},
		"OPS-04 that is no object":                {queue.Inbox, `["workspace","red"]`, "default"},
		"OPS-04 that is no JSON":                  {queue.Inbox, `workspace`, "default"},
		"OPS-04 that is no name":                  {queue.Inbox, `{"workspace":"a#b"}`, "default"},
		"OPS-04 of which only the beginning kept": {queue.Inbox, `{"workspace":"red","retry":"` + noise.String() + `"}`, "red"},
	} {
		t.Run(name, func(t *testing.T) {
			m := queue.Message{Outgoing: queue.Outgoing{Body: []byte(tt.body)}}
			l, err := queue.ParseDeadLetter(queue.NewDeadLetter(tt.from, m, "r", nil, time.Now()).Body)
			if err != nil || l.Truncated != (len(tt.body) > queue.MaxBody) {
				t.Fatalf("truncated %v, %v", l.Truncated, err)
			}
			if got := deadletter.WorkspaceOf(l); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestDeadLettersThatAQueueMoved(t *testing.T) {
	r := newRig(t)
	var log bytes.Buffer
	emf := metric.NewEMF(slog.New(slog.NewJSONHandler(&log, nil)), "stack", time.Now)
	set, err := metric.NewSet(emf.Provider())
	expect.OK(t, err)
	o := deadletter.NewOperations(deadletter.Options{DB: r.db, Queue: mortal{r.db, r}, Now: func() time.Time { return r.now }, Metrics: set})
	published := r.now.Add(-time.Hour).UTC().Truncate(time.Microsecond)
	e := event.Event{Workspace: "default", ID: "evt_1", URI: "event://a/b", Name: "a.b", Time: published, Published: published}
	body, _ := e.MarshalJSON()
	batch := []queue.Message{
		{ID: "1", From: queue.Events, Sent: r.now, Outgoing: queue.Outgoing{Body: body, Group: "g"}},
		{ID: "2", From: queue.Slow, Sent: r.now.Add(-time.Minute), Outgoing: queue.Outgoing{Body: []byte("no delivery")}},
		{ID: "3", Sent: r.now, Outgoing: queue.NewDeadLetter(queue.Inbox, queue.Message{ID: "4", Sent: r.now}, "no event", nil, r.now)},
	}
	r.done(o.File(t.Context(), batch))
	letters := r.letters(deadletter.LetterQuery{}, 3)
	t.Run("AWS-07 the first time of an event is its own, for a FIFO queue stamps it anew", func(t *testing.T) {
		for _, l := range letters {
			want := map[string]time.Time{"events": published, "slow": r.now.Add(-time.Minute), "inbox": r.now}[l.Queue]
			if !l.First.Equal(want.UTC()) {
				t.Errorf("%s: got %v, want %v", l.Queue, l.First, want)
			}
		}
	})
	t.Run("OPS-12 they are counted by their queue, and those of a stage, which it has counted, are not", func(t *testing.T) {
		emf.Close(t.Context())
		for name, want := range map[string]bool{"events": true, "slow": true, "inbox": false} {
			if strings.Contains(log.String(), `"queue":"`+name+`"`) != want {
				t.Errorf("%s: got %s", name, &log)
			}
		}
	})
}

// SRC-01 OPS-04: messages that EventBridge or SNS put into the dead queue, because they could not put them into the inbox, can
// be sent back to the inbox.
func TestDeadLettersOfBuses(t *testing.T) {
	r := newRig(t)
	o := r.operations()
	denied := map[string]string{"RULE_ARN": "arn:aws:events:us-east-1:1:rule/r", "ERROR_CODE": "NO_PERMISSIONS", "ERROR_MESSAGE": "Access denied"}
	batch := []queue.Message{
		{ID: "1", Sent: r.now, Attributes: denied, Outgoing: queue.Outgoing{Body: []byte(`{"id":"e","detail-type":"A","source":"b","detail":{}}`)}},
		{ID: "2", Sent: r.now, Outgoing: queue.Outgoing{Body: []byte(`{"Type":"Notification","MessageId":"m","TopicArn":"arn","Message":"x"}`)}},
		{ID: "3", Sent: r.now, Outgoing: queue.Outgoing{Body: []byte(`{"id":"e"}`)}},
	}
	r.done(o.File(t.Context(), batch))
	reasons := map[string]string{}
	for _, l := range r.letters(deadletter.LetterQuery{}, 3) {
		reasons[l.Reason] = l.Queue
		returned, err := o.Retry(t.Context(), "default", l, nil, 0)
		if back := l.Queue == string(queue.Inbox); returned != back || (err == nil) != back {
			t.Errorf("%s: sent back: %v, %v", l.Reason, returned, err)
		}
	}
	want := map[string]string{
		"eventbridge could not put it into the inbox: NO_PERMISSIONS: Access denied": "inbox",
		"sns could not put it into the inbox":                                        "inbox", queue.ReasonReceives: "dead",
	}
	if !maps.Equal(reasons, want) {
		t.Errorf("got %q", reasons)
	}
	if sent := r.queues[queue.Inbox]; len(sent) != 2 {
		t.Errorf("the inbox got %d messages", len(sent))
	}
}

// An operator fixes the cause of a dead letter of the events queue and sends it back a minute later. The queue still
// remembers the event as a repetition then.
// OPS-04, AWS-05: an event that is sent back within five minutes reaches fanout, once per letter.
func TestDeadEventsAreSentBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		log := slog.New(slog.DiscardHandler)
		queues, err := queuesqlite.Open(r.db.Engine(), queuesqlite.Options{Log: log})
		expect.OK(t, err)
		service := &publish.Service{Catalog: r.catalogs, Queue: queues}
		in := publish.Input{URI: "event://ci/build-finished", ID: "evt_1", Data: []byte(`{"ok":true}`)}
		expect.OK(t, expect.ErrOf(service.Accept(t.Context(), r.principal(), []publish.Input{in})))
		refused, err := catalog.Parse([]byte("events:\n  - name: other\n    uri: event://other\n"))
		expect.OK(t, err)
		source := catalog.NewStatic(refused)
		fanout := &fanout.Fanout{DB: r.db, Log: r.log, Catalog: source, Queue: queues}
		operations := deadletter.NewOperations(deadletter.Options{DB: r.db, Queue: queues})
		var received atomic.Int64
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		for name, h := range map[queue.Name]queue.Handler{
			queue.Dead: operations.File, queue.Inbox: (&publish.Inbox{Service: service, Log: log}).Handle,
			queue.Events: func(ctx context.Context, batch []queue.Message) ([]string, error) {
				received.Add(int64(len(batch)))
				return fanout.Handle(ctx, batch)
			},
		} {
			running.Go(func() { _ = queues.Consume(ctx, name, h, queue.ConsumeOptions{}) })
		}
		defer func() { stop(); running.Wait(); _ = queues.Close() }()
		for round := 1; round <= 2; round++ { // the event that was sent back becomes the second letter
			time.Sleep(time.Minute)
			l := r.letters(deadletter.LetterQuery{Queue: string(queue.Events)}, 1)[0]
			expect.OK(t, did(operations.Retry(t.Context(), "default", l, nil, 0)))
			time.Sleep(10 * time.Second)
			if got := received.Load(); got != int64(round)+1 {
				t.Fatalf("round %d: fanout received %d events, want %d", round, got, round+1)
			}
		}
	})
}

// strict checks messages as the queues do.
type strict struct {
	queue.Sender
	check *queuesqlite.Queues // no worker receives its messages
}

func (s strict) Send(ctx context.Context, q queue.Name, msgs ...queue.Outgoing) error {
	if err := s.check.Send(ctx, q, msgs...); err != nil {
		return err
	}
	return s.Sender.Send(ctx, q, msgs...)
}

// SQS accepts more characters in a group than our queues do, and a program that may send to the inbox chooses the group.
func TestAReplayOfMessagesThatTheirQueueRefuses(t *testing.T) {
	r := newRig(t)
	queues, err := queuesqlite.Open(r.db.Engine(), queuesqlite.Options{Log: slog.New(slog.DiscardHandler)})
	expect.OK(t, err)
	defer queues.Close()
	o := r.operationsOn(r.db, strict{mortal{r.db, r}, queues})
	var batch []queue.Message
	for i, m := range []struct {
		from  queue.Name
		group string
	}{{queue.Slow, "first"}, {queue.Slow, "a group"}, {queue.Slow, "last"}, {queue.Inbox, "tenant:1"}} {
		m := queue.NewDeadLetter(m.from, queue.Message{Outgoing: queue.Outgoing{Body: []byte(`{}`), Group: m.group}, Sent: r.now}, "a reason", nil, r.now)
		batch = append(batch, queue.Message{ID: string(rune('a' + i)), Outgoing: m, Sent: r.now})
	}
	r.done(o.File(t.Context(), batch))
	r.now = r.now.Add(time.Second)
	for from, want := range map[queue.Name]struct{ replayed, skipped int }{queue.Slow: {2, 1}, queue.Inbox: {1, 0}} {
		job := r.replay(r.replaysOf(o), nil, deadletter.ReplaySelect{Queue: string(from)})
		if job.State != deadletter.ReplayDone || job.Replayed != want.replayed || job.Skipped != want.skipped {
			t.Errorf("OPS-05 AWS-16 the replay of %s is %+v, want %d replayed, %d skipped", from, job, want.replayed, want.skipped)
		}
		if n := len(r.queues[from]); n != want.replayed {
			t.Errorf("OPS-05 AWS-16 %s got %d messages, want %d", from, n, want.replayed)
		}
	}
}

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
		expect.OK(t, db.WriteAll(t.Context(), ops...))
		ops = ops[:0]
	}
	at := func(i int) time.Time { return listsBegin.Add(time.Duration(i) * time.Millisecond) }
	for i := range attempts {
		del, made := listed(i), state.Result{At: at(i), Status: 200, TookMS: 12}
		if i%3 == 0 {
			made.Status, made.Category = 503, "http_5xx"
		}
		del.Attempts = []state.Result{made}
		ops = log.Add(ops, del, made, "")
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
		expect.OK(t, err)
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	db := open()
	end := fillLists(t, db, attempts, letters)
	expect.OK(t, db.Close())
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
				expect.OK(t, err)
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
				expect.OK(b, err)
				took, before = append(took, time.Since(began)), next
			}
			slices.Sort(took)
			for name, share := range map[string]int{"p50-ms": 50, "p99-ms": 99} {
				b.ReportMetric(float64(took[(len(took)-1)*share/100].Microseconds())/1e3, name)
			}
		})
	}
}
