package dynamo

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
	// maxTotal is DynamoDB's 4 MB for a transaction, less keys and names.
	maxTotal = 3900 << 10
)

func checkKey(key store.Key) error {
	switch {
	case key.Table == "":
		return fault.New(fault.Invalid, "an item needs a table")
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
	if err := checkKey(store.Key{Table: q.Table, Partition: q.Partition, Sort: "-"}); err != nil {
		return err
	}
	for _, bound := range []string{q.After, q.Until, q.Before} {
		if len(bound) > maxSort || !utf8.ValidString(bound) {
			return fault.New(fault.Invalid, "a bound of a query must be UTF-8 of at most %d bytes", maxSort)
		}
	}
	return nil
}

// checkOps holds a write to the limits of package store, so that it fails here
// as it does in the other adapter, and not in DynamoDB's words.
func checkOps(ops []store.Op) error {
	if len(ops) > store.MaxTransaction {
		return fault.New(fault.Invalid, "a write of %d operations; %d are the most", len(ops), store.MaxTransaction)
	}
	seen := make(map[store.Key]bool, len(ops))
	total := 0
	for _, op := range ops {
		if err := checkOp(op); err != nil {
			return err
		}
		if seen[op.Item.Key] {
			return fault.New(fault.Invalid, "an item of %s occurs twice in a write", op.Item.Table)
		}
		seen[op.Item.Key] = true
		if op.Kind == store.OpRaise && len(ops) > 1 {
			return fault.New(fault.Invalid, "raising a count stands alone in its write")
		}
		total += len(op.Item.Value)
	}
	if total > maxTotal {
		return fault.New(fault.TooLarge, "a write of %d bytes; %d are the most", total, maxTotal)
	}
	return nil
}

func checkOp(op store.Op) error {
	if op.Item.Sort == store.AtCommit {
		return fault.New(fault.Unsupported, "this store does not stamp sort keys at commit")
	}
	if err := checkKey(op.Item.Key); err != nil {
		return err
	}
	if len(op.Item.Value) > store.MaxItem {
		return fault.New(fault.TooLarge, "an item of %s of %d bytes; %d are the most", op.Item.Table, len(op.Item.Value), store.MaxItem)
	}
	for name := range op.Item.Counts {
		if !countName(name) {
			return fault.New(fault.Invalid, "%q is no name for a count", name)
		}
	}
	for name := range op.Limits {
		if !countName(name) {
			return fault.New(fault.Invalid, "%q is no name for a count", name)
		}
	}
	switch kind, _ := op.Cond.Unpack(); op.Kind {
	case store.OpPut, store.OpDelete, store.OpAdd:
	case store.OpRaise:
		if len(op.Item.Counts) != 1 {
			return fault.New(fault.Invalid, "raising changes one count, not %d", len(op.Item.Counts))
		}
	case store.OpCheck:
		if kind == "" {
			return fault.New(fault.Invalid, "a check needs a condition")
		}
	default:
		return fault.New(fault.Invalid, "%d is no operation", op.Kind)
	}
	return nil
}

func countName(name string) bool {
	for _, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return name != "" && len(name) <= 200
}
