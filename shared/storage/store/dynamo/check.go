package dynamo

import (
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// maxTotal is the size of the values in a transaction. DynamoDB allows 4 MB with keys and names.
const maxTotal = 3900 << 10

// checkOps checks a write against the limits of package store, so that it returns the same errors as the other adapter.
func checkOps(ops []store.Op) error {
	if len(ops) > store.MaxTransaction {
		return fault.New(fault.Invalid, "the write has %d operations (allowed: up to %d)", len(ops), store.MaxTransaction)
	}
	seen := make(map[store.Key]bool, len(ops))
	total := 0
	for _, op := range ops {
		if err := checkOp(op); err != nil {
			return err
		}
		if seen[op.Item.Key] {
			return fault.New(fault.Invalid, "the write has an item of %s twice", op.Item.Table)
		}
		seen[op.Item.Key] = true
		if op.Kind == store.OpRaise && len(ops) > 1 {
			return fault.New(fault.Invalid, "a write that raises a count has only that operation")
		}
		total += len(op.Item.Value)
	}
	if total > maxTotal {
		return fault.New(fault.TooLarge, "the write has %d bytes (allowed: up to %d)", total, maxTotal)
	}
	return nil
}

func checkOp(op store.Op) error {
	if op.Item.Sort == store.AtCommit {
		return fault.New(fault.Unsupported, "this store does not stamp sort keys at commit")
	}
	return op.Check()
}
