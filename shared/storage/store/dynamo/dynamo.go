// Package dynamo keeps a [store.DB] in DynamoDB: one table per [store.Table],
// one request per call wherever DynamoDB has one for it.
//
// # Layout
//
// An item is stored as it is, no index, nothing derived:
//
//	pk  S   partition      v       N  version
//	sk  S   sort key       c_NAME  N  a count
//	d   B   value          exp     N  expiry, seconds since 1970; the table's TTL attribute
//	t   B   mark of the last conditional write, see below
//
// TTL deletes late, by hours, so every read filters and every condition names
// the time: an expired item is absent for readers and writers alike.
//
// # A lost answer is no conflict
//
// The SDK repeats a request whose answer did not arrive. If the first one was applied, the condition of the second
// fails on our own write. A transaction carries a ClientRequestToken against that. A single put or count carries a
// random mark in attribute t instead, at no extra cost. A failed condition on an item with our mark is a success, and a
// count is not added twice unless another writer has counted in between. So a count is lowered in a transaction. A
// delete leaves no trace: when a conditional delete is repeated after a lost answer and finds nothing, it counts as
// done, although another writer may have deleted the item. Where that matters, delete within a transaction.
//
// Domain types do not enter here; package store says where they are. store/storetest holds the promises.
package dynamo

import (
	"context"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// DB is a [store.DB] in DynamoDB.
type DB struct {
	client *dynamodb.Client
	names  map[store.Table]string
	now    func() time.Time
}

var _ store.DB = (*DB)(nil)

// New returns a store in the tables that name gives, which must exist with pk
// and sk as their key and TTL on exp; template.yaml makes them so.
func New(client *dynamodb.Client, name func(store.Table) string) *DB {
	db := &DB{client: client, names: map[store.Table]string{}, now: time.Now}
	for _, table := range store.Tables() {
		db.names[table] = name(table)
	}
	return db
}

// Stamps reports false, because DynamoDB gives no order of commits.
func (db *DB) Stamps() bool { return false }

// Local reports false, because all functions share the tables.
func (db *DB) Local() bool { return false }

// End returns 0, because the store does not stamp.
func (db *DB) End() int64 { return 0 }

// Close does nothing; the client has nothing to close.
func (db *DB) Close() error { return nil }

// Get is one GetItem for one key and BatchGetItem for more.
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

// getMany asks again for what DynamoDB left unprocessed, which it does above 16
// MB and when throttled.
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

// Query is one Query request, so a page ends at 1 MB whatever its limit.
func (db *DB) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if err := q.Check(); err != nil {
		return store.Page{}, err
	}
	r := rangeOf(q)
	if r.nothing {
		return store.Page{}, nil
	}
	limit := q.Limit
	if r.inclusive() {
		limit++ // for the item that is then left out
	}
	e := &expression{}
	// A filter, not a look at the answer: what TTL has left lying is read but not sent.
	filter := e.alive(db.now())
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
		if r.inclusive() && item.Sort == r.high {
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

// sortRange is a range of sort keys. DynamoDB takes one comparison or one
// BETWEEN, both ends inclusive; the range is brought into that form.
type sortRange struct {
	low  string // inclusive; empty is unbounded
	high string // empty is unbounded
	// open says that high itself is not part of the range.
	open    bool
	nothing bool
}

func rangeOf(q store.Query) sortRange {
	var r sortRange
	if q.After != "" {
		r.low = q.After + "\x00" // the next string after After, bytewise
	}
	switch {
	case q.Before != "" && (q.Until == "" || q.Before <= q.Until):
		r.high, r.open = q.Before, true
	case q.Until != "":
		r.high = q.Until
	}
	r.nothing = r.high != "" && (r.low > r.high || r.open && r.low == r.high)
	return r
}

// inclusive reports that the request will cover high although the range does not.
func (r sortRange) inclusive() bool { return r.low != "" && r.open }

func (r sortRange) condition(e *expression, partition string) string {
	end := func(sort string) string { return e.value(&types.AttributeValueMemberS{Value: sort}) }
	all := "pk = " + end(partition)
	switch {
	case r.low != "" && r.high != "":
		return all + " AND sk BETWEEN " + end(r.low) + " AND " + end(r.high)
	case r.low != "":
		return all + " AND sk >= " + end(r.low)
	case r.high != "" && r.open:
		return all + " AND sk < " + end(r.high)
	case r.high != "":
		return all + " AND sk <= " + end(r.high)
	}
	return all
}

// expired reports whether the item has stopped existing.
func (db *DB) expired(item *store.Item) bool {
	return !item.Expires.IsZero() && db.now().Unix() >= item.Expires.Unix()
}
