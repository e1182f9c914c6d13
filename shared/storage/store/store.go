// Package store defines the database of a stand-alone server and of the Lambda functions on AWS. An item belongs to a table and has a
// partition and a sort key. Reads are strongly consistent unless a query asks for less. Writes can have conditions, and several
// operations can form a transaction.
//
// The interface offers only the part of DynamoDB that the system needs. The adapters store/dynamo and store/sqlite both pass the test
// suite store/storetest.
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

// Table is the name of a table of items.
type Table string

// The tables of the system. On AWS, template.yaml grants each Lambda function only the actions that it needs on each table.
const (
	// Subscriptions holds subscriptions, the number of subscriptions with each event pattern, and the quotas of the subscriptions'
	// owners.
	Subscriptions Table = "subscriptions"
	// Log holds the event log, the latest event of each URI, and which partitions of the log the open streams read.
	Log Table = "log"
	// Deliveries holds the deliveries to retry, the bodies of their events, the times when they are due, delivery records and dead
	// letters.
	Deliveries Table = "deliveries"
	// Sessions holds MCP sessions, their subscriptions and stream leases.
	Sessions Table = "sessions"
	// Settings holds the catalogs, the configuration, public keys, the audit trail, and switches that pause deliveries.
	Settings Table = "settings"
	// Keys holds the encrypted private keysets. Only the Lambda functions dispatch and keys may read it.
	Keys Table = "keys"
)

var tables = []Table{Subscriptions, Log, Deliveries, Sessions, Settings, Keys}

// Tables lists all tables, in a stable order.
func Tables() []Table { return slices.Clone(tables) }

// Limits of every store, so that a write that works on a stand-alone server also works on AWS.
const (
	// MaxItem is the largest size of an item's value in bytes. DynamoDB allows 400 KB per item, including keys and counts.
	MaxItem = 380 << 10
	// MaxTransaction is the largest number of operations in one [DB.Write].
	MaxTransaction = 100
	// MaxWrite is the largest total size of the values in one [DB.Write], in bytes. DynamoDB allows 4 MB, including keys and attribute
	// names. Puts at [AtCommit] do not count, because the DynamoDB store does not support them anyway.
	MaxWrite = 3900 << 10
	// MaxGet is the largest number of keys in one [DB.Get].
	MaxGet = 100
)

// Key is the address of an item.
type Key struct {
	Table     Table
	Partition string // not empty, at most 2,048 bytes
	Sort      string // not empty, at most 1,024 bytes; ordered bytewise
}

// Item is a stored value with its key, version, counts and expiry.
type Item struct {
	Key
	// Value is the content of the item, which the store does not interpret. Nil and empty are the same.
	Value []byte
	// Version is a number that the writer chooses and that a condition can test; see [VersionIs].
	Version int64
	// Counts are named integers that [Add] changes without reading the item first. The names have only characters of [A-Za-z0-9_-].
	Counts map[string]int64
	// Expires is when reads and conditions begin to treat the item as absent, in whole seconds. The zero time means never.
	Expires time.Time
}

// ErrConflict is the error of [DB.Write] if a condition does not hold. It has no fault.Kind, so that a caller can choose one with
// [fault.Wrap].
var ErrConflict = errors.New("store: condition not met")

// DB is a store. Its methods may be called concurrently. Errors other than [ErrConflict] have the kind fault.Unavailable
// when a retry may help.
type DB interface {
	// Get reads up to [MaxGet] items of any tables, with strong consistency. The result has the items in the order of the keys, and nil
	// for an item that is absent or expired.
	Get(ctx context.Context, keys ...Key) ([]*Item, error)

	// Query reads items of one partition in the order of their sort keys. It leaves out expired items. A page has at most q.Limit items,
	// but there may be more items even if the page has fewer; see [Page.More].
	Query(ctx context.Context, q Query) (Page, error)

	// Write applies all operations in one transaction. If a condition does not hold, it applies no operation and returns [ErrConflict].
	// There may be up to [MaxTransaction] operations, at most one per item, with values of up to [MaxWrite] bytes in total.
	Write(ctx context.Context, ops ...Op) error

	// WriteAll applies any number of unconditional puts and deletes, in any order. After an error, some of them may have been applied.
	WriteAll(ctx context.Context, ops ...Op) error

	// Local reports whether this process alone uses the store, and needs no network for it. Callers can then keep locks in memory, and
	// can afford more reads and writes. A local store also supports [AtCommit], so a reader that sees an item also sees all items with
	// smaller stamps.
	Local() bool

	// End returns the greatest committed stamp; see [AtCommit]. Readers see every item with a stamp up to it, and every later stamp is
	// greater, even if the clock is set back. End returns 0 for a store that is not local.
	End() int64

	Close() error
}

// AtCommit is a placeholder for the sort key of a put. The store replaces it with a stamp, which is the commit's time in microseconds
// since 1970 as 16 decimal digits. A stamp is always greater than every earlier stamp, even if the clock is set back.
//
// A put with an [Op.Span] of n > 1 reserves n stamps and gets the last of them. A store refuses puts at AtCommit if its [DB.Local] is
// false.
const AtCommit = "\x00commit"

// SameStamp is an [Op.Span] for the second of two puts at [AtCommit] in one write. The second put gets the stamp of the first one, so the
// puts must be in different partitions.
const SameStamp = -1

// Watcher is a store that can notify goroutines of this process when the process writes to a partition of the table [Log].
type Watcher interface {
	// Watch returns a channel that receives a value after one or more commits to the partition. The function written returns the greatest
	// stamp of these commits, or 0 before the first one. The function stop ends the watch.
	//
	// A caller that reads [DB.End] and then calls written misses no commit up to that end.
	Watch(partition string) (changed <-chan struct{}, written func() int64, stop func())
}

// Query selects a range of items of one partition.
type Query struct {
	Table     Table
	Partition string
	// After and Until limit the sort keys of the result: they are greater than After and at most Until. An empty text is no limit. To
	// read the next page, set After to [Page.Last], or, if Reverse is true, set Before to it.
	After, Until string
	// Before, if not empty, is an upper limit of the sort keys: they are less than Before.
	Before string
	// Limit is the largest number of items on a page, from 1 to 1,000; 0 means 100.
	Limit   int
	Reverse bool
	// Eventual allows a read that may miss the latest writes. Such a read costs half as much on AWS.
	Eventual bool
}

// Within sets [Query.After] and [Query.Until], so that the query selects the items from the time since to the time until. A zero time
// sets no bound. The sort keys must begin with a time in microseconds since 1970, as 16 decimal digits.
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
	// More says that there may be more items in the range. To read them, repeat the query with [Query.After] (or [Query.Before], if
	// Reverse is true) set to Last. Last may be beyond the last item, because the page leaves out expired items.
	More bool
	Last string
}

// Condition is a requirement for an operation of a [DB.Write], for example that the item does not exist yet. If it is not met, the whole
// write fails with [ErrConflict]. An expired item counts as absent.
type Condition struct {
	Kind    CondKind
	Version int64 // for [IfVersion]
}

// CondKind is the kind of a [Condition]. The zero value means no condition.
type CondKind uint8

// The kinds of conditions: the item is absent, the item exists, or the item exists and has a given version.
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

// Holds reports whether an item meets the condition. The parameters say whether the item exists, and which version it has.
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

// OpKind is the kind of an [Op].
type OpKind uint8

// The kinds of operations. The functions [Put], [Delete], [Add] and [Check] explain them.
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
	// Limits has the largest value that a count may have after an OpAdd, by the name of the count.
	Limits map[string]int64
	// Span is the number of stamps that a put at [AtCommit] reserves, or [SameStamp]; 0 means one stamp.
	Span int
}

// Put returns an operation that writes the item, and replaces an existing item including its counts.
func Put(item Item, cond ...Condition) Op { return Op{Kind: OpPut, Item: item, Cond: one(cond)} }

// Delete returns an operation that removes the item. Without a condition, the operation also succeeds if the item is absent.
func Delete(key Key, cond ...Condition) Op {
	return Op{Kind: OpDelete, Item: Item{Key: key}, Cond: one(cond)}
}

// Add returns an operation that adds numbers to the counts of an item. It creates the item if it is absent, and keeps the value and the
// version of an existing one. If a count would exceed its limit, the write fails with [ErrConflict].
func Add(key Key, counts, limits map[string]int64) Op {
	return Op{Kind: OpAdd, Item: Item{Key: key, Counts: counts}, Limits: limits}
}

// Check returns an operation that writes nothing, but makes the whole transaction fail unless the condition holds.
func Check(key Key, cond Condition) Op {
	return Op{Kind: OpCheck, Item: Item{Key: key}, Cond: cond}
}

func one(cond []Condition) Condition {
	if len(cond) == 0 {
		return Condition{}
	}
	return cond[0]
}

// Unhurried returns a store for writes that may be committed later. In the SQLite store, such a write returns immediately. The store may
// wait some tens of milliseconds to commit it together with others, but commits it before later writes to the same table.
//
// If the process dies before the commit, the write is lost. Errors and conflicts are only logged. Other stores write as usual.
func Unhurried(db DB) DB {
	if u, ok := db.(interface{ Unhurried() DB }); ok {
		return u.Unhurried()
	}
	return db
}

// One reads an item, and returns nil if the item does not exist. An error has the kind fault.Unavailable. Its message is the parameter
// what, which names the attempted operation, for example "read a session".
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

// EachOf is [Each] for the items that a query selects, instead of a whole partition. It reads all pages of the query. The query must not
// be in reverse order, because EachOf continues after the last key of each page.
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

// Scrub removes the remains of deleted items from a store's files, where they would stay readable in free pages. Writes wait until Scrub
// is done. Scrub does nothing for a store without files.
func Scrub(ctx context.Context, db DB) error {
	if s, ok := db.(interface{ Scrub(context.Context) error }); ok {
		return s.Scrub(ctx)
	}
	return nil
}

// Limits of every store for keys, for the names of counts and for [Query.Limit]. The limits of keys are DynamoDB's.
const (
	maxPartition = 2048
	maxSort      = 1024
	maxCountName = 200
	maxLimit     = 1000
	defaultLimit = 100
)

// Check returns an error if the key's table is unknown, or if its partition or sort key is empty, too long or not UTF-8.
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

// Check returns an error if the query's limit or one of its keys is not allowed. It also sets the default limit.
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
