package subscription

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription/tally"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Store reads and writes subscriptions. It also keeps the counters and index items by which [Lists] and fanout, which distributes events,
// find the subscriptions.
type Store struct {
	DB store.DB
	// QuotaOf returns how many subscriptions a principal may have. Nil means [tally.DefaultLimit] for all principals.
	QuotaOf func(ctx context.Context, workspace, principal string) int64
	// SumOf returns how many subscriptions all principals of a workspace may have together. Nil and 0 mean no limit.
	SumOf func(ctx context.Context, workspace string) int64
	// Ended is called when a subscription has ended or was disabled, before the response to the request that ended it. So no delivery
	// attempt starts after the response. Ended may be nil.
	Ended func(id string)
	// Started is called before a new subscription is written, so that delivery attempts are allowed again for its id. It may be nil.
	Started func(id string)
	Now     func() time.Time
	// Log receives failures; nil is [slog.Default].
	Log *slog.Logger

	written bounded.Map[store.Key, bool] // keys of immutable items that this process has written, see [Store.putOnce]
}

func (s *Store) now() time.Time { return periodic.Clock(s.Now)() }

func (s *Store) log() *slog.Logger { return cmp.Or(s.Log, slog.Default()) }

func (s *Store) tally() tally.Counts {
	return tally.Counts{DB: s.DB, LimitOf: s.QuotaOf, SumOf: s.SumOf, Now: s.now, Log: s.log()}
}

// insert writes a new subscription, or returns Exhausted if the principal or the workspace has reached its limit of subscriptions. It
// first checks the principal's limit, so that a refused subscription gets no index entries. The transaction that writes the subscription
// checks this limit again.
//
// The workspace's number of subscriptions is not part of the transaction. insert raises the number first, and lowers it again if the
// subscription was certainly not written. If the process dies in between, [Sweeper.Recount] corrects the number.
func (s *Store) insert(ctx context.Context, cat *catalog.Catalog, sub *Subscription, extra ...store.Op) error {
	if err := s.tally().Check(ctx, sub.Workspace, sub.Principal); err != nil {
		return err
	}
	if err := s.tally().AddToSum(ctx, sub.Workspace, 1); err != nil {
		return err
	}
	certain, err := s.write(ctx, cat, sub, extra...)
	if err != nil && certain {
		s.tally().LowerSum(ctx, sub.Workspace)
	}
	return err
}

// write writes a new subscription and the extra operations in one transaction. It returns ErrConflict if the stored record does not have
// the subscription's revision. The result certain is false if the store may have written the subscription despite an error.
func (s *Store) write(ctx context.Context, cat *catalog.Catalog, sub *Subscription, extra ...store.Op) (certain bool, err error) {
	if err := s.addEntries(ctx, cat, sub); err != nil {
		return true, err
	}
	if err := s.addToCounters(ctx, sub.Workspace, sub.Patterns, 1); err != nil {
		return true, err
	}
	if s.Started != nil {
		s.Started(sub.ID)
	}
	ops := sub.moveStateEntry(false, time.Time{}) // before recordOps encodes the record, because moveStateEntry sets sub.Marked
	ops = append(append(ops, sub.recordOps()...), s.tally().AddOp(ctx, sub.Workspace, sub.Principal, 1))
	err = s.DB.Write(ctx, append(ops, extra...)...)
	if err == nil {
		return true, nil
	}
	if kind := fault.KindOf(err); !errors.Is(err, store.ErrConflict) && (kind == fault.Unavailable || kind == fault.Internal) {
		// The store may have written the subscription despite the error. So do not subtract it from the counters, because fanout finds
		// only subscriptions that are counted.
		s.log().WarnContext(ctx, "subscription counters uncertain", "error", err)
		return false, fault.Wrap(fault.Unavailable, err, "write the subscription")
	}
	s.lowerCounters(ctx, sub.Workspace, sub.Patterns)
	if !errors.Is(err, store.ErrConflict) {
		return true, fault.Wrap(fault.Unavailable, err, "write the subscription")
	}
	if full := s.tally().Check(ctx, sub.Workspace, sub.Principal); fault.Is(full, fault.Exhausted) {
		return true, full
	}
	return true, err
}

// update writes a changed subscription and the operations in extra in one transaction, or returns ErrConflict if the stored record has
// changed since it was read.
func (s *Store) update(ctx context.Context, sub *Subscription, extra ...store.Op) error {
	ops := sub.moveStateEntry(false, time.Time{})
	ops = append(append(ops, sub.recordOps()...), extra...)
	return fault.Wrap(fault.Unavailable, s.DB.Write(ctx, ops...), "write the subscription")
}

// recordOps returns the operations that write the subscription's record and, for each of its patterns, an item with a [Subscriber]. It
// also increases s.Revision. The operations fail with a conflict if another process has changed the record or, for a new subscription, if
// a record exists. Revisions begin at the creation time, so that a later subscription with the same id has other revisions.
func (s *Subscription) recordOps() []store.Op {
	unchanged := store.Absent()
	if s.Revision > 0 {
		unchanged = store.VersionIs(s.Revision)
	}
	s.Revision = max(s.Revision, s.Created.UnixMicro()) + 1
	ops := []store.Op{store.Put(s.encode(), unchanged)}
	for _, it := range s.subscriberItems() {
		ops = append(ops, store.Put(it))
	}
	return ops
}

// updatePatterns does the same as update, for a subscription whose patterns have changed. The parameter old has the previous patterns.
// updatePatterns adds the subscription to the new patterns' counts of subscribers before the write, and subtracts it from the old
// patterns' counts after the write. So no count is too low in between.
func (s *Store) updatePatterns(ctx context.Context, sub *Subscription, old []match.Pattern, extra ...store.Op) error {
	if err := s.addToCounters(ctx, sub.Workspace, sub.Patterns, 1); err != nil {
		return err
	}
	for _, p := range old {
		if !slices.ContainsFunc(sub.Patterns, func(now match.Pattern) bool { return now.Key == p.Key }) {
			extra = append(extra, store.Delete(subscriberKey(sub.Workspace, p.Key, sub.ID)))
		}
	}
	err := s.update(ctx, sub, extra...)
	unused := old
	switch {
	case errors.Is(err, store.ErrConflict):
		unused = sub.Patterns
	case err != nil: // keep the counters: the store may have written the subscription, and too high counters do no harm
		s.log().WarnContext(ctx, "subscription counters uncertain", "error", err)
		return err
	}
	s.lowerCounters(ctx, sub.Workspace, unused)
	return err
}

// lowerCounters subtracts one subscriber from the counters of each pattern, even if ctx was canceled because the client has disconnected.
func (s *Store) lowerCounters(ctx context.Context, workspace string, patterns []match.Pattern) {
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := s.addToCounters(undo, workspace, patterns, -1); err != nil {
		s.log().WarnContext(ctx, "subscription counters too high", "error", err)
	}
}

// remove deletes a subscription's items and runs the extra operations, in one transaction. If keep is true, the record stays for a week,
// so that the owner can see why the subscription ended.
func (s *Store) remove(ctx context.Context, sub *Subscription, keep bool, extra ...store.Op) error {
	was := sub.Revision
	now := s.now()
	until := now.Add(disabledKept)
	ops := append(extra, sub.moveStateEntry(!keep, until)...)
	ops = append(ops, store.Put(sub.endedEntry(now.Add(EndedKept))))
	if !sub.Until.IsZero() {
		ops = append(ops, store.Delete(sub.expiryKey()))
	}
	if keep {
		sub.Revision++
		it := sub.encode()
		it.Expires = until
		entry := sub.listEntry(indexKey(sub.Workspace, sub.ID))
		entry.Expires = until
		ops = append(ops, store.Put(it, store.VersionIs(was)), store.Put(entry))
	} else {
		ops = append(ops, store.Delete(recordKey(sub.Workspace, sub.Principal, sub.ID), store.VersionIs(was)))
	}
	served := sub.State != Disabled || keep
	if served {
		ops = append(ops, s.tally().AddOp(ctx, sub.Workspace, sub.Principal, -1))
		for _, p := range sub.Patterns {
			ops = append(ops, store.Delete(subscriberKey(sub.Workspace, p.Key, sub.ID)))
		}
	}
	if err := s.DB.Write(ctx, ops...); err != nil {
		return fault.Wrap(fault.Unavailable, err, "end the subscription")
	}
	if s.Ended != nil {
		s.Ended(sub.ID)
	}
	if !served {
		s.removeEntries(ctx, sub, false)
		return nil
	}
	if err := s.addToCounters(ctx, sub.Workspace, sub.Patterns, -1); err != nil {
		s.log().WarnContext(ctx, "subscription counters too high", "error", err)
	}
	s.tally().LowerSum(ctx, sub.Workspace)
	s.removeEntries(ctx, sub, keep)
	return nil
}

// disabledKept is how long the record of a disabled subscription stays readable.
const disabledKept = 7 * 24 * time.Hour

// load reads a principal's subscription. It returns nil if the subscription does not exist.
func (s *Store) load(ctx context.Context, workspace, principal, id string) (*Subscription, error) {
	it, err := store.One(ctx, s.DB, recordKey(workspace, principal, id), "read the subscription")
	if err != nil || it == nil {
		return nil, err
	}
	return decodeRecord(it)
}

// change loads a subscription and calls apply, which changes and writes it. If the subscription does not exist, apply gets nil. If
// another process wrote the subscription in between, change loads it and calls apply again.
func (s *Store) change(ctx context.Context, workspace, principal, id string, apply func(*Subscription) error) error {
	for range maxConflicts {
		sub, err := s.load(ctx, workspace, principal, id)
		if err != nil {
			return err
		}
		if err = apply(sub); !errors.Is(err, store.ErrConflict) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return errContested
}

// maxConflicts limits how often a write of a subscription is repeated after another process wrote the subscription in between.
const maxConflicts = 50

var errContested = fault.New(fault.Unavailable, "the subscription is being changed by other requests")

const (
	resealPage        = 200 // subscriptions per call of [Store.Reseal]
	resealConcurrency = 16
)

// Position is where the next call of [Store.Reseal] continues. The zero value is the beginning.
type Position struct {
	Workspace string `json:"ws,omitempty"`
	ID        string `json:"id,omitempty"`
}

// Reseal replaces the encrypted secrets of up to 200 subscriptions, for example after a change of the encryption key. It calls the
// function reseal for each secret, and stores the result unless it is nil. It returns the position for the next call, and whether more
// subscriptions follow. After a crash, the caller can repeat a call.
//
// Reseal may miss a subscription that is created between two calls. For a disabled subscription, it calls reseal but does not store the
// result, because the write would activate the subscription's patterns again.
func (s *Store) Reseal(ctx context.Context, from Position, reseal func(ctx context.Context, sealed []byte, b Binding) ([]byte, error)) (next Position, more bool, err error) {
	workspaces, err := (&Lists{DB: s.DB}).Workspaces(ctx)
	if err != nil {
		return from, false, err
	}
	i, _ := slices.BinarySearch(workspaces, from.Workspace)
	if i == len(workspaces) {
		return from, false, nil
	}
	workspace, after := workspaces[i], from.ID
	if workspace != from.Workspace {
		after = ""
	}
	page, err := s.DB.Query(ctx, store.Query{Table: store.Subscriptions, Partition: indexKey(workspace, "-").Partition, After: after, Limit: resealPage})
	if err != nil {
		return from, false, fault.Wrap(fault.Unavailable, err, "list the subscriptions of workspace %s", workspace)
	}
	work, limited := errgroup.WithContext(ctx)
	work.SetLimit(resealConcurrency)
	for _, it := range page.Items {
		work.Go(func() (err error) {
			defer fault.Recovered(&err)
			return s.resealOne(limited, workspace, string(it.Value), it.Sort, reseal)
		})
	}
	switch err := work.Wait(); {
	case err != nil:
		return from, false, err
	case page.More:
		return Position{workspace, page.Last}, true, nil
	case i+1 < len(workspaces):
		return Position{Workspace: workspaces[i+1]}, true, nil
	}
	return from, false, nil
}

func (s *Store) resealOne(ctx context.Context, workspace, principal, id string, reseal func(ctx context.Context, sealed []byte, b Binding) ([]byte, error)) error {
	return s.change(ctx, workspace, principal, id, func(sub *Subscription) error {
		if sub == nil {
			return nil
		}
		changed := false
		for _, secret := range []*[]byte{&sub.Target.Secret, &sub.Target.Previous} {
			if len(*secret) == 0 {
				continue
			}
			sealed, err := reseal(ctx, *secret, sub.Binding())
			if err != nil {
				return err
			}
			if sealed != nil {
				*secret, changed = sealed, true
			}
		}
		if !changed || sub.State == Disabled {
			return nil
		}
		return fault.Wrap(fault.Unavailable, s.DB.Write(ctx, sub.recordOps()...), "seal the secret of subscription %s again", id)
	})
}

// Fanout finds the subscribers of an event without a scan, because two kinds of items tell it which patterns are in use. A shape is the
// set of variables that a pattern leaves open (see [match.Shape]).
//
//	shapes  one item per event type, and one for all parent URIs. For each shape, it has two numbers:
//	        "w_SHAPE" is how many patterns of the shape webhooks subscribe to, and "i_SHAPE" is the
//	        time (in seconds since 1970) until which streams and polls may read such patterns
//	header  one item per pattern, with the number of its subscribers
//
// [Store] raises the numbers of subscribers before it writes a subscription, and lowers them after it has removed the subscription. So
// after a crash a number may be too high, which costs a look-up, but never too low, which would lose an event. A header expires shortly
// after its number has reached zero, so that unused patterns leave no items.

// ShapesKey returns the key of the item that says which shapes of patterns are in use (see [InUse]). There is one such item per scope. A
// scope is one event type, or stands for all parent URIs (see [match.Shape.Scope]).
func ShapesKey(workspace, scope string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "shapes#" + workspace + "#" + scope, Sort: "-"}
}

// HeaderKey returns the key of a pattern's header item, which counts the pattern's subscribers. The parameter key is [match.Pattern.Key].
func HeaderKey(workspace, key string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "p#" + workspace + "#" + key, Sort: "#"}
}

const headerCount = "n"

// HeaderCount returns the number of subscribers in a pattern's header item, or 0 if header is nil.
func HeaderCount(header *store.Item) int {
	if header == nil {
		return 0
	}
	return int(header.Counts[headerCount])
}

// InUse returns the shapes of the patterns that webhooks subscribe to, and (as inBand) the shapes of the patterns that streams and polls
// may read at the time now. It reads them from an item with a [ShapesKey], which may be nil.
func InUse(item *store.Item, scope string, now time.Time) (webhooks, inBand []match.Shape) {
	if item == nil {
		return nil, nil
	}
	for name, n := range item.Counts {
		switch {
		case strings.HasPrefix(name, "w_") && n > 0:
			webhooks = append(webhooks, match.Shape{Scope: scope, Name: name[2:]})
		case strings.HasPrefix(name, "i_") && n > now.Unix():
			inBand = append(inBand, match.Shape{Scope: scope, Name: name[2:]})
		}
	}
	return webhooks, inBand
}

// addToCounters adds n to the counter of each pattern's shape (see [ShapesKey]), and to the number of subscribers in each pattern's
// header item (see [HeaderKey]). It does not use a transaction. Many subscriptions share the counters of shapes, so their transactions
// would conflict.
func (s *Store) addToCounters(ctx context.Context, workspace string, patterns []match.Pattern, n int64) error {
	shapes := map[match.Shape]int64{}
	for _, p := range patterns {
		shapes[p.Shape] += n
	}
	if n > 0 {
		if err := s.healShapes(ctx, workspace, shapes); err != nil {
			return err
		}
	}
	for shape, d := range shapes {
		op := store.Add(ShapesKey(workspace, shape.Scope), map[string]int64{"w_" + shape.Name: d}, nil)
		if err := s.DB.Write(ctx, op); err != nil {
			return fault.Wrap(fault.Unavailable, err, "count the shapes of a subscription")
		}
	}
	for _, p := range patterns {
		op := store.Add(HeaderKey(workspace, p.Key), map[string]int64{headerCount: n}, nil)
		if n > 0 {
			op.Item.Expires = farFuture
		}
		if err := s.DB.Write(ctx, op); err != nil {
			return fault.Wrap(fault.Unavailable, err, "count the subscribers of a pattern")
		}
		if n > 0 {
			continue
		}
		// If the pattern has no subscribers left, let its header item expire. If another process has added a subscriber meanwhile, the
		// number exceeds the maximum of 0, and this write fails with a conflict.
		empty := store.Add(op.Item.Key, map[string]int64{headerCount: 0}, map[string]int64{headerCount: 0})
		empty.Item.Expires = s.now().Add(headerKept)
		if err := s.DB.Write(ctx, empty); err != nil && !errors.Is(err, store.ErrConflict) {
			return fault.Wrap(fault.Unavailable, err, "let the header of an empty pattern expire")
		}
	}
	return nil
}

// healShapes sets negative counters of shapes, which earlier releases may have left, to zero. It runs before the counters are raised for
// another subscription. Otherwise a counter could become zero although a subscription uses the shape, and fanout would not find the
// subscription.
func (s *Store) healShapes(ctx context.Context, workspace string, shapes map[match.Shape]int64) error {
	byKey := map[store.Key][]string{}
	for shape := range shapes {
		key := ShapesKey(workspace, shape.Scope)
		byKey[key] = append(byKey[key], "w_"+shape.Name)
	}
	items, err := s.DB.Get(ctx, slices.Collect(maps.Keys(byKey))...)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "read the shapes in use")
	}
	for _, it := range items {
		if it == nil {
			continue
		}
		for _, name := range byKey[it.Key] {
			if it.Counts[name] >= 0 {
				continue
			}
			heal := store.Add(it.Key, map[string]int64{name: -it.Counts[name]}, map[string]int64{name: 0}) // conflicts if another call has healed it
			if err := s.DB.Write(ctx, heal); err != nil && !errors.Is(err, store.ErrConflict) {
				return fault.Wrap(fault.Unavailable, err, "heal the shapes in use")
			}
		}
	}
	return nil
}

// headerKept is how long the header item of a pattern is kept after its count of subscribers has reached zero.
const headerKept = time.Minute

// farFuture is an expiry that means never. The header item of a pattern (see [HeaderKey]) gets an earlier expiry when the pattern loses
// its last subscriber. So each increment of its count sets the expiry to farFuture again.
var farFuture = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// RecordInterest records that a client reads a wildcard or parent pattern with a stream or poll, and may resume within the log's
// retention. From then on, fanout also writes matching events into the pattern's own partitions of the event log (see
// [eventlog.Interest]). A concrete pattern, which is one URI, needs no such record, because each URI has its own partition.
//
// Fanout may be storing a batch of events at this moment. If it looked for interests before this one was recorded, it does not write the
// batch into the pattern's partitions. So RecordInterest waits until the batch is in the partitions of the events' own URIs, where a
// client that reads the latest events afterwards finds it.
func RecordInterest(ctx context.Context, db store.DB, log *eventlog.Log, workspace string, p match.Pattern) (eventlog.Interest, error) {
	return recordInterestUntil(ctx, db, log, workspace, p, log.KeptUntil())
}

// recordInterest does the same as [RecordInterest], for a webhook subscription of MCP Events. Each delivery and gap notice has a cursor
// from which the client may resume later. So the record lasts for the log's retention after the subscription's expiry.
func (s *Subscription) recordInterest(ctx context.Context, db store.DB, log *eventlog.Log, p match.Pattern) (eventlog.Interest, error) {
	until := farFuture
	if !s.Until.IsZero() {
		until = s.Until.Add(log.MinRetention())
	}
	return recordInterestUntil(ctx, db, log, s.Workspace, p, until)
}

func recordInterestUntil(ctx context.Context, db store.DB, log *eventlog.Log, workspace string, p match.Pattern, until time.Time) (eventlog.Interest, error) {
	if p.Kind == match.Concrete {
		return eventlog.Interest{}, nil
	}
	// The number "i_SHAPE" is the time until which fanout looks for interests in patterns with the shape of p. So write it before the
	// interest, and with a time that is not before the interest's end. It is an hour later than needed, so that most later calls need not
	// write it.
	shapes, name := ShapesKey(workspace, p.Shape.Scope), "i_"+p.Shape.Name
	if err := raiseInterest(ctx, db, shapes, name, until); err != nil {
		return eventlog.Interest{}, err
	}
	in, err := log.RecordInterest(ctx, workspace, p.Key, until)
	if err != nil {
		return eventlog.Interest{}, err
	}
	// Fanout may still be storing a batch of events, and may have looked for interests before this one was recorded. Wait for the batch
	// even if the interest was stored already, because another reader may have recorded it only a moment ago.
	return in, fault.Wrap(fault.Unavailable, log.AwaitBatches(ctx), "wait for the events that are being stored")
}

// raiseInterest sets the number with the given name to at least the time until, in seconds since 1970. The parameter shapes is the key of
// the item with the number.
func raiseInterest(ctx context.Context, db store.DB, shapes store.Key, name string, until time.Time) error {
	raised := until.Add(time.Hour).Unix()
	for {
		it, err := store.One(ctx, db, shapes, "read the interest in a shape")
		if err != nil {
			return err
		}
		had := int64(0)
		if it != nil {
			had = it.Counts[name]
		}
		if had > until.Unix() {
			return nil
		}
		// If another caller has raised the number meanwhile, the result would exceed the maximum, so this write fails. Without the
		// maximum, both additions would be applied.
		err = db.Write(ctx, store.Add(shapes, map[string]int64{name: raised - had}, map[string]int64{name: raised}))
		if !errors.Is(err, store.ErrConflict) {
			return fault.Wrap(fault.Unavailable, err, "record the interest in a shape")
		}
	}
}
