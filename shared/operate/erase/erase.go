// Package erase deletes the data of a principal: subscriptions with their secrets, deliveries, sessions, tokens, consents and
// conversation messages. In data that must be kept, such as the audit trail, it replaces the principal's name with a pseudonym. Events
// that the principal published, other than conversation messages, stay in the log until they expire.
//
// A run erases a limited number of items, and the next run continues. The erasure is complete when a run finds no more items. If items
// are found through another item, this package deletes the other item last, so that an interrupted run can be continued.
package erase

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"maps"
	"slices"

	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/demand"
	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/stream/lease"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/operate/audit"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Eraser erases principals.
type Eraser struct {
	DB            store.DB
	Subscriptions *subscription.Service
	Lists         *subscription.Lists
	Operations    *deadletter.Operations
	Replays       *deadletter.Replays
	Trail         *audit.Trail
	// Backends returns the names of the workspace's backends. The erasure needs the names because the store has a list for each backend
	// with the events that principals want.
	Backends func(ctx context.Context, workspace string) ([]string, error)
	// Most is the maximum number of items per run, by default [defaultMost].
	Most int
}

const (
	// defaultMost is low enough that a run takes only a few seconds, both on SQLite and on DynamoDB.
	defaultMost = 5000
	maxCounted  = 100_000 // maximum number of items that a dry run counts
	maxEnded    = 500     // maximum number of ended subscriptions that a run handles
	flushAt     = 500     // deletions that are written together
)

// Result is the result of one call of [Eraser.Erase].
type Result struct {
	Counts   map[string]int // found items by kind
	Complete bool           // false if there are more items than a run may erase or count
}

// Pseudonym returns the pseudonym that replaces the name of an erased principal. It is the same in each run.
func Pseudonym(workspace, principal string) string {
	h := sha256.Sum256([]byte(workspace + "\x00" + principal))
	return "erased:" + base64.RawURLEncoding.EncodeToString(h[:12])
}

var errEnough = errors.New("erase: the run is long enough")

// run holds the state of one call of [Eraser.Erase].
type run struct {
	*Eraser
	workspace, principal string
	dry                  bool

	counts map[string]int
	left   int
	// The fields copies and found have the deletions that are planned but not written yet. In found are the keys by which the run finds
	// items, for example the entry of a session in the principal's list of sessions. In copies is everything that the run finds through
	// them. flush deletes copies first, so that an interrupted run can be repeated.
	copies, found []store.Op
	own           []match.Pattern      // the patterns of the principal's live subscriptions, in a dry run
	ids           []string             // the ids of the principal's subscriptions
	bodies        map[store.Key]string // the events' URIs, by the keys of their bodies; "" if only the principal uses the body
	others        map[string]bool      // by URI, whether it matches a subscription of another principal
}

// Erase erases a principal. In a dry run it only counts the items.
func (e *Eraser) Erase(ctx context.Context, workspace, principal string, dry bool) (Result, error) {
	r := &run{
		Eraser: e, workspace: workspace, principal: principal, dry: dry, counts: map[string]int{}, left: e.Most,
		bodies: map[store.Key]string{}, others: map[string]bool{"": false},
	}
	switch {
	case dry:
		r.left = maxCounted
	case r.left == 0:
		r.left = defaultMost
	}
	err := r.eraseAll(ctx)
	if enough := errors.Is(err, errEnough); err == nil || enough {
		err = r.flush(ctx)
		if err == nil && !enough && !dry {
			err = store.Scrub(ctx, e.DB)
		}
		return Result{Counts: r.counts, Complete: !enough}, fault.Wrap(fault.Unavailable, err, "erase a principal")
	}
	return Result{}, err
}

func (r *run) eraseAll(ctx context.Context) error {
	more, err := r.endSubscriptions(ctx)
	if err != nil {
		return err
	}
	for _, id := range r.ids {
		err := r.Operations.VisitStoredData(ctx, r.workspace, id, func(b deadletter.StoredData) error {
			if b.Body != (store.Key{}) {
				if r.bodies[b.Body] = b.URI; b.Own {
					r.bodies[b.Body] = ""
				}
			}
			return r.erase(ctx, b.Kind, b.Keys...)
		})
		if err != nil {
			return err
		}
	}
	for _, do := range []func(context.Context) error{r.addUnusedBodies, r.eraseSessions, r.eraseDemands, r.erasePartitions, r.eraseReplays, r.unnameConsents, r.unnameSwitches, r.unnameNotes, r.redactTrail, r.flush} {
		if err := do(ctx); err != nil {
			return err
		}
	}
	for _, id := range r.ids {
		if r.dry {
			break
		}
		if err := r.Lists.ForgetEnded(ctx, r.workspace, r.principal, id); err != nil {
			return err
		}
	}
	if more {
		return errEnough
	}
	return r.eraseMessages(ctx) // last, because the log may be too large to be read in one request
}

// erase counts an item, and schedules its keys for deletion unless it is a dry run. The first key is the one by which the run
// found the item. erase returns errEnough if the run has reached its limit.
func (r *run) erase(ctx context.Context, kind string, keys ...store.Key) error {
	r.counts[kind]++
	if r.left--; r.left < 0 {
		return errEnough
	}
	if r.dry || len(keys) == 0 {
		return nil
	}
	r.found = append(r.found, store.Delete(keys[0]))
	for _, key := range keys[1:] {
		r.copies = append(r.copies, store.Delete(key))
	}
	if len(r.found)+len(r.copies) < flushAt {
		return nil
	}
	return r.flush(ctx)
}

// flush writes the deletions in r.copies before the deletions in r.found. The run finds the other keys and the stored events of an item
// by the keys in r.found. So if the run is interrupted in between, the next run still finds everything that is left.
func (r *run) flush(ctx context.Context) error {
	if err := r.addUnusedBodies(ctx); err != nil {
		return err
	}
	for _, ops := range []*[]store.Op{&r.copies, &r.found} {
		if len(*ops) == 0 {
			continue
		}
		if err := r.DB.WriteAll(ctx, *ops...); err != nil {
			return fault.Wrap(fault.Unavailable, err, "erase")
		}
		*ops = nil
	}
	return nil
}

// endSubscriptions ends the principal's subscriptions, and adds the ids of at most maxEnded ended subscriptions to r.ids. The result more
// is true if the principal has further ended subscriptions, which the next run handles.
func (r *run) endSubscriptions(ctx context.Context) (more bool, err error) {
	var end []string
	seen := map[string]bool{}
	err = r.Lists.Each(ctx, r.workspace, r.principal, func(sub *subscription.Subscription) error {
		if r.dry {
			if seen[sub.ID] = true; sub.State != subscription.Disabled {
				r.own = append(r.own, sub.Patterns...)
			}
			return r.erase(ctx, "subscriptions")
		}
		end = append(end, sub.ID)
		return nil
	})
	for _, id := range end {
		if err == nil {
			err = r.erase(ctx, "subscriptions")
		}
		if err == nil {
			err = r.Subscriptions.End(ctx, r.workspace, r.principal, id)
		}
		if fault.Is(err, fault.NotFound) {
			err = nil
		}
	}
	if err != nil {
		return false, err
	}
	err = r.Lists.EachEnded(ctx, r.workspace, r.principal, func(id string) error {
		if !r.dry && len(seen) == maxEnded {
			more = true
			return errEnough
		}
		seen[id] = true
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return false, err
	}
	r.ids = slices.Sorted(maps.Keys(seen))
	if r.dry {
		return false, nil
	}
	return more, r.Operations.SweepLater(ctx, r.workspace, r.ids)
}

// addUnusedBodies erases the stored events of the principal's deliveries that the run has found. It skips an event whose URI also matches a
// subscription of another principal, because that subscription may still need the event.
func (r *run) addUnusedBodies(ctx context.Context) error {
	var keys []store.Key
	for key, uri := range r.bodies {
		used, known := r.others[uri]
		if !known {
			n, err := r.Subscriptions.CountSubscribers(ctx, r.workspace, uri)
			if err != nil {
				return err
			}
			for _, p := range r.own {
				if match.Matches(p.Key, uri) {
					n--
				}
			}
			used = n > 0
			r.others[uri] = used
		}
		if !used {
			keys = append(keys, key)
		}
	}
	clear(r.bodies)
	for part := range slices.Chunk(keys, store.MaxGet) {
		items, err := r.DB.Get(ctx, part...)
		if err != nil {
			return fault.Wrap(fault.Unavailable, err, "read stored events")
		}
		for _, it := range items {
			if it == nil {
				continue
			}
			if r.counts["bodies"]++; !r.dry {
				r.copies = append(r.copies, store.Delete(it.Key))
			}
		}
	}
	return nil
}

// eraseMessages erases the principal's messages in the event log, and the stored events of webhooks with these messages. It erases the
// original of a message after its copies. If this run is interrupted, the next run finds the rest with the help of the original.
func (r *run) eraseMessages(ctx context.Context) error {
	copies, originals := conversation.LogPartitions(r.Subscriptions.Log, r.workspace)
	for i, p := range slices.Concat(copies, originals) {
		own := func(e *event.Event) bool { return conversation.IsBy(e, r.principal) }
		err := r.Subscriptions.Log.Erase(ctx, p, r.dry, own, func(found []event.Event) error {
			if r.left <= 0 {
				return errEnough
			}
			r.left -= len(found)
			if i < len(copies) {
				return nil
			}
			r.counts["messages"] += len(found)
			for _, e := range found {
				r.bodies[state.BodyKey(r.workspace, e.Key())] = ""
			}
			return r.flush(ctx)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// eraseSessions erases the principal's sessions. It also erases the notices that the streams of these sessions have not sent yet.
func (r *run) eraseSessions(ctx context.Context) error {
	return store.Each(ctx, r.DB, session.ListKey(r.workspace, r.principal), "list the sessions of a principal", func(listed *store.Item) error {
		keys := []store.Key{listed.Key}
		for _, partition := range []store.Key{session.Partition(listed.Sort), r.topic(stream.TopicSession(listed.Sort))} {
			err := store.Each(ctx, r.DB, partition, "list what is stored of a session", func(it *store.Item) error {
				keys = append(keys, it.Key)
				return nil
			})
			if err != nil {
				return err
			}
		}
		return r.erase(ctx, "sessions", keys...)
	})
}

// eraseDemands erases the records that say which events of backends the principal wants, together with the principal's tokens for the
// backends.
func (r *run) eraseDemands(ctx context.Context) error {
	if r.Backends == nil {
		return nil
	}
	names, err := r.Backends(ctx, r.workspace)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "list the backends")
	}
	for _, name := range names {
		err := demand.EachOf(ctx, r.DB, r.workspace, name, r.principal, func(key store.Key) error { return r.erase(ctx, "demands", key) })
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *run) topic(name string) store.Key {
	return store.Key{Table: store.Log, Partition: eventlog.TopicPartition(r.workspace, name).Name()}
}

func (r *run) erasePartitions(ctx context.Context) error {
	type part struct {
		kind string
		key  store.Key
	}
	parts := []part{
		{"consents", conversation.ConsentsKey(r.workspace, r.principal)},
		{"leases", lease.Partition(r.workspace, r.principal)},
		{"notices", r.topic(stream.TopicPrincipal(r.principal))},
		{"notices", r.topic(stream.TopicConversation(r.principal))},
	}
	for _, id := range r.ids {
		if !r.dry {
			for _, key := range switches.Keys(r.workspace, switches.SubscriptionSwitch(id)) {
				r.found = append(r.found, store.Delete(key))
			}
		}
		parts = append(parts, part{"notices", r.topic(stream.TopicSubscription(id))})
	}
	for kind, key := range subscription.DataPartitions(r.workspace, r.principal) {
		parts = append(parts, part{kind, key})
	}
	for _, p := range parts {
		err := store.Each(ctx, r.DB, p.key, "list the "+p.kind+" of a principal", func(it *store.Item) error { return r.erase(ctx, p.kind, it.Key) })
		if err != nil {
			return err
		}
	}
	return nil
}

// eraseReplays erases the replays of the principal's subscriptions, and removes the principal's name from other replays.
func (r *run) eraseReplays(ctx context.Context) error {
	return r.Replays.Each(ctx, r.workspace, func(job *deadletter.Replay, keys []store.Key) error {
		switch {
		case slices.Contains(r.ids, job.Select.Subscription):
			return r.erase(ctx, "replays", keys...)
		case job.By != r.principal:
			return nil
		}
		if !r.dry {
			if err := r.Replays.Unname(ctx, job, Pseudonym(r.workspace, r.principal)); err != nil {
				return err
			}
		}
		return r.erase(ctx, "replays")
	})
}

func (r *run) unnameConsents(ctx context.Context) error {
	return conversation.EachMark(ctx, r.DB, r.workspace, r.principal, func(mark store.Key) error {
		if !r.dry {
			if err := conversation.Unname(ctx, r.DB, r.workspace, r.principal, mark, Pseudonym(r.workspace, r.principal)); err != nil {
				return err
			}
		}
		return r.erase(ctx, "consents", mark)
	})
}

// unnameSwitches replaces the principal's name with the pseudonym in all switches that the principal has set. It skips the switches of
// the principal's own subscriptions, because [run.erasePartitions] deletes these switches.
func (r *run) unnameSwitches(ctx context.Context) error {
	return switches.EachBy(ctx, r.DB, r.workspace, r.principal, func(sw switches.Switch) error {
		if id, ok := sw.Name.SubscriptionID(); ok && slices.Contains(r.ids, id) {
			return nil
		}
		if !r.dry {
			if err := switches.Unname(ctx, r.DB, r.workspace, sw, Pseudonym(r.workspace, r.principal)); err != nil {
				return err
			}
		}
		return r.erase(ctx, "switches")
	})
}

func (r *run) unnameNotes(ctx context.Context) error {
	return switches.EachNoteBy(ctx, r.DB, r.workspace, r.principal, func(n switches.Note) error {
		if !r.dry {
			if err := switches.UnnameNote(ctx, r.DB, r.workspace, n, Pseudonym(r.workspace, r.principal)); err != nil {
				return err
			}
		}
		return r.erase(ctx, "notes")
	})
}

func (r *run) redactTrail(ctx context.Context) error {
	return r.Trail.Redact(ctx, r.workspace, r.principal, Pseudonym(r.workspace, r.principal), r.ids, r.dry, func() error {
		return r.erase(ctx, "auditEntries")
	})
}
