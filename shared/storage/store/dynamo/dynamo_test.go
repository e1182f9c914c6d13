package dynamo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
)

func same(t *testing.T, got, want *store.Item) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestHowManyRequestsACallTakes(t *testing.T) {
	db := open(t)
	item := store.Item{Key: key, Version: 1}
	second := store.Item{Key: other, Version: 1}
	many := make([]store.Op, 26)
	for i := range many {
		many[i] = store.Put(store.Item{Key: store.Key{Table: store.Log, Partition: "many", Sort: fmt.Sprint(i)}})
	}
	tests := []struct {
		name string
		call func(ctx context.Context) error
		want string
	}{
		{"nothing", func(ctx context.Context) error { return db.Write(ctx) }, ""},
		{"a put", func(ctx context.Context) error { return db.Write(ctx, store.Put(item)) }, "PutItem"},
		{"a conditional put", func(ctx context.Context) error { return db.Write(ctx, store.Put(item, store.VersionIs(1))) }, "PutItem"},
		{"a count", func(ctx context.Context) error { return db.Write(ctx, store.Add(key, map[string]int64{"n": 1}, nil)) }, "UpdateItem"},
		{"a raise", func(ctx context.Context) error { return db.Write(ctx, store.Raise(key, "n", 2)) }, "UpdateItem"},
		{"a raise of what is high enough", func(ctx context.Context) error { return db.Write(ctx, store.Raise(key, "n", 1)) }, "UpdateItem"},
		{"a check", func(ctx context.Context) error { return db.Write(ctx, store.Check(key, store.Exists())) }, "GetItem"},
		{"two operations", func(ctx context.Context) error { return db.Write(ctx, store.Put(item), store.Put(second)) }, "TransactWriteItems"},
		{"26 operations without order", func(ctx context.Context) error { return db.WriteAll(ctx, many...) }, "BatchWriteItem BatchWriteItem"},
		{"one item", func(ctx context.Context) error { _, err := db.Get(ctx, key); return err }, "GetItem"},
		{"the same item twice", func(ctx context.Context) error { _, err := db.Get(ctx, key, key); return err }, "GetItem"},
		{"no item", func(ctx context.Context) error { _, err := db.Get(ctx); return err }, ""},
		{"two items", func(ctx context.Context) error { _, err := db.Get(ctx, key, other); return err }, "BatchGetItem"},
		{"a range", func(ctx context.Context) error {
			_, err := db.Query(ctx, store.Query{Table: store.Log, Partition: "many"})
			return err
		}, "Query"},
		{"an empty range", func(ctx context.Context) error {
			_, err := db.Query(ctx, store.Query{Table: store.Log, Partition: "many", After: "b", Until: "b"})
			return err
		}, ""},
		{"a delete", func(ctx context.Context) error { return db.Write(ctx, store.Delete(key)) }, "DeleteItem"},
	}
	for _, tt := range tests {
		got := db.requests(func() {
			if err := tt.call(t.Context()); err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
		})
		expect.Equal(t, "the requests of "+tt.name, got, tt.want)
	}
}

// TTL deletes late; until then an expired item lies about and must not show. The suite has every operation; here the clock
// reaches the second at which the item ends.
func TestAnExpiredItemIsAbsentForEveryOperation(t *testing.T) {
	old := store.Item{Key: key, Value: []byte("old"), Version: 3, Counts: map[string]int64{"n": 9, "old": 1}}
	second := store.Put(store.Item{Key: other})
	one := map[string]int64{"n": 1}
	tests := map[string]struct {
		ops      []store.Op
		conflict bool
		want     *store.Item
	}{
		"put if it exists":         {ops: []store.Op{store.Put(store.Item{Key: key}, store.Exists())}, conflict: true},
		"put over the version":     {ops: []store.Op{store.Put(store.Item{Key: key}, store.VersionIs(3))}, conflict: true},
		"add":                      {ops: []store.Op{store.Add(key, one, nil)}, want: &store.Item{Key: key, Counts: one}},
		"add over the limit":       {ops: []store.Op{store.Add(key, map[string]int64{"n": 2}, one)}, conflict: true},
		"raise":                    {ops: []store.Op{store.Raise(key, "n", 1)}, want: &store.Item{Key: key, Counts: one}},
		"transact: add over limit": {ops: []store.Op{second, store.Add(key, map[string]int64{"n": 2}, one)}, conflict: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			db, old := open(t), old
			old.Expires = db.clock.Now().Add(time.Minute)
			write(t, db, store.Put(old))
			db.clock.advance(time.Minute)
			err := db.Write(t.Context(), tt.ops...)
			if errors.Is(err, store.ErrConflict) != tt.conflict || (err != nil && !tt.conflict) {
				t.Errorf("got %v, want a conflict: %v", err, tt.conflict)
			}
			same(t, read(t, db, key), tt.want)
		})
	}
}

func TestACountMayCarryAnExpiry(t *testing.T) {
	db := open(t)
	at := db.clock.Now().Add(time.Hour).Truncate(time.Second).UTC()
	for i, op := range []store.Op{store.Add(key, map[string]int64{"n": 3}, nil), store.Raise(key, "n", 7), store.Raise(key, "n", 7)} {
		op.Item.Expires = at.Add(time.Duration(i) * time.Minute)
		write(t, db, op)
	}
	same(t, read(t, db, key), &store.Item{Key: key, Counts: map[string]int64{"n": 7}, Expires: at.Add(2 * time.Minute)})
}

func TestConcurrentTransactionsOnACountAllApply(t *testing.T) {
	db := open(t)
	const writers = 8
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			err := db.Write(t.Context(),
				store.Add(key, map[string]int64{"n": 1}, map[string]int64{"n": writers}),
				store.Put(store.Item{Key: store.Key{Table: store.Deliveries, Partition: "w", Sort: fmt.Sprint(i)}}, store.Absent()))
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	same(t, read(t, db, key), &store.Item{Key: key, Counts: map[string]int64{"n": writers}})
}

const canceled = `{"__type":"com.amazonaws.dynamodb.v20120810#TransactionCanceledException",
	"CancellationReasons":[{"Code":"None"},{"Code":"%s"}]}`

func TestAConflictOfTransactionsIsRepeated(t *testing.T) {
	two := []store.Op{store.Put(store.Item{Key: key, Version: 1}), store.Put(store.Item{Key: other}, store.Absent())}
	tests := map[string]struct {
		operation, body string
		ops             []store.Op
	}{
		"transaction":           {"TransactWriteItems", fmt.Sprintf(canceled, "TransactionConflict"), two},
		"throttled transaction": {"TransactWriteItems", fmt.Sprintf(canceled, "ThrottlingError"), two},
		"single write":          {"PutItem", `{"__type":"TransactionConflictException"}`, two[:1]},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			db := open(t)
			db.wire.answer(tt.operation, http.StatusBadRequest, tt.body)
			write(t, db, tt.ops...)
			same(t, read(t, db, key), &store.Item{Key: key, Version: 1})
		})
	}
}

func TestARefusedConditionWinsOverAConflictOfTransactions(t *testing.T) {
	db := open(t)
	db.wire.answer("TransactWriteItems", http.StatusBadRequest, strings.Replace(
		fmt.Sprintf(canceled, "ConditionalCheckFailed"), `"None"`, `"TransactionConflict"`, 1))
	err := db.Write(t.Context(), store.Put(store.Item{Key: key}), store.Put(store.Item{Key: other}, store.Absent()))
	if !errors.Is(err, store.ErrConflict) || !fault.Is(err, fault.Conflict) {
		t.Errorf("got %v, want a conflict", err)
	}
}

// unprocessed leaves the whole request undone.
func unprocessed(member string) func(body []byte, _ func() (*http.Response, error)) (*http.Response, error) {
	return func(body []byte, _ func() (*http.Response, error)) (*http.Response, error) {
		var request struct{ RequestItems json.RawMessage }
		if err := json.Unmarshal(body, &request); err != nil {
			return nil, err
		}
		return reply(http.StatusOK, fmt.Sprintf(`{"Responses":{},%q:%s}`, member, request.RequestItems)), nil
	}
}

func TestUnprocessedItemsOfABatchAreRetried(t *testing.T) {
	db := open(t)
	db.wire.add(wireFault{"BatchWriteItem", unprocessed("UnprocessedItems")})
	db.wire.add(wireFault{"BatchGetItem", unprocessed("UnprocessedKeys")})
	expect.OK(t, db.WriteAll(t.Context(), store.Put(store.Item{Key: key}), store.Put(store.Item{Key: other, Version: 2})))
	items := expect.Value(db.Get(t.Context(), other, key))(t)
	same(t, items[0], &store.Item{Key: other, Version: 2})
	same(t, items[1], &store.Item{Key: key})
	if db.wire.left() > 0 {
		t.Error("a batch was not sent")
	}
}

func TestABusyTableIsUnavailableInTheEnd(t *testing.T) {
	calls := map[string]struct {
		answer func(body []byte) *http.Response
		call   func(ctx context.Context, db *DB) error
	}{
		"read": {
			func(body []byte) *http.Response { resp, _ := unprocessed("UnprocessedKeys")(body, nil); return resp },
			func(ctx context.Context, db *DB) error { _, err := db.Get(ctx, key, other); return err },
		},
		"transaction": {
			func([]byte) *http.Response { return reply(400, fmt.Sprintf(canceled, "TransactionConflict")) },
			func(ctx context.Context, db *DB) error { return db.Write(ctx, store.Delete(key), store.Delete(other)) },
		},
		"throttled": {
			func([]byte) *http.Response {
				return reply(400, `{"__type":"ProvisionedThroughputExceededException"}`)
			},
			func(ctx context.Context, db *DB) error { return db.Write(ctx, store.Delete(key)) },
		},
		"broken": {
			func([]byte) *http.Response { return reply(500, `{"__type":"InternalServerError"}`) },
			func(ctx context.Context, db *DB) error {
				_, err := db.Query(ctx, store.Query{Table: store.Log, Partition: "p"})
				return err
			},
		},
	}
	for name, tt := range calls {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &wire{}
				for range 100 {
					w.add(wireFault{"", func(body []byte, _ func() (*http.Response, error)) (*http.Response, error) {
						return tt.answer(body), nil
					}})
				}
				client := dynamodb.NewFromConfig(awslocal.Config("http://127.0.0.1:1"), func(o *dynamodb.Options) { o.HTTPClient = all{w} })
				err := tt.call(t.Context(), New(client, func(table store.Table) string { return string(table) }))
				expect.Fault(t, "the request", err, fault.Unavailable)
			})
		})
	}
}

// all makes every fault happen to any operation.
type all struct{ *wire }

func (a all) Do(req *http.Request) (*http.Response, error) {
	req.Header.Set("X-Amz-Target", ".")
	return a.wire.Do(req)
}

func TestAMissingTableIsAnErrorOfOurs(t *testing.T) {
	db := New(open(t).client, func(table store.Table) string { return "none-" + string(table) })
	_, err := db.Get(t.Context(), key)
	if fault.KindOf(err) != fault.Internal || err == nil {
		t.Errorf("got %v, want an internal error", err)
	}
}

func TestRangesOverExpiredItemsAndBothBounds(t *testing.T) {
	db := open(t)
	for i, sort := range []string{"a", "b", "c", "d", "e"} {
		item := store.Item{Key: store.Key{Table: store.Log, Partition: "p", Sort: sort}}
		if i == 1 || i == 2 {
			item.Expires = db.clock.Now().Add(-time.Second)
		}
		write(t, db, store.Put(item))
	}
	tests := map[string]struct {
		query store.Query
		want  string
		more  bool
		last  string
	}{
		"all":                        {store.Query{}, "ade", false, "e"},
		"expired at the end of page": {store.Query{Limit: 3}, "a", true, "c"},
		"after and before":           {store.Query{After: "a", Before: "e"}, "d", false, "d"},
		"after and before, reverse":  {store.Query{After: "a", Before: "e", Reverse: true, Limit: 1}, "d", true, "d"},
		"before what does not exist": {store.Query{After: "Z", Before: "dd", Reverse: true, Limit: 1}, "d", true, "c"},
		"until below before":         {store.Query{Until: "a", Before: "e"}, "a", false, "a"},
		"nothing":                    {store.Query{After: "e", Until: "a"}, "", false, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tt.query.Table, tt.query.Partition = store.Log, "p"
			page := expect.Value(db.Query(t.Context(), tt.query))(t)
			var got string
			for _, item := range page.Items {
				got += item.Sort
			}
			if got != tt.want || page.More != tt.more || page.Last != tt.last {
				t.Errorf("got %q, more %v, last %q; want %q, %v, %q", got, page.More, page.Last, tt.want, tt.more, tt.last)
			}
		})
	}
}

// The suite has the limits that all stores have.
func TestWritesOutsideOfTheLimitsAreRefused(t *testing.T) {
	db := open(t)
	tests := map[string]struct {
		ops  []store.Op
		kind fault.Kind
	}{
		"raise among others": {[]store.Op{store.Delete(other), store.Raise(key, "n", 1)}, fault.Invalid},
		"name of a limit":    {[]store.Op{store.Add(key, nil, map[string]int64{"": 1})}, fault.Invalid},
		"unknown operation":  {[]store.Op{{Item: store.Item{Key: key}}}, fault.Invalid},
		"large in total":     {large(11), fault.TooLarge},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			expect.Fault(t, "the request", db.Write(t.Context(), tt.ops...), tt.kind)
		})
	}
	write(t, db, large(10)...)
	if err := db.WriteAll(t.Context(), large(60)...); err != nil {
		t.Errorf("many large items without order: %v", err)
	}
	keys := make([]store.Key, 60)
	for i, op := range large(60) {
		keys[i] = op.Item.Key
	}
	items, err := db.Get(t.Context(), keys...) // more than the 16 MB of one answer
	expect.OK(t, err)
	for i, item := range items {
		if item == nil || len(item.Value) != store.MaxItem {
			t.Errorf("item %d is missing", i)
		}
	}
}

// large makes items of the largest size.
func large(n int) []store.Op {
	ops := make([]store.Op, n)
	for i := range ops {
		ops[i] = store.Put(store.Item{
			Key:   store.Key{Table: store.Log, Partition: fmt.Sprint("large", i), Sort: strings.Repeat("s", 1024)},
			Value: make([]byte, store.MaxItem), Counts: map[string]int64{"n": 1},
		})
	}
	return ops
}

func TestTablesAreMadeOnceAndExpireItems(t *testing.T) {
	db := open(t)
	if err := awslocal.CreateTables(t.Context(), db.client, db.name); err != nil {
		t.Fatalf("a second time: %v", err)
	}
	name := db.name(store.Log)
	ttl := expect.Value(db.client.DescribeTimeToLive(t.Context(), &dynamodb.DescribeTimeToLiveInput{TableName: &name}))(t)
	if d := ttl.TimeToLiveDescription; d.TimeToLiveStatus != types.TimeToLiveStatusEnabled || *d.AttributeName != "exp" {
		t.Errorf("got %+v", d)
	}
}
