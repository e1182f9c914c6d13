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

// transact applies ops by TransactWriteItems. The SDK gives every call a
// ClientRequestToken and keeps it over its own retries, so a lost answer is
// harmless; a retry of ours follows a refusal and is a new call.
func (db *DB) transact(ctx context.Context, ops []store.Op) error {
	begin := make([]bool, len(ops)) // counts whose item has expired
	pause := newPause()
	for {
		items := make([]types.TransactWriteItem, len(ops))
		for i, op := range ops {
			items[i] = db.part(op, begin[i])
		}
		_, err := db.client.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: items})
		canceled, ok := errors.AsType[*types.TransactionCanceledException](err)
		if !ok {
			if err == nil || !conflicting(err) {
				return err
			}
		} else if err := db.refusal(canceled, ops, begin); err != nil {
			return err
		}
		if err := pause.wait(ctx); err != nil {
			return err
		}
	}
}

// refusal decides about a canceled transaction: nil to try again. It switches
// begin for counts that met an expired item, or one that lives again.
func (db *DB) refusal(canceled *types.TransactionCanceledException, ops []store.Op, begin []bool) error {
	again := false
	for i, reason := range canceled.CancellationReasons {
		if i >= len(ops) || reason.Code == nil || *reason.Code != conditionFailed {
			continue
		}
		if ops[i].Kind != store.OpAdd || !fits(ops[i].Item.Counts, ops[i].Limits) {
			return store.ErrConflict
		}
		if begin[i] {
			begin[i], again = false, true
			continue
		}
		item, err := decode(ops[i].Item.Table, reason.Item)
		if err != nil {
			return err
		}
		if len(reason.Item) == 0 || !db.expired(item) {
			return store.ErrConflict
		}
		begin[i], again = true, true
	}
	if again || conflicting(canceled) {
		return nil
	}
	return canceled
}

// part is one operation of a transaction. With begin, a count is put in the
// place of an expired item.
func (db *DB) part(op store.Op, begin bool) types.TransactWriteItem {
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
		if !begin {
			return db.countPart(op, table)
		}
		op.Item = counting(op.Item)
		cond = aws.String(e.dead(db.now()))
	}
	return types.TransactWriteItem{Put: &types.Put{
		TableName: table, Item: encode(op.Item, nil), ConditionExpression: cond,
		ExpressionAttributeNames: e.names, ExpressionAttributeValues: e.values,
	}}
}

func (db *DB) countPart(op store.Op, table *string) types.TransactWriteItem {
	e := &expression{}
	conditions := append([]string{e.alive(db.now())}, e.within(op.Item.Counts, op.Limits)...)
	update := e.sum(op.Item, nil)
	if update == "" {
		// A transaction's update must change something; this is what it is.
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
