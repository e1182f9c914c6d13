package sqlite

import (
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// maxSpan is the most stamps that one put can reserve.
const maxSpan = 1 << 20

func checkTable(t store.Table) error {
	if tables[t] == nil {
		return fault.New(fault.Invalid, "unknown table %q", t)
	}
	return nil
}

func checkKey(key store.Key) error {
	if err := checkTable(key.Table); err != nil {
		return err
	}
	return key.Check()
}

// checkQuery also fills in the default limit.
func checkQuery(q *store.Query) error {
	if err := q.Check(); err != nil {
		return err
	}
	return checkTable(q.Table)
}

// checkWrite checks a transaction against the limits of package store.
func checkWrite(ops []store.Op) error {
	if len(ops) > store.MaxTransaction {
		return fault.New(fault.Invalid, "the write has %d operations (allowed: up to %d)", len(ops), store.MaxTransaction)
	}
	var seen map[store.Key]bool
	if len(ops) > 4 { // for fewer, comparing all pairs is faster
		seen = make(map[store.Key]bool, len(ops))
	}
	for i := range ops {
		op := &ops[i]
		if err := checkOp(op); err != nil {
			return err
		}
		if op.Kind == store.OpRaise && len(ops) > 1 {
			return fault.New(fault.Invalid, "a write that raises a count has only that operation")
		}
		if op.Item.Sort == store.AtCommit {
			if op.Span == store.SameStamp && !canShare(ops[:i], op) {
				return fault.New(fault.Invalid, "puts that share a stamp must be in different partitions")
			}
			continue // each gets its own key
		}
		twice := seen[op.Item.Key]
		if seen != nil {
			seen[op.Item.Key] = true
		} else {
			for j := range i {
				twice = twice || ops[j].Item.Key == op.Item.Key
			}
		}
		if twice {
			return fault.New(fault.Invalid, "the write has an item of %s twice", op.Item.Table)
		}
	}
	return nil
}

// checkBulk checks an operation of [DB.WriteAll].
func checkBulk(op *store.Op) error {
	if kind, _ := op.Cond.Unpack(); kind != "" || (op.Kind != store.OpPut && op.Kind != store.OpDelete) {
		return fault.New(fault.Invalid, "WriteAll allows only puts and deletes without a condition")
	}
	if op.Item.Sort == store.AtCommit && op.Span == store.SameStamp {
		return fault.New(fault.Invalid, "puts cannot share a stamp in WriteAll, because it may take several commits")
	}
	return checkOp(op)
}

func checkOp(op *store.Op) error {
	if err := checkTable(op.Item.Table); err != nil {
		return err
	}
	if op.Item.Sort == store.AtCommit && (op.Kind != store.OpPut || op.Span < store.SameStamp || op.Span > maxSpan) {
		return fault.New(fault.Invalid, "only a put with a span of 0 to %d gets a stamp", maxSpan)
	}
	return op.Check()
}

// canShare reports whether an earlier operation has a stamp that op can share, and no such operation is in op's partition.
func canShare(earlier []store.Op, op *store.Op) bool {
	stamped := false
	for i := range earlier {
		if earlier[i].Item.Sort == store.AtCommit {
			stamped = true
			if earlier[i].Item.Partition == op.Item.Partition && earlier[i].Item.Table == op.Item.Table {
				return false
			}
		}
	}
	return stamped
}
