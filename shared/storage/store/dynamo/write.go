package dynamo

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Write sends a single operation as a simple request, at half the price of a transaction, and several operations as one
// TransactWriteItems.
func (db *DB) Write(ctx context.Context, ops ...store.Op) error {
	if err := store.CheckWrite(ops); err != nil {
		return err
	}
	if err := refuseStamps(ops); err != nil {
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
	if op.Kind == store.OpCheck || op.Kind == store.OpAdd && lowersCount(op) {
		return db.transact(ctx, []store.Op{op})
	}
	// All tries use the same random mark (see the package comment) and the same record of lost responses, because any of them may have
	// taken effect.
	mark, tries := sync.OnceValue(newMark), &attempts{}
	try := func() error {
		switch op.Kind {
		case store.OpPut:
			return db.put(ctx, op, mark)
		case store.OpDelete:
			return db.delete(ctx, op, tries)
		default:
			return db.add(ctx, op, mark())
		}
	}
	pause := newPause()
	for {
		err := try()
		if err == nil || !isConflict(err) {
			return err
		}
		if err := pause.wait(ctx); err != nil {
			return err
		}
	}
}

// lowersCount reports whether an operation decrements a count. A decrement needs a transaction, because an addition may be applied twice
// after a lost response. Events would not reach a subscription whose counts are too low, but counts that are too high only cost an extra
// read.
func lowersCount(op store.Op) bool {
	for _, n := range op.Item.Counts {
		if n < 0 {
			return true
		}
	}
	return false
}

func newMark() []byte {
	mark := make([]byte, 8)
	rand.Read(mark) // never fails
	return mark
}

// checkRefusal reports whether err says that a condition failed. It also returns the stored item, which is empty if there is no item.
func checkRefusal(err error) (old attributes, is bool) {
	failed, is := errors.AsType[*types.ConditionalCheckFailedException](err)
	if !is {
		return nil, false
	}
	return failed.Item, true
}

func hasMark(old attributes, mark []byte) bool {
	t, ok := old["t"].(*types.AttributeValueMemberB)
	return ok && string(t.Value) == string(mark)
}

// put writes an item. If op has a condition, put calls markOf for the random mark of this write; see the package comment. An
// unconditional put needs no mark, because a repetition of it cannot fail.
func (db *DB) put(ctx context.Context, op store.Op, markOf func() []byte) error {
	e := &expression{}
	in := &dynamodb.PutItemInput{TableName: aws.String(db.names[op.Item.Table])}
	var mark []byte
	if cond := e.condition(op.Cond, db.now()); cond != "" {
		mark = markOf()
		in.ConditionExpression = &cond
		in.ExpressionAttributeNames, in.ExpressionAttributeValues = e.names, e.values
		in.ReturnValuesOnConditionCheckFailure = types.ReturnValuesOnConditionCheckFailureAllOld
	}
	in.Item = encode(op.Item, mark)
	_, err := db.client.PutItem(ctx, in)
	if old, is := checkRefusal(err); is {
		if hasMark(old, mark) {
			return nil
		}
		return store.ErrConflict
	}
	return err
}

func (db *DB) delete(ctx context.Context, op store.Op, tries *attempts) error {
	e := &expression{}
	in := &dynamodb.DeleteItemInput{TableName: aws.String(db.names[op.Item.Table]), Key: keyOf(op.Item.Key)}
	if cond := e.condition(op.Cond, db.now()); cond != "" {
		in.ConditionExpression = &cond
		in.ExpressionAttributeNames, in.ExpressionAttributeValues = e.names, e.values
		in.ReturnValuesOnConditionCheckFailure = types.ReturnValuesOnConditionCheckFailureAllOld
	}
	_, err := db.client.DeleteItem(ctx, in, func(o *dynamodb.Options) {
		o.APIOptions = append(o.APIOptions, tries.watch)
	})
	if old, is := checkRefusal(err); is {
		if len(old) == 0 && tries.lost {
			return nil
		}
		return store.ErrConflict
	}
	return err
}

// add adds to the counts of an item. If the item has expired, add replaces it.
func (db *DB) add(ctx context.Context, op store.Op, mark []byte) error {
	pause := newPause()
	for {
		e := &expression{}
		conditions := append([]string{e.alive(db.now()), e.markIsNot(mark)}, e.within(op.Item.Counts, op.Limits)...)
		_, err := db.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
			TableName:                           aws.String(db.names[op.Item.Table]),
			Key:                                 keyOf(op.Item.Key),
			UpdateExpression:                    aws.String(e.sum(op.Item, mark)),
			ConditionExpression:                 aws.String(strings.Join(conditions, " AND ")),
			ExpressionAttributeNames:            e.names,
			ExpressionAttributeValues:           e.values,
			ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
		})
		old, is := checkRefusal(err)
		switch {
		case !is:
			return err
		case len(old) == 0: // there is no item, and a count exceeds its limit
			return store.ErrConflict
		}
		item, err := decode(op.Item.Table, old)
		if err != nil {
			return err
		}
		switch {
		case hasMark(old, mark):
			return nil
		case !db.expired(item) || !fits(op.Item.Counts, op.Limits):
			return store.ErrConflict
		}
		if done, err := db.replaceExpired(ctx, op, mark); done || err != nil {
			return err
		}
		if err := pause.wait(ctx); err != nil {
			return err
		}
	}
}

// replaceExpired replaces an expired item with an item that has only counts. It returns false if the stored item is not expired any more.
func (db *DB) replaceExpired(ctx context.Context, op store.Op, mark []byte) (done bool, err error) {
	e := &expression{}
	_, err = db.client.PutItem(ctx, &dynamodb.PutItemInput{
		TableName:                           aws.String(db.names[op.Item.Table]),
		Item:                                encode(onlyCounts(op.Item), mark),
		ConditionExpression:                 aws.String(e.dead(db.now())),
		ExpressionAttributeNames:            e.names,
		ExpressionAttributeValues:           e.values,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	})
	if old, is := checkRefusal(err); is {
		return hasMark(old, mark), nil
	}
	return err == nil, err
}

// onlyCounts returns the item without its value and version. An Add that replaces an expired item writes only the key, counts and expiry.
func onlyCounts(item store.Item) store.Item {
	return store.Item{Key: item.Key, Counts: item.Counts, Expires: item.Expires}
}

const maxBatch = 25

// WriteAll implements [store.DB]. If several operations are for the same item, it applies the last one.
func (db *DB) WriteAll(ctx context.Context, ops ...store.Op) error {
	type request struct {
		table string
		types.WriteRequest
	}
	if err := store.CheckWriteAll(ops); err != nil {
		return err
	}
	if err := refuseStamps(ops); err != nil {
		return err
	}
	place := make(map[store.Key]int, len(ops))
	requests := make([]request, 0, len(ops))
	for _, op := range ops {
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

// writeBatch makes a BatchWriteItem request, and repeats it with the operations that DynamoDB left unprocessed.
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

func refuseStamps(ops []store.Op) error {
	if slices.ContainsFunc(ops, func(op store.Op) bool { return op.Item.Sort == store.AtCommit }) {
		return fault.New(fault.Unsupported, "this store does not stamp sort keys at commit")
	}
	return nil
}

const conditionFailed = "ConditionalCheckFailed"

// transact applies ops with TransactWriteItems. A lost response is harmless, because the SDK repeats the request with the same
// ClientRequestToken.
func (db *DB) transact(ctx context.Context, ops []store.Op) error {
	expired := make([]bool, len(ops)) // expired[i] says that ops[i] must replace an expired item
	pause := newPause()
	for {
		items := make([]types.TransactWriteItem, len(ops))
		for i, op := range ops {
			items[i] = db.part(op, expired[i])
		}
		_, err := db.client.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: items})
		canceled, ok := errors.AsType[*types.TransactionCanceledException](err)
		if !ok {
			if err == nil || !isConflict(err) {
				return err
			}
		} else if err := db.refusal(canceled, ops, expired); err != nil {
			return err
		}
		if err := pause.wait(ctx); err != nil {
			return err
		}
	}
}

// refusal returns the error of a canceled transaction, or nil if the caller should try the transaction again. It updates the parameter
// expired, which says for each operation whether it is an addition that must replace an expired item.
func (db *DB) refusal(canceled *types.TransactionCanceledException, ops []store.Op, expired []bool) error {
	again := false
	for i, reason := range canceled.CancellationReasons {
		if i >= len(ops) || reason.Code == nil || *reason.Code != conditionFailed {
			continue
		}
		if ops[i].Kind != store.OpAdd || !fits(ops[i].Item.Counts, ops[i].Limits) {
			return store.ErrConflict
		}
		if expired[i] {
			expired[i], again = false, true
			continue
		}
		item, err := decode(ops[i].Item.Table, reason.Item)
		if err != nil {
			return err
		}
		if len(reason.Item) == 0 || !db.expired(item) {
			return store.ErrConflict
		}
		expired[i], again = true, true
	}
	if again || isConflict(canceled) {
		return nil
	}
	return canceled
}

// part returns op as one item of a transaction request. If expired is true, an addition replaces the stored item.
func (db *DB) part(op store.Op, expired bool) types.TransactWriteItem {
	e := &expression{}
	table := aws.String(db.names[op.Item.Table])
	var cond *string
	if text := e.condition(op.Cond, db.now()); text != "" {
		cond = &text
	}
	switch op.Kind {
	case store.OpDelete:
		return types.TransactWriteItem{Delete: &types.Delete{
			TableName: table, Key: keyOf(op.Item.Key), ConditionExpression: cond,
			ExpressionAttributeNames: e.names, ExpressionAttributeValues: e.values,
		}}
	case store.OpCheck:
		return types.TransactWriteItem{ConditionCheck: &types.ConditionCheck{
			TableName: table, Key: keyOf(op.Item.Key), ConditionExpression: cond,
			ExpressionAttributeNames: e.names, ExpressionAttributeValues: e.values,
		}}
	case store.OpAdd:
		if !expired {
			return db.addPart(op, table)
		}
		op.Item = onlyCounts(op.Item)
		cond = aws.String(e.dead(db.now()))
	}
	return types.TransactWriteItem{Put: &types.Put{
		TableName: table, Item: encode(op.Item, nil), ConditionExpression: cond,
		ExpressionAttributeNames: e.names, ExpressionAttributeValues: e.values,
	}}
}

func (db *DB) addPart(op store.Op, table *string) types.TransactWriteItem {
	e := &expression{}
	conditions := append([]string{e.alive(db.now())}, e.within(op.Item.Counts, op.Limits)...)
	update := e.sum(op.Item, nil)
	if update == "" {
		// Add 0 to the version, because DynamoDB refuses an update without actions in a transaction.
		update = "ADD " + e.name("v") + " " + e.value(number(0))
	}
	return types.TransactWriteItem{Update: &types.Update{
		TableName: table, Key: keyOf(op.Item.Key),
		UpdateExpression:                    &update,
		ConditionExpression:                 aws.String(strings.Join(conditions, " AND ")),
		ExpressionAttributeNames:            e.names,
		ExpressionAttributeValues:           e.values,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}}
}
