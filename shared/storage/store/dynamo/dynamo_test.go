package dynamo

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
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
		{"a check", func(ctx context.Context) error { return db.Write(ctx, store.Check(key, store.Exists())) }, "TransactWriteItems"},
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
			expect.OK(t, tt.call(t.Context()), tt.name)
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
	expect.Is(t, "the write", err, store.ErrConflict)
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
	expect.AtMost(t, "the batches that were not sent", db.wire.left(), 0)
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
	expect.Equal(t, "the kind of the error", fault.KindOf(err), fault.Internal)
	expect.Error(t, "the error", err)
}

// The suite has the limits that all stores have.
func TestWritesOutsideOfTheLimitsAreRefused(t *testing.T) {
	db := open(t)
	tests := map[string]struct {
		ops  []store.Op
		kind fault.Kind
	}{
		"name of a limit":   {[]store.Op{store.Add(key, nil, map[string]int64{"": 1})}, fault.Invalid},
		"unknown operation": {[]store.Op{{Item: store.Item{Key: key}}}, fault.Invalid},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			expect.Fault(t, "the request", db.Write(t.Context(), tt.ops...), tt.kind)
		})
	}
	write(t, db, large(10)...)
	expect.OK(t, db.WriteAll(t.Context(), large(60)...), "many large items without order")
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
	expect.OK(t, awslocal.CreateTables(t.Context(), db.client, db.name), "a second time")
	name := db.name(store.Log)
	ttl := expect.Value(db.client.DescribeTimeToLive(t.Context(), &dynamodb.DescribeTimeToLiveInput{TableName: &name}))(t)
	if d := ttl.TimeToLiveDescription; d.TimeToLiveStatus != types.TimeToLiveStatusEnabled || *d.AttributeName != "exp" {
		t.Errorf("got %+v", d)
	}
}

var (
	key   = store.Key{Table: store.Deliveries, Partition: "p", Sort: "s"}
	other = store.Key{Table: store.Deliveries, Partition: "p", Sort: "other"}
)

func read(t *testing.T, db store.DB, key store.Key) *store.Item {
	t.Helper()
	return expect.Value(db.Get(t.Context(), key))(t)[0]
}

func write(t *testing.T, db store.DB, ops ...store.Op) {
	t.Helper()
	expect.OK(t, db.Write(t.Context(), ops...))
}

func TestALostAnswerIsNoConflict(t *testing.T) {
	tests := map[string]struct {
		given     store.Op
		operation string
		when      []store.Op
		want      *store.Item
	}{
		"put if absent": {
			operation: "PutItem",
			when:      []store.Op{store.Put(store.Item{Key: key, Version: 1}, store.Absent())},
			want:      &store.Item{Key: key, Version: 1},
		},
		"put over a version": {
			given:     store.Put(store.Item{Key: key, Version: 1}),
			operation: "PutItem",
			when:      []store.Op{store.Put(store.Item{Key: key, Version: 2}, store.VersionIs(1))},
			want:      &store.Item{Key: key, Version: 2},
		},
		"delete of a version": {
			given:     store.Put(store.Item{Key: key, Version: 1}),
			operation: "DeleteItem",
			when:      []store.Op{store.Delete(key, store.VersionIs(1))},
		},
		"a count is added once": {
			given:     store.Add(key, map[string]int64{"n": 5}, nil),
			operation: "UpdateItem",
			when:      []store.Op{store.Add(key, map[string]int64{"n": 2}, nil)},
			want:      &store.Item{Key: key, Counts: map[string]int64{"n": 7}},
		},
		"a count reaches its limit": {
			given:     store.Add(key, map[string]int64{"n": 5}, nil),
			operation: "UpdateItem",
			when:      []store.Op{store.Add(key, map[string]int64{"n": 2}, map[string]int64{"n": 7})},
			want:      &store.Item{Key: key, Counts: map[string]int64{"n": 7}},
		},
		"a transaction": {
			given:     store.Add(key, map[string]int64{"n": 5}, nil),
			operation: "TransactWriteItems",
			when: []store.Op{
				store.Add(key, map[string]int64{"n": 2}, nil),
				store.Put(store.Item{Key: other, Version: 1}, store.Absent()),
			},
			want: &store.Item{Key: key, Counts: map[string]int64{"n": 7}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			db := open(t)
			if tt.given.Kind != 0 {
				write(t, db, tt.given)
			}
			db.wire.lose(tt.operation)
			expect.OK(t, db.Write(t.Context(), tt.when...), "the write")
			expect.AtMost(t, "the answers that were not lost", db.wire.left(), 0)
			same(t, read(t, db, key), tt.want)
		})
	}
}

// A transaction of another writer can refuse the request that the SDK repeats, although the first one was applied.
func TestALostAnswerBeforeAConflictOfTransactionsIsNoConflict(t *testing.T) {
	tests := map[string]struct {
		operation string
		when      store.Op
		want      *store.Item
	}{
		"put":    {"PutItem", store.Put(store.Item{Key: key, Version: 2}, store.VersionIs(1)), &store.Item{Key: key, Version: 2}},
		"delete": {"DeleteItem", store.Delete(key, store.VersionIs(1)), nil},
		"add":    {"UpdateItem", store.Add(key, map[string]int64{"n": 2}, nil), &store.Item{Key: key, Version: 1, Counts: map[string]int64{"n": 7}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			db := open(t)
			write(t, db, store.Put(store.Item{Key: key, Version: 1, Counts: map[string]int64{"n": 5}}))
			db.wire.lose(tt.operation)
			db.wire.answer(tt.operation, http.StatusBadRequest, `{"__type":"TransactionConflictException"}`)
			expect.OK(t, db.Write(t.Context(), tt.when), "the write")
			expect.Equal(t, "faults that did not happen", db.wire.left(), 0)
			same(t, read(t, db, key), tt.want)
		})
	}
}

func TestALostAnswerDoesNotHideAConflict(t *testing.T) {
	tests := map[string]struct {
		operation string
		when      store.Op
	}{
		"put":    {"PutItem", store.Put(store.Item{Key: key, Version: 2}, store.VersionIs(1))},
		"delete": {"DeleteItem", store.Delete(key, store.VersionIs(1))},
		"add":    {"UpdateItem", store.Add(key, map[string]int64{"n": 2}, map[string]int64{"n": 3})},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			db := open(t)
			write(t, db, store.Put(store.Item{Key: key, Version: 7, Counts: map[string]int64{"n": 2}}))
			db.wire.lose(tt.operation)
			expect.Is(t, "the write", db.Write(t.Context(), tt.when), store.ErrConflict)
		})
	}
}

// Two writers with the same content are told apart: only one of them has won.
func TestTheSameContentOfAnotherWriterIsAConflict(t *testing.T) {
	db := open(t)
	op := store.Put(store.Item{Key: key, Value: []byte("same"), Version: 1}, store.Absent())
	write(t, db, op)
	db.wire.lose("PutItem")
	expect.Is(t, "the write", db.Write(t.Context(), op), store.ErrConflict)
}

// A count that is lowered twice would say that there is nothing where there is.
func TestACountIsLoweredOnceWhoeverCountsMeanwhile(t *testing.T) {
	db := open(t)
	write(t, db, store.Put(store.Item{Key: key, Counts: map[string]int64{"n": 5}}))
	other := New(dynamodb.NewFromConfig(awslocal.Config(awslocal.Start(t, awslocal.DynamoDB).DynamoDB)), db.name)
	for _, operation := range []string{"UpdateItem", "TransactWriteItems"} { // whichever it is
		db.wire.add(wireFault{operation, func(_ []byte, through func() (*http.Response, error)) (*http.Response, error) {
			resp, err := through()
			if err != nil {
				return nil, err
			}
			resp.Body.Close()
			if err := other.Write(t.Context(), store.Add(key, map[string]int64{"n": 1}, nil)); err != nil {
				t.Error(err)
			}
			return nil, &net{"connection reset by peer"}
		}})
	}
	write(t, db, store.Add(key, map[string]int64{"n": -1}, nil))
	expect.Equal(t, "5 and 1 less 1", read(t, db, key).Counts["n"], 5)
}

func TestValuesThatSaveUnitsAreCompressed(t *testing.T) {
	var text strings.Builder
	for n := range 200 {
		fmt.Fprintf(&text, `{"id":"evt_%d","uri":"event://github/a/b/pull_request","n":%d},`, n, n*n)
	}
	random := make([]byte, 20<<10)
	_, _ = rand.Read(random)
	for name, tc := range map[string]struct {
		value  []byte
		packed bool
	}{
		"a large text":       {[]byte(text.String()), true},
		"a text of one unit": {[]byte(text.String()[:unit]), false},
		"a sealed value":     {random, false},
		"an empty value":     {nil, false},
		"the largest value":  {bytes.Repeat([]byte("x"), store.MaxItem), true},
	} {
		t.Run(name, func(t *testing.T) {
			item := store.Item{Key: store.Key{Table: store.Log, Partition: "p", Sort: "s"}, Value: tc.value}
			attrs := encode(item, nil)
			if _, packed := attrs["z"]; packed != tc.packed {
				t.Errorf("compressed: %v, want %v", packed, tc.packed)
			}
			got, err := decode(store.Log, attrs)
			if err != nil || !bytes.Equal(got.Value, tc.value) {
				t.Errorf("got %d bytes of %d, %v", len(got.Value), len(tc.value), err)
			}
		})
	}
	t.Run("a value that is too large is refused", func(t *testing.T) {
		expect.Error(t, "a text that inflates beyond the limit", expect.ErrOf(inflate(deflate(bytes.Repeat([]byte("x"), store.MaxItem+1)))))
	})
}
