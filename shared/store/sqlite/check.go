package sqlite

import (
	"unicode/utf8"

	"mcpevents/shared/fault"
	"mcpevents/shared/store"
)

// Bounds of package store that are not named there.
const (
	maxPartition = 1024
	maxSort      = 512
	maxLimit     = 1000
	defaultLimit = 100
	maxCountName = 200
	maxSpan      = 1 << 20
)

func checkKey(key store.Key) error {
	switch {
	case tables[key.Table] == nil:
		return fault.New(fault.Invalid, "there is no table %q", key.Table)
	case key.Partition == "" || len(key.Partition) > maxPartition || !utf8.ValidString(key.Partition):
		return fault.New(fault.Invalid, "a partition key of %s must be UTF-8 of 1 to %d bytes, not %d", key.Table, maxPartition, len(key.Partition))
	case key.Sort == "" || len(key.Sort) > maxSort || !utf8.ValidString(key.Sort):
		return fault.New(fault.Invalid, "a sort key of %s must be UTF-8 of 1 to %d bytes, not %d", key.Table, maxSort, len(key.Sort))
	}
	return nil
}

// checkQuery also fills in the default limit.
func checkQuery(q *store.Query) error {
	if q.Limit == 0 {
		q.Limit = defaultLimit
	}
	if q.Limit < 1 || q.Limit > maxLimit {
		return fault.New(fault.Invalid, "a query's limit is 1 to %d, not %d", maxLimit, q.Limit)
	}
	for _, bound := range [...]string{q.After, q.Until, q.Before} {
		if len(bound) > maxSort || !utf8.ValidString(bound) {
			return fault.New(fault.Invalid, "a bound of a query must be UTF-8 of at most %d bytes", maxSort)
		}
	}
	return checkKey(store.Key{Table: q.Table, Partition: q.Partition, Sort: "-"})
}

// checkWrite holds a transaction to the limits of package store.
func checkWrite(ops []store.Op) error {
	if len(ops) > store.MaxTransaction {
		return fault.New(fault.Invalid, "a write of %d operations; %d are the most", len(ops), store.MaxTransaction)
	}
	var seen map[store.Key]bool
	if len(ops) > 4 { // for fewer, comparing each with each is quicker
		seen = make(map[store.Key]bool, len(ops))
	}
	for i := range ops {
		op := &ops[i]
		if err := checkOp(op); err != nil {
			return err
		}
		if op.Kind == store.OpRaise && len(ops) > 1 {
			return fault.New(fault.Invalid, "raising a count stands alone in its write")
		}
		if op.Item.Sort == store.AtCommit {
			continue // each gets a key of its own
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
			return fault.New(fault.Invalid, "an item of %s occurs twice in a write", op.Item.Table)
		}
	}
	return nil
}

// checkBulk holds an operation of [DB.WriteAll] to what that takes.
func checkBulk(op *store.Op) error {
	if kind, _ := op.Cond.Unpack(); kind != "" || (op.Kind != store.OpPut && op.Kind != store.OpDelete) {
		return fault.New(fault.Invalid, "writing all takes unconditional puts and deletes")
	}
	return checkOp(op)
}

func checkOp(op *store.Op) error {
	if err := checkKey(op.Item.Key); err != nil {
		return err
	}
	if len(op.Item.Value) > store.MaxItem {
		return fault.New(fault.TooLarge, "an item of %s of %d bytes; %d are the most", op.Item.Table, len(op.Item.Value), store.MaxItem)
	}
	if op.Item.Sort == store.AtCommit && (op.Kind != store.OpPut || op.Span < 0 || op.Span > maxSpan) {
		return fault.New(fault.Invalid, "only a put with a span of 0 to %d can be stamped", maxSpan)
	}
	for _, counts := range [...]map[string]int64{op.Item.Counts, op.Limits} {
		for name := range counts {
			if !countName(name) {
				return fault.New(fault.Invalid, "%q is no name for a count", name)
			}
		}
	}
	switch op.Kind {
	case store.OpPut, store.OpDelete, store.OpAdd:
	case store.OpRaise:
		if len(op.Item.Counts) != 1 {
			return fault.New(fault.Invalid, "raising changes one count, not %d", len(op.Item.Counts))
		}
	case store.OpCheck:
		if op.Cond == (store.Condition{}) {
			return fault.New(fault.Invalid, "a check needs a condition")
		}
	default:
		return fault.New(fault.Invalid, "%d is no operation", op.Kind)
	}
	return nil
}

func countName(name string) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return name != "" && len(name) <= maxCountName
}
