// Package dynamo keeps a [store.DB] in DynamoDB, with one DynamoDB table per [store.Table]. Most calls are one request.
//
// # Layout
//
// An item has only these attributes, and the tables have no secondary indexes:
//
//	pk  S   partition      v       N  version
//	sk  S   sort key       c_NAME  N  a count
//	d   B   value          exp     N  expiry, seconds since 1970; the table's TTL attribute
//	z   B   compressed value, instead of d
//	t   B   mark of the last conditional write, see below
//
// DynamoDB may delete an expired item hours late. So every read and every condition compares exp with the current time, and treats an
// expired item as absent.
//
// # Lost responses
//
// The SDK repeats a request whose response was lost. If DynamoDB has applied the first request, the condition of the second one fails
// because of our own write. That must not look like a conflict:
//
//   - A transaction has a ClientRequestToken, so DynamoDB recognizes the second request.
//   - A single conditional put or addition writes a random mark into attribute t. If its condition fails on an item with this mark, the
//     first request has succeeded.
//   - An addition is applied twice if another writer has added to the same item between the two requests. That must not happen to a
//     decrement, so a decrement needs a transaction (see [lowersCount]).
//   - A repeated conditional delete that finds no item counts as a success, although another writer may have deleted the item. Callers to
//     whom that matters delete in a transaction.
package dynamo

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"

	"github.com/mcp-events/mcpevents/shared/platform/awsx"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// DB is a [store.DB] in DynamoDB.
type DB struct {
	client *dynamodb.Client
	names  map[store.Table]string
	now    func() time.Time
}

var _ store.DB = (*DB)(nil)

// New returns a store. The function name returns the name of a table in DynamoDB. These tables must exist, with the keys pk and sk and
// with TTL on exp, as in template.yaml.
func New(client *dynamodb.Client, name func(store.Table) string) *DB {
	db := &DB{client: client, names: map[store.Table]string{}, now: time.Now}
	for _, table := range store.Tables() {
		db.names[table] = name(table)
	}
	return db
}

// Local reports false, because all functions share the tables, and DynamoDB gives no order of commits.
func (db *DB) Local() bool { return false }

// End returns 0, because this store does not support stamps; see [store.AtCommit].
func (db *DB) End() int64 { return 0 }

// Close does nothing; the client has nothing to close.
func (db *DB) Close() error { return nil }

// Get reads one key with GetItem and several keys with BatchGetItem.
func (db *DB) Get(ctx context.Context, keys ...store.Key) ([]*store.Item, error) {
	if len(keys) > store.MaxGet {
		return nil, fault.New(fault.Invalid, "the read has %d keys (allowed: up to %d)", len(keys), store.MaxGet)
	}
	found := make(map[store.Key]*store.Item, len(keys))
	for _, key := range keys {
		if err := key.Check(); err != nil {
			return nil, err
		}
		found[key] = nil
	}
	var err error
	switch len(found) {
	case 0:
	case 1:
		err = db.getOne(ctx, keys[0], found)
	default:
		err = db.getMany(ctx, found)
	}
	if err != nil {
		return nil, failure(err, "reading %d items", len(found))
	}
	items := make([]*store.Item, len(keys))
	for i, key := range keys {
		items[i] = found[key]
	}
	return items, nil
}

func (db *DB) getOne(ctx context.Context, key store.Key, found map[store.Key]*store.Item) error {
	out, err := db.client.GetItem(ctx, &dynamodb.GetItemInput{
		TableName: aws.String(db.names[key.Table]), Key: keyOf(key), ConsistentRead: aws.Bool(true),
	})
	if err != nil || out.Item == nil {
		return err
	}
	item, err := decode(key.Table, out.Item)
	if err == nil && !db.expired(item) {
		found[key] = item
	}
	return err
}

// getMany reads the items whose keys are in found. It repeats the request for keys that DynamoDB left unprocessed, because the response
// reached 16 MB or the table was throttled.
func (db *DB) getMany(ctx context.Context, found map[store.Key]*store.Item) error {
	tables := map[string]store.Table{}
	request := map[string]types.KeysAndAttributes{}
	for key := range found {
		name := db.names[key.Table]
		tables[name] = key.Table
		part := request[name]
		part.ConsistentRead = aws.Bool(true)
		part.Keys = append(part.Keys, keyOf(key))
		request[name] = part
	}
	pause := newPause()
	for {
		out, err := db.client.BatchGetItem(ctx, &dynamodb.BatchGetItemInput{RequestItems: request})
		if err != nil {
			return err
		}
		for name, list := range out.Responses {
			for _, attrs := range list {
				item, err := decode(tables[name], attrs)
				if err != nil {
					return err
				}
				if !db.expired(item) {
					found[item.Key] = item
				}
			}
		}
		if len(out.UnprocessedKeys) == 0 {
			return nil
		}
		if countKeys(out.UnprocessedKeys) < countKeys(request) {
			pause.reset()
		}
		request = out.UnprocessedKeys
		if err := pause.wait(ctx); err != nil {
			return err
		}
	}
}

func countKeys(request map[string]types.KeysAndAttributes) (n int) {
	for _, part := range request {
		n += len(part.Keys)
	}
	return n
}

// Query implements [store.DB] with one Query request. A page ends at 1 MB even if it has fewer items than its limit.
func (db *DB) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if err := q.Check(); err != nil {
		return store.Page{}, err
	}
	r := rangeOf(q)
	if r.empty {
		return store.Page{}, nil
	}
	limit := q.Limit + r.countExcluded() // the request may also return the items at the excluded bounds
	e := &expression{}
	filter := e.alive(db.now()) // leaves out expired items that TTL has not deleted yet
	out, err := db.client.Query(ctx, &dynamodb.QueryInput{
		TableName:                 aws.String(db.names[q.Table]),
		KeyConditionExpression:    aws.String(r.condition(e, q.Partition)),
		FilterExpression:          aws.String(filter),
		ExpressionAttributeNames:  e.names,
		ExpressionAttributeValues: e.values,
		ScanIndexForward:          aws.Bool(!q.Reverse),
		ConsistentRead:            aws.Bool(!q.Eventual),
		Limit:                     aws.Int32(int32(limit)),
	})
	if err != nil {
		return store.Page{}, failure(err, "querying %s", q.Table)
	}

	var page store.Page
	for _, attrs := range out.Items {
		item, err := decode(q.Table, attrs)
		if err != nil {
			return store.Page{}, failure(err, "querying %s", q.Table)
		}
		if r.excludes(item.Sort) {
			continue
		}
		if len(page.Items) == q.Limit {
			page.More = true
			page.Last = page.Items[len(page.Items)-1].Sort
			return page, nil
		}
		page.Items = append(page.Items, *item)
	}
	if last, ok := out.LastEvaluatedKey["sk"].(*types.AttributeValueMemberS); ok {
		page.More, page.Last = true, last.Value
	} else if n := len(page.Items); n > 0 {
		page.Last = page.Items[n-1].Sort
	}
	return page, nil
}

// maxSort is the size of the largest sort key in bytes. DynamoDB also refuses larger keys in conditions.
const maxSort = 1024

// sortRange is a range of sort keys that DynamoDB can test with one comparison or one BETWEEN. BETWEEN includes both bounds, even if the
// range excludes them.
type sortRange struct {
	low   string // empty is unbounded
	above bool   // low is exclusive
	high  string // empty is unbounded
	open  bool   // high is exclusive
	empty bool
}

func rangeOf(q store.Query) sortRange {
	var r sortRange
	switch {
	case len(q.After) == maxSort: // After with a zero byte at its end would be too long for DynamoDB
		r.low, r.above = q.After, true
	case q.After != "":
		r.low = q.After + "\x00"
	}
	switch {
	case q.Before != "" && (q.Until == "" || q.Before <= q.Until):
		r.high, r.open = q.Before, true
	case q.Until != "":
		r.high = q.Until
	}
	r.empty = r.high != "" && (r.low > r.high || (r.above || r.open) && r.low == r.high)
	return r
}

// countExcluded returns how many items the request may return although they are outside the range; see [sortRange].
func (r sortRange) countExcluded() (n int) {
	if r.low == "" || r.high == "" {
		return 0
	}
	if r.above {
		n++
	}
	if r.open {
		n++
	}
	return n
}

func (r sortRange) excludes(sort string) bool {
	return r.above && sort == r.low || r.open && sort == r.high
}

func (r sortRange) condition(e *expression, partition string) string {
	end := func(sort string) string { return e.value(&types.AttributeValueMemberS{Value: sort}) }
	all := "pk = " + end(partition)
	switch {
	case r.low != "" && r.high != "":
		return all + " AND sk BETWEEN " + end(r.low) + " AND " + end(r.high)
	case r.above:
		return all + " AND sk > " + end(r.low)
	case r.low != "":
		return all + " AND sk >= " + end(r.low)
	case r.high != "" && r.open:
		return all + " AND sk < " + end(r.high)
	case r.high != "":
		return all + " AND sk <= " + end(r.high)
	}
	return all
}

func (db *DB) expired(item *store.Item) bool {
	return !item.Expires.IsZero() && db.now().Unix() >= item.Expires.Unix()
}

// Limits of the pauses before our own retries. They are for failures after which the SDK does not retry, for example when DynamoDB leaves
// a part of a batch unprocessed.
const (
	maxPauses  = 10
	firstPause = 10 * time.Millisecond
	longPause  = 640 * time.Millisecond
)

// errBusy is returned if DynamoDB still refuses a part of a call after [maxPauses] retries.
var errBusy = fault.New(fault.Unavailable, "the table is too busy")

// pause counts retries and determines the time before each of them. The time is random, and its upper bound doubles with each retry.
type pause struct {
	count int
	bound time.Duration
}

func newPause() *pause { return &pause{bound: firstPause} }

// reset makes the next pause short again. Callers reset after DynamoDB has processed a part of a batch.
func (p *pause) reset() { *p = *newPause() }

// wait sleeps before a retry. It returns an error if ctx ends, or after ten pauses, which take about two seconds in total.
func (p *pause) wait(ctx context.Context) error {
	if p.count++; p.count > maxPauses {
		return errBusy
	}
	d := rand.N(p.bound)
	p.bound = min(2*p.bound, longPause)
	return periodic.Sleep(ctx, d)
}

// isConflict reports whether a write failed because of a concurrent transaction or throttling, so that a retry may succeed.
func isConflict(err error) bool {
	if _, ok := errors.AsType[*types.TransactionConflictException](err); ok {
		return true
	}
	canceled, ok := errors.AsType[*types.TransactionCanceledException](err)
	return ok && slices.ContainsFunc(canceled.CancellationReasons, func(r types.CancellationReason) bool {
		return r.Code != nil && slices.Contains(temporary, *r.Code)
	})
}

var temporary = []string{"TransactionConflict", "ProvisionedThroughputExceeded", "ThrottlingError"}

// failure wraps an error for the callers of this package. It leaves [store.ErrConflict] without a kind, because only the caller knows the
// meaning of the failed condition.
func failure(err error, format string, args ...any) error {
	if errors.Is(err, store.ErrConflict) {
		return err
	}
	kind := awsx.KindOf(err)
	if isConflict(err) {
		kind = fault.Unavailable
	}
	return fault.Wrap(kind, err, format, args...)
}

// attempts is a middleware of the SDK that records whether the response to a request was lost. It sees the SDK's retries.
type attempts struct {
	lost bool // after a failed request that DynamoDB may have applied
}

func (a *attempts) ID() string { return "mcpevents.attempts" }

func (a *attempts) HandleFinalize(
	ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler,
) (middleware.FinalizeOutput, middleware.Metadata, error) {
	out, meta, err := next.HandleFinalize(ctx, in)
	if err != nil {
		api, answered := errors.AsType[smithy.APIError](err)
		if !answered || api.ErrorFault() != smithy.FaultClient {
			a.lost = true
		}
	}
	return out, meta, err
}

// watch adds the middleware after the SDK's retry step, so that it sees each attempt of a request.
func (a *attempts) watch(stack *middleware.Stack) error {
	return stack.Finalize.Insert(a, "Retry", middleware.After)
}
