package store

import (
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Limits of keys, names and queries, the same for every adapter. The limits of keys are DynamoDB's. A partition key has
// room for an event URI with a prefix, and a sort key has room for an event URI.
const (
	maxPartition = 2048
	maxSort      = 1024
	maxCountName = 200
	maxLimit     = 1000
	defaultLimit = 100
)

// Check checks a key against its bounds. Adapters call it.
func (k Key) Check() error {
	switch {
	case k.Table == "":
		return fault.New(fault.Invalid, "an item needs a table")
	case k.Partition == "" || len(k.Partition) > maxPartition || !utf8.ValidString(k.Partition):
		return fault.New(fault.Invalid, "a partition key of %s has %d bytes or is not UTF-8 (allowed: UTF-8 of 1 to %d bytes)", k.Table, len(k.Partition), maxPartition)
	case k.Sort == "" || len(k.Sort) > maxSort || !utf8.ValidString(k.Sort):
		return fault.New(fault.Invalid, "a sort key of %s has %d bytes or is not UTF-8 (allowed: UTF-8 of 1 to %d bytes)", k.Table, len(k.Sort), maxSort)
	}
	return nil
}

// Check checks a query against its bounds and fills in the default limit. Adapters call it.
func (q *Query) Check() error {
	if q.Limit == 0 {
		q.Limit = defaultLimit
	}
	if q.Limit < 1 || q.Limit > maxLimit {
		return fault.New(fault.Invalid, "query limit %d is not allowed (allowed: 1 to %d)", q.Limit, maxLimit)
	}
	for _, bound := range [...]string{q.After, q.Until, q.Before} {
		if len(bound) > maxSort || !utf8.ValidString(bound) {
			return fault.New(fault.Invalid, "a bound of a query has %d bytes or is not UTF-8 (allowed: UTF-8 of up to %d bytes)", len(bound), maxSort)
		}
	}
	return Key{Table: q.Table, Partition: q.Partition, Sort: "-"}.Check()
}

// Check checks an operation against the bounds of its item and the rules of its kind. Adapters call it, and check
// [AtCommit] themselves.
func (op *Op) Check() error {
	if err := op.Item.Key.Check(); err != nil {
		return err
	}
	if len(op.Item.Value) > MaxItem {
		return fault.New(fault.TooLarge, "an item of %s has %d bytes (allowed: up to %d)", op.Item.Table, len(op.Item.Value), MaxItem)
	}
	for _, counts := range [...]map[string]int64{op.Item.Counts, op.Limits} {
		for name := range counts {
			if !validCount(name) {
				return fault.New(fault.Invalid, "count name %.32q is invalid (allowed: up to %d characters of [A-Za-z0-9_-])", name, maxCountName)
			}
		}
	}
	switch op.Kind {
	case OpPut, OpDelete, OpAdd:
	case OpRaise:
		if len(op.Item.Counts) != 1 {
			return fault.New(fault.Invalid, "a raise has %d counts (allowed: 1)", len(op.Item.Counts))
		}
	case OpCheck:
		if op.Cond == (Condition{}) {
			return fault.New(fault.Invalid, "a check needs a condition")
		}
	default:
		return fault.New(fault.Invalid, "unknown operation %d", op.Kind)
	}
	return nil
}

func validCount(name string) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return name != "" && len(name) <= maxCountName
}
