// Package store defines the database of a stand-alone server and of the functions on AWS. An item belongs to a table and has a
// partition and a sort key. Reads are strongly consistent unless a query asks for less. Writes can have conditions, and several
// can form a transaction.
//
// It offers only the part of DynamoDB that the system needs. The adapters store/dynamo and store/sqlite both pass store/storetest.
package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Table names a group of items.
type Table string

// The tables. template.yaml grants each function the actions that it needs on each table.
const (
	// Subscriptions holds subscriptions, how many of them use each event pattern, and the quotas of their owners.
	Subscriptions Table = "subscriptions"
	// Log holds the event log, the latest event of each URI, and the partitions of the log that open streams read.
	Log Table = "log"
	// Deliveries holds deliveries to retry, the bodies of their events, when they are due, delivery records and dead letters.
	Deliveries Table = "deliveries"
	// Sessions holds MCP sessions, their subscriptions and stream leases.
	Sessions Table = "sessions"
	// Settings holds the catalog, the configuration, public keys and switches.
	Settings Table = "settings"
	// Keys holds the encrypted private keysets. Only the functions dispatch and keys may read it.
	Keys Table = "keys"
)

var tables = []Table{Subscriptions, Log, Deliveries, Sessions, Settings, Keys}

// Tables lists all tables, in a stable order.
func Tables() []Table { return slices.Clone(tables) }

// Limits of both store/dynamo and store/sqlite, so that a write that works on a stand-alone server also works on AWS.
const (
	// MaxItem is the largest size of an item's value in bytes. DynamoDB allows 400 KB per item, including keys and counts.
	MaxItem = 380 << 10
	// MaxTransaction is the largest number of operations in one [DB.Write].
	MaxTransaction = 100
	// MaxWrite is the largest total size of the values in one [DB.Write], in bytes. DynamoDB allows 4 MB, including keys and attribute
	// names. Puts at [AtCommit] do not count, because the store in DynamoDB does not support them anyway.
	MaxWrite = 3900 << 10
	// MaxGet is the largest number of keys in one [DB.Get].
	MaxGet = 100
)

// Key addresses an item.
type Key struct {
	Table     Table
	Partition string // not empty, at most 2,048 bytes
	Sort      string // not empty, at most 1,024 bytes; ordered bytewise
}

// Item is a stored value with the fields that conditions test.
type Item struct {
	Key
	// Value is opaque to the store; nil and empty are the same.
	Value []byte
	// Version is a number that the writer chooses, see [VersionIs].
	Version int64
	// Counts are integers that [Add] changes without reading the item first. Names are [A-Za-z0-9_-].
	Counts map[string]int64
	// Expires is when readers and conditions begin to treat the item as absent, to the second. The zero time means never.
	Expires time.Time
}

// ErrConflict is returned by [DB.Write] when a condition does not hold. It has no kind, so that a caller can choose one with [fault.Wrap].
var ErrConflict = errors.New("store: condition not met")

// DB is a store. Its methods may be called concurrently. Errors other than [ErrConflict] have the kind fault.Unavailable
// when a retry may help.
type DB interface {
	// Get reads up to [MaxGet] items of any tables, strongly consistent. The result has the order of keys; an absent or
	// expired item is nil.
	Get(ctx context.Context, keys ...Key) ([]*Item, error)

	// Query reads items of one partition in the order of their sort keys. A page has at most q.Limit items. If it has fewer,
	// there may still be more; see Page.More. Expired items are left out.
	Query(ctx context.Context, q Query) (Page, error)

	// Write applies all operations or none. If a condition does not hold, it applies none and returns [ErrConflict]. There may
	// be up to [MaxTransaction] operations, at most one per item, with values of up to [MaxWrite] bytes in total.
	Write(ctx context.Context, ops ...Op) error

	// WriteAll applies any number of unconditional puts and deletes, in any order. After an error, some of them may have been applied.
	WriteAll(ctx context.Context, ops ...Op) error

	// Local reports whether this process is the only one that uses the store, and calls it without requests over a network. Then
	// callers can keep locks in memory, and can afford more reads and writes. The store also supports [AtCommit], which numbers
	// items in the order of their commits. So a reader that sees an item also sees all items with smaller numbers.
	Local() bool

	// End returns the greatest stamp that is committed, see [AtCommit]. Readers see every item with a stamp up to it, and every
	// later stamp is greater, even if the clock is set back. End returns 0 for a store that is not local.
	End() int64

	Close() error
}

// AtCommit is a placeholder for the sort key of a put. The store replaces it with a stamp: the commit's time in microseconds
// since 1970, as 16 decimal digits, and greater than every earlier stamp. A put with an [Op.Span] of n > 1 reserves n stamps and
// gets the last of them. A store refuses puts at AtCommit if its [DB.Local] is false.
const AtCommit = "\x00commit"

// SameStamp is an [Op.Span] for the second of two puts at [AtCommit] in one write. It gets the stamp of the first. They must be in
// different partitions.
const SameStamp = -1

// Watcher is a store that can notify goroutines of this process when the process writes to a partition of the table [Log].
type Watcher interface {
	// Watch returns a channel that receives a value after one or more commits to the partition. written returns the greatest
	// stamp of the commits to the partition since Watch was called, or 0 before the first one. A caller that reads [DB.End] and
	// then calls written misses no commit up to that end. stop ends the watch.
	Watch(partition string) (changed <-chan struct{}, written func() int64, stop func())
}

// Query is a range of one partition.
type Query struct {
	Table     Table
	Partition string
	// A query returns items with sort keys greater than After and at most Until. If one of them is empty, it is no limit. To read
	// the next page, set After to [Page.Last]. A query with Reverse begins at Until; to read its next page, set Before to
	// Page.Last.
	After, Until string
	// If Before is not empty, sort keys are less than Before.
	Before string
	// Limit is the largest number of items of a page, 1 to 1,000; 0 means 100.
	Limit   int
	Reverse bool
	// Eventual allows a read that may miss the latest writes, at half the price on AWS.
	Eventual bool
}

// Within limits the query to items from the time since to the time until. It is for sort keys that begin with a time in
// microseconds since 1970, as 16 decimal digits. If since or until is zero, it is no limit.
func (q *Query) Within(since, until time.Time) {
	if !since.IsZero() {
		q.After = fmt.Sprintf("%016d", since.UnixMicro())
	}
	if !until.IsZero() {
		q.Until = fmt.Sprintf("%016d~", until.UnixMicro())
	}
}

// Page is a part of a query's result.
type Page struct {
	Items []Item
	// More reports that there may be more items in the range. To continue, set After to Last or, with Reverse, Before. Last may be beyond the
	// last item, because the page leaves out expired items.
	More bool
	Last string
}

// Condition is a requirement for an operation of a [DB.Write], for example that the item does not exist yet. If it is not met, the whole
// write fails with [ErrConflict]. An expired item counts as absent.
type Condition struct {
	Kind    CondKind
	Version int64 // for [IfVersion]
}

// CondKind says what a [Condition] tests. The zero value is no condition.
type CondKind uint8

// The kinds of conditions.
const (
	IfAbsent CondKind = iota + 1
	IfExists
	IfVersion
)

// Absent returns the condition that the item does not exist.
func Absent() Condition { return Condition{Kind: IfAbsent} }

// Exists returns the condition that the item exists.
func Exists() Condition { return Condition{Kind: IfExists} }

// VersionIs returns the condition that the item exists and has exactly this version.
func VersionIs(v int64) Condition { return Condition{Kind: IfVersion, Version: v} }

// Holds reports whether the condition holds for an item that exists or not, and has the given version.
func (c Condition) Holds(exists bool, version int64) bool {
	switch c.Kind {
	case IfAbsent:
		return !exists
	case IfExists:
		return exists
	case IfVersion:
		return exists && version == c.Version
	}
	return true
}

// OpKind says what an [Op] does.
type OpKind uint8

// The kinds of operations.
const (
	OpPut OpKind = iota + 1
	OpDelete
	OpAdd
	OpCheck
)

// Op is one operation of a [DB.Write]. Make it with [Put], [Delete], [Add] or [Check].
type Op struct {
	Kind OpKind
	Item Item // OpPut uses all fields; the other kinds use only Key, and OpAdd also Counts and Expires
	Cond Condition
	// Limits has, by name, the largest value that a count may have after an OpAdd.
	Limits map[string]int64
	// Span, for a put at [AtCommit], is the number of stamps to reserve, or [SameStamp]; 0 means one stamp.
	Span int
}

// Put returns an operation that replaces the item, including its counts.
func Put(item Item, cond ...Condition) Op { return Op{Kind: OpPut, Item: item, Cond: one(cond)} }

// Delete returns an operation that removes the item. Without a condition, removing an absent item is no error.
func Delete(key Key, cond ...Condition) Op {
	return Op{Kind: OpDelete, Item: Item{Key: key}, Cond: one(cond)}
}

// Add returns an operation that adds to counts, and creates the item if it is absent. If a count would exceed its limit, the
// write fails with [ErrConflict]. Add keeps the value and the version.
func Add(key Key, counts, limits map[string]int64) Op {
	return Op{Kind: OpAdd, Item: Item{Key: key, Counts: counts}, Limits: limits}
}

// Check returns an operation that makes the transaction fail unless the condition holds. It writes nothing.
func Check(key Key, cond Condition) Op {
	return Op{Kind: OpCheck, Item: Item{Key: key}, Cond: cond}
}

func one(cond []Condition) Condition {
	if len(cond) == 0 {
		return Condition{}
	}
	return cond[0]
}

// Unhurried returns the store for writes for which no caller has to wait. The store in SQLite returns immediately from such a
// write. It may hold these writes back for some tens of milliseconds, to commit many of them together, but it commits them before
// later writes to the same table. If the process dies before that, they are lost. Errors and conflicts are only logged. Other stores
// write as usual.
func Unhurried(db DB) DB {
	if u, ok := db.(interface{ Unhurried() DB }); ok {
		return u.Unhurried()
	}
	return db
}

// One reads an item. It returns nil if there is no such item. Errors have the kind fault.Unavailable and the parameter what as
// their message, which names the attempted operation, for example "read a session".
func One(ctx context.Context, db DB, key Key, what string) (*Item, error) {
	items, err := db.Get(ctx, key)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "%s", what)
	}
	return items[0], nil
}

// Each calls visit with each item of a partition, in the order of the sort keys. If visit returns an error, Each stops and returns this
// error unchanged.
//
// If a read from the store fails, Each returns an error of kind fault.Unavailable. Its message is the parameter what, which names the
// attempted operation, for example "read the leases".
func Each(ctx context.Context, db DB, partition Key, what string, visit func(*Item) error) error {
	return EachOf(ctx, db, Query{Table: partition.Table, Partition: partition.Partition, Limit: 1000}, what, visit)
}

// EachOf is [Each] for the items that a query selects, instead of a whole partition. It reads all pages. The query must not be in reverse
// order, because EachOf continues after the last key of each page.
func EachOf(ctx context.Context, db DB, q Query, what string, visit func(*Item) error) error {
	for {
		page, err := db.Query(ctx, q)
		if err != nil {
			return fault.Wrap(fault.Unavailable, err, "%s", what)
		}
		for i := range page.Items {
			if err := visit(&page.Items[i]); err != nil {
				return err
			}
		}
		if !page.More {
			return nil
		}
		q.After = page.Last
	}
}

// Scrub removes the remains of deleted items from a store's files, because they stay readable in free pages. Writes wait until
// Scrub is done. It does nothing for a store without files.
func Scrub(ctx context.Context, db DB) error {
	if s, ok := db.(interface{ Scrub(context.Context) error }); ok {
		return s.Scrub(ctx)
	}
	return nil
}

// Limits for every adapter. The limits of keys are DynamoDB's.
const (
	maxPartition = 2048
	maxSort      = 1024
	maxCountName = 200
	maxLimit     = 1000
	defaultLimit = 100
)

// Check returns an error if the table is unknown, or if a part of the key is empty, too long or not UTF-8.
func (k Key) Check() error {
	switch {
	case !slices.Contains(tables, k.Table):
		return fault.New(fault.Invalid, "unknown table %q", k.Table)
	case k.Partition == "" || len(k.Partition) > maxPartition || !utf8.ValidString(k.Partition):
		return fault.New(fault.Invalid, "a partition key of %s has %d bytes or is not UTF-8 (allowed: UTF-8 of 1 to %d bytes)", k.Table, len(k.Partition), maxPartition)
	case k.Sort == "" || len(k.Sort) > maxSort || !utf8.ValidString(k.Sort):
		return fault.New(fault.Invalid, "a sort key of %s has %d bytes or is not UTF-8 (allowed: UTF-8 of 1 to %d bytes)", k.Table, len(k.Sort), maxSort)
	}
	return nil
}

// Check returns an error if the limit or a key of the query is not allowed, and sets the default limit.
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

// CheckWrite returns an error if the operations break a limit of [DB.Write]. Adapters check the rules for [AtCommit] themselves.
func CheckWrite(ops []Op) error {
	if len(ops) > MaxTransaction {
		return fault.New(fault.Invalid, "the write has %d operations (allowed: up to %d)", len(ops), MaxTransaction)
	}
	var seen map[Key]bool
	if len(ops) > 4 { // for fewer, comparing all pairs is faster
		seen = make(map[Key]bool, len(ops))
	}
	size := 0
	for i := range ops {
		op := &ops[i]
		if err := op.check(); err != nil {
			return err
		}
		if op.Item.Sort == AtCommit {
			continue // the store gives each of these puts its own key, so no two are for the same item
		}
		size += len(op.Item.Value)
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
	if size > MaxWrite {
		return fault.New(fault.TooLarge, "the write has %d bytes (allowed: up to %d)", size, MaxWrite)
	}
	return nil
}

// CheckWriteAll returns an error if an operation is not allowed in [DB.WriteAll]. Adapters check the rules for [AtCommit]
// themselves.
func CheckWriteAll(ops []Op) error {
	for i := range ops {
		op := &ops[i]
		if op.Cond != (Condition{}) || (op.Kind != OpPut && op.Kind != OpDelete) {
			return fault.New(fault.Invalid, "WriteAll allows only puts and deletes without a condition")
		}
		if err := op.check(); err != nil {
			return err
		}
	}
	return nil
}

func (op *Op) check() error {
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
	case OpCheck:
		if op.Cond == (Condition{}) {
			return fault.New(fault.Invalid, "a check needs a condition")
		}
	default:
		return fault.New(fault.Invalid, "unknown operation %d", op.Kind)
	}
	return nil
}

func validCount(name string) bool { return name != "" && len(name) <= maxCountName && IsWord(name) }

// IsWord reports whether a text has only characters of [A-Za-z0-9_-].
func IsWord(text string) bool {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
	return strings.Trim(text, allowed) == ""
}
