package dynamo

import (
	"context"
	"errors"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/mcp-events/mcpevents/shared/storage/store"
)

const conditionFailed = "ConditionalCheckFailed"

// transact applies ops with TransactWriteItems. A lost answer is harmless, because the SDK sends the same ClientRequestToken
// with its retries. Our own retries follow a refusal, so they are new calls.
func (db *DB) transact(ctx context.Context, ops []store.Op) error {
	expired := make([]bool, len(ops)) // by operation: its counts replace an expired item
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

// refusal returns the error of a canceled transaction, or nil if the caller should try it again. It corrects expired for
// additions whose item has expired, or is no longer expired.
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

// part returns op as an item of a DynamoDB transaction. If expired is true, the stored item has expired, and an addition overwrites it
// instead of adding to it.
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
		// DynamoDB refuses an update without actions in a transaction.
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
