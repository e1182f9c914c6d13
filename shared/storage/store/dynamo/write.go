package dynamo

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Write is one request for one operation, at half the price of a transaction,
// and TransactWriteItems for several. A transaction holds at most 4 MB.
func (db *DB) Write(ctx context.Context, ops ...store.Op) error {
	if err := checkOps(ops); err != nil {
		return err
	}
	switch len(ops) {
	case 0:
		return nil
	case 1:
		if err := db.writeOne(ctx, ops[0]); err != nil {
			return failure(err, "writing to %s", ops[0].Item.Table)
		}
		return nil
	}
	if err := db.transact(ctx, ops); err != nil {
		return failure(err, "writing %d items, the first to %s", len(ops), ops[0].Item.Table)
	}
	return nil
}

func (db *DB) writeOne(ctx context.Context, op store.Op) error {
	if op.Kind == store.OpAdd && lowers(op) {
		return db.transact(ctx, []store.Op{op})
	}
	try := map[store.OpKind]func(context.Context, store.Op) error{
		store.OpPut: db.put, store.OpDelete: db.delete, store.OpAdd: db.add, store.OpRaise: db.raise, store.OpCheck: db.check,
	}[op.Kind]
	pause := newPause()
	for {
		err := try(ctx, op)
		if err == nil || !conflicting(err) {
			return err
		}
		if err := pause.wait(ctx); err != nil {
			return err
		}
	}
}

// lowers reports that a count becomes less. An item keeps only the mark of its last addition. If another writer adds
// between a lost answer and its repetition, the repetition is counted twice. Counts say where to look: one that is too
// high costs a look, one that is too low hides an item. So only lowering costs a transaction.
func lowers(op store.Op) bool {
	for _, n := range op.Item.Counts {
		if n < 0 {
			return true
		}
	}
	return false
}

// newMark identifies a write to itself when it is repeated.
func newMark() []byte {
	mark := make([]byte, 8)
	rand.Read(mark) // never fails
	return mark
}

// refused returns the item on which a condition failed, empty if there is none.
func refused(err error) (old attributes, is bool) {
	failed, is := errors.AsType[*types.ConditionalCheckFailedException](err)
	if !is {
		return nil, false
	}
	return failed.Item, true
}

func marked(old attributes, mark []byte) bool {
	t, ok := old["t"].(*types.AttributeValueMemberB)
	return ok && string(t.Value) == string(mark)
}

func (db *DB) put(ctx context.Context, op store.Op) error {
	e := &expression{}
	in := &dynamodb.PutItemInput{TableName: aws.String(db.names[op.Item.Table])}
	var mark []byte
	if cond := e.condition(op.Cond, db.now()); cond != "" {
		mark = newMark()
		in.ConditionExpression = &cond
		in.ExpressionAttributeNames, in.ExpressionAttributeValues = e.names, e.values
		in.ReturnValuesOnConditionCheckFailure = types.ReturnValuesOnConditionCheckFailureAllOld
	}
	in.Item = encode(op.Item, mark)
	_, err := db.client.PutItem(ctx, in)
	if old, is := refused(err); is {
		if marked(old, mark) {
			return nil
		}
		return store.ErrConflict
	}
	return err
}

func (db *DB) delete(ctx context.Context, op store.Op) error {
	e := &expression{}
	in := &dynamodb.DeleteItemInput{TableName: aws.String(db.names[op.Item.Table]), Key: keyOf(op.Item.Key)}
	if cond := e.condition(op.Cond, db.now()); cond != "" {
		in.ConditionExpression = &cond
		in.ExpressionAttributeNames, in.ExpressionAttributeValues = e.names, e.values
		in.ReturnValuesOnConditionCheckFailure = types.ReturnValuesOnConditionCheckFailureAllOld
	}
	var tries attempts
	_, err := db.client.DeleteItem(ctx, in, func(o *dynamodb.Options) {
		o.APIOptions = append(o.APIOptions, tries.watch)
	})
	if old, is := refused(err); is {
		if len(old) == 0 && tries.lost {
			return nil
		}
		return store.ErrConflict
	}
	return err
}

// add updates the counts of an item that lives or is absent. It replaces an expired item.
func (db *DB) add(ctx context.Context, op store.Op) error {
	mark := newMark()
	pause := newPause()
	for {
		e := &expression{}
		conditions := append([]string{e.alive(db.now()), e.unmarked(mark)}, e.within(op.Item.Counts, op.Limits)...)
		old, err := db.update(ctx, op, e, e.sum(op.Item, mark), conditions)
		if err != nil || old == nil {
			return err
		}
		item, err := decode(op.Item.Table, old)
		if err != nil {
			return err
		}
		switch {
		case marked(old, mark):
			return nil
		case !db.expired(item) || !fits(op.Item.Counts, op.Limits):
			return store.ErrConflict
		}
		if done, err := db.begin(ctx, op, mark); done || err != nil {
			return err
		}
		if err := pause.wait(ctx); err != nil {
			return err
		}
	}
}

// raise sets a count that is smaller; the expiry, if there is one, is set in any
// case. Repeating it changes nothing, so it needs no mark.
func (db *DB) raise(ctx context.Context, op store.Op) error {
	pause := newPause()
	for {
		e := &expression{}
		old, err := db.update(ctx, op, e, "SET "+e.assign(op.Item, true, nil), []string{e.alive(db.now()), e.below(op.Item.Counts)})
		if err != nil || old == nil {
			return err
		}
		item, err := decode(op.Item.Table, old)
		if err != nil {
			return err
		}
		if !db.expired(item) {
			return db.extend(ctx, op, item)
		}
		if done, err := db.begin(ctx, op, nil); done || err != nil {
			return err
		}
		if err := pause.wait(ctx); err != nil {
			return err
		}
	}
}

// extend sets the expiry of an item whose count needed no raising.
func (db *DB) extend(ctx context.Context, op store.Op, item *store.Item) error {
	if op.Item.Expires.IsZero() || op.Item.Expires.Unix() == item.Expires.Unix() {
		return nil
	}
	e := &expression{}
	old, err := db.update(ctx, op, e, "SET "+e.assign(op.Item, false, nil), []string{"attribute_exists(pk)", e.alive(db.now())})
	if old != nil || errors.Is(err, store.ErrConflict) { // It is gone since.
		return db.raise(ctx, op)
	}
	return err
}

// update sends an UpdateItem. When the conditions fail it returns the item as it is, and no error.
func (db *DB) update(ctx context.Context, op store.Op, e *expression, update string, conditions []string) (old attributes, err error) {
	_, err = db.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName:                           aws.String(db.names[op.Item.Table]),
		Key:                                 keyOf(op.Item.Key),
		UpdateExpression:                    &update,
		ConditionExpression:                 aws.String(strings.Join(conditions, " AND ")),
		ExpressionAttributeNames:            e.names,
		ExpressionAttributeValues:           e.values,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	})
	if old, is := refused(err); is {
		if len(old) == 0 { // Only a limit that nothing can meet fails on an absent item.
			return nil, store.ErrConflict
		}
		return old, nil
	}
	return nil, err
}

// begin replaces an expired item by one that only counts. It does nothing when the item lives again.
func (db *DB) begin(ctx context.Context, op store.Op, mark []byte) (done bool, err error) {
	e := &expression{}
	_, err = db.client.PutItem(ctx, &dynamodb.PutItemInput{
		TableName:                           aws.String(db.names[op.Item.Table]),
		Item:                                encode(counting(op.Item), mark),
		ConditionExpression:                 aws.String(e.dead(db.now())),
		ExpressionAttributeNames:            e.names,
		ExpressionAttributeValues:           e.values,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	})
	if old, is := refused(err); is {
		return marked(old, mark), nil
	}
	return err == nil, err
}

// counting is what a count makes of an absent item.
func counting(item store.Item) store.Item {
	return store.Item{Key: item.Key, Counts: item.Counts, Expires: item.Expires}
}

// check reads, which is cheaper than a transaction of one check.
func (db *DB) check(ctx context.Context, op store.Op) error {
	found := map[store.Key]*store.Item{}
	if err := db.getOne(ctx, op.Item.Key, found); err != nil {
		return err
	}
	if !holds(op.Cond, found[op.Item.Key]) {
		return store.ErrConflict
	}
	return nil
}

// maxBatch is the most that BatchWriteItem takes.
const maxBatch = 25

// WriteAll is BatchWriteItem for every 25 operations. Of several operations on
// an item the last one counts.
func (db *DB) WriteAll(ctx context.Context, ops ...store.Op) error {
	type request struct {
		table string
		types.WriteRequest
	}
	place := make(map[store.Key]int, len(ops))
	requests := make([]request, 0, len(ops))
	for _, op := range ops {
		if err := checkOp(op); err != nil {
			return err
		}
		if kind, _ := op.Cond.Unpack(); kind != "" || (op.Kind != store.OpPut && op.Kind != store.OpDelete) {
			return fault.New(fault.Invalid, "WriteAll allows only puts and deletes without a condition")
		}
		r := request{table: db.names[op.Item.Table]}
		if op.Kind == store.OpPut {
			r.PutRequest = &types.PutRequest{Item: encode(op.Item, nil)}
		} else {
			r.DeleteRequest = &types.DeleteRequest{Key: keyOf(op.Item.Key)}
		}
		if i, again := place[op.Item.Key]; again {
			requests[i] = r
			continue
		}
		place[op.Item.Key] = len(requests)
		requests = append(requests, r)
	}
	for from := 0; from < len(requests); from += maxBatch {
		batch := map[string][]types.WriteRequest{}
		for _, r := range requests[from:min(from+maxBatch, len(requests))] {
			batch[r.table] = append(batch[r.table], r.WriteRequest)
		}
		if err := db.writeBatch(ctx, batch); err != nil {
			return failure(err, "writing %d items, of which %d are written", len(requests), from)
		}
	}
	return nil
}

// writeBatch asks again for what DynamoDB left unprocessed.
func (db *DB) writeBatch(ctx context.Context, batch map[string][]types.WriteRequest) error {
	pause := newPause()
	for {
		out, err := db.client.BatchWriteItem(ctx, &dynamodb.BatchWriteItemInput{RequestItems: batch})
		if err != nil {
			return err
		}
		if len(out.UnprocessedItems) == 0 {
			return nil
		}
		if countWrites(out.UnprocessedItems) < countWrites(batch) {
			pause.reset()
		}
		batch = out.UnprocessedItems
		if err := pause.wait(ctx); err != nil {
			return err
		}
	}
}

func countWrites(batch map[string][]types.WriteRequest) (n int) {
	for _, requests := range batch {
		n += len(requests)
	}
	return n
}
