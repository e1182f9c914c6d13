// Package erase removes what is stored of a principal: subscriptions with their secrets, what was delivered to them,
// sessions, consents, and the name in what must stay.
//
// What belongs to whom is the business of the packages that own the items; here is the order. A run is bounded.
// What it could not do the next one does, and one that is repeated finds nothing. Events that the principal
// published are not its own: they stay as long as the log keeps them.
package erase

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"maps"
	"slices"

	"github.com/mcp-events/mcpevents/shared/conversation"

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

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
)

// Eraser erases principals.
type Eraser struct {
	DB            store.DB
	Subscriptions *subscription.Service
	Lists         *subscription.Lists
	Operations    *deadletter.Operations
	Replays       *deadletter.Replays
	Trail         *audit.Trail
	// Most bounds the things that a run erases; 0 is [DefaultMost].
	Most int
}

const (
	// DefaultMost is what a run does within seconds on either store.
	DefaultMost = 5000
	// maxCounted bounds a dry run.
	maxCounted = 100_000
	// maxEnded is how many subscriptions that ended a run looks after.
	maxEnded = 500
	// flushAt is how many deletions are written together.
	flushAt = 500
)

// Result is what a run found, by kind. It is not complete if there is more than it does or counts.
type Result struct {
	Counts   map[string]int
	Complete bool
}

// Pseudonym stands for a principal that was erased.
func Pseudonym(workspace, principal string) string {
	h := sha256.Sum256([]byte(workspace + "\x00" + principal))
	return "erased:" + base64.RawURLEncoding.EncodeToString(h[:12])
}

var errEnough = errors.New("erase: the run is long enough")

// run is one of them.
type run struct {
	*Eraser
	workspace, principal string
	dry                  bool

	counts map[string]int
	left   int
	ops    map[store.Key]store.Op
	own    []match.Pattern // of its subscriptions that are served, in a dry run
	ids    []string
	bodies map[store.Key]string // where a body lies: the event's URI, "" if no one else can use it
}

// Erase erases a principal of a workspace, or in a dry run counts what it would.
func (e *Eraser) Erase(ctx context.Context, workspace, principal string, dry bool) (Result, error) {
	r := &run{
		Eraser: e, workspace: workspace, principal: principal, dry: dry, counts: map[string]int{}, left: e.Most,
		ops: map[store.Key]store.Op{}, bodies: map[store.Key]string{},
	}
	switch {
	case dry:
		r.left = maxCounted
	case r.left == 0:
		r.left = DefaultMost
	}
	err := r.all(ctx)
	if enough := errors.Is(err, errEnough); err == nil || enough {
		err = r.flush(ctx)
		if err == nil && !enough && !dry {
			err = store.Scrub(ctx, e.DB)
		}
		return Result{r.counts, !enough}, fault.Wrap(fault.Unavailable, err, "erase a principal")
	}
	return Result{}, err
}

func (r *run) all(ctx context.Context) error {
	more, err := r.subscriptions(ctx)
	if err != nil {
		return err
	}
	for _, id := range r.ids {
		err := r.Operations.Belongings(ctx, r.workspace, id, func(b deadletter.Belonging) error {
			if b.Body != (store.Key{}) {
				if r.bodies[b.Body] = b.URI; b.Own {
					r.bodies[b.Body] = ""
				}
			}
			return r.found(ctx, b.Kind, b.Keys...)
		})
		if err != nil {
			return err
		}
	}
	for _, do := range []func(context.Context) error{r.unusedBodies, r.sessions, r.partitions, r.replays, r.trail, r.flush} {
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
	return nil
}

// found counts a thing and deletes its keys.
func (r *run) found(ctx context.Context, kind string, keys ...store.Key) error {
	r.counts[kind]++
	if r.left--; r.left < 0 {
		return errEnough
	}
	if r.dry {
		return nil
	}
	for _, key := range keys {
		r.ops[key] = store.Delete(key)
	}
	if len(r.ops) < flushAt {
		return nil
	}
	return r.flush(ctx)
}

func (r *run) flush(ctx context.Context) error {
	if len(r.ops) == 0 {
		return nil
	}
	ops := slices.Collect(maps.Values(r.ops))
	clear(r.ops)
	return fault.Wrap(fault.Unavailable, r.DB.WriteAll(ctx, ops...), "erase")
}

// subscriptions ends what there is, and finds out which there were; more says that there are others.
func (r *run) subscriptions(ctx context.Context) (more bool, err error) {
	var end []string
	seen := map[string]bool{}
	err = r.Lists.Each(ctx, r.workspace, r.principal, func(sub *subscription.Subscription) error {
		if r.dry {
			if seen[sub.ID] = true; sub.State != subscription.Disabled {
				r.own = append(r.own, sub.Patterns...)
			}
			return r.found(ctx, "subscriptions")
		}
		end = append(end, sub.ID)
		return nil
	})
	for _, id := range end {
		if err == nil {
			err = r.found(ctx, "subscriptions")
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

// unusedBodies are the stored events that no one else can need: of those that are subscribed to their URI, none is left.
func (r *run) unusedBodies(ctx context.Context) error {
	others := map[string]bool{"": false}
	var keys []store.Key
	for key, uri := range r.bodies {
		used, known := others[uri]
		if !known {
			n, err := r.Subscriptions.Count(ctx, r.workspace, uri)
			if err != nil {
				return err
			}
			for _, p := range r.own {
				if match.Matches(p.Key, uri) {
					n--
				}
			}
			used = n > 0
			others[uri] = used
		}
		if !used {
			keys = append(keys, key)
		}
	}
	for part := range slices.Chunk(keys, store.MaxGet) {
		items, err := r.DB.Get(ctx, part...)
		if err != nil {
			return fault.Wrap(fault.Unavailable, err, "read stored events")
		}
		for _, it := range items {
			if it == nil {
				continue
			}
			if err := r.found(ctx, "bodies", it.Key); err != nil {
				return err
			}
		}
	}
	return nil
}

// sessions ends sessions, with the notices of their streams.
func (r *run) sessions(ctx context.Context) error {
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
		return r.found(ctx, "sessions", keys...)
	})
}

func (r *run) topic(name string) store.Key {
	return store.Key{Table: store.Log, Partition: eventlog.Topic(r.workspace, name).Name()}
}

// partitions are those that hold nothing else.
func (r *run) partitions(ctx context.Context) error {
	type part struct {
		kind string
		key  store.Key
	}
	parts := []part{
		{"consents", conversation.Consented(r.workspace, r.principal)},
		{"leases", lease.Partition(r.workspace, r.principal)},
		{"notices", r.topic(stream.TopicPrincipal(r.principal))},
		{"notices", r.topic(stream.TopicConversation(r.principal))},
	}
	for _, id := range r.ids {
		if !r.dry {
			for _, key := range switches.Keys(r.workspace, switches.Subscription(id)) {
				r.ops[key] = store.Delete(key)
			}
		}
		parts = append(parts, part{"notices", r.topic(stream.TopicSubscription(id))})
	}
	for kind, key := range subscription.Held(r.workspace, r.principal) {
		parts = append(parts, part{kind, key})
	}
	for _, p := range parts {
		err := store.Each(ctx, r.DB, p.key, "list the "+p.kind+" of a principal", func(it *store.Item) error { return r.found(ctx, p.kind, it.Key) })
		if err != nil {
			return err
		}
	}
	return nil
}

// replays deletes those for its subscriptions, and takes its name off others.
func (r *run) replays(ctx context.Context) error {
	return r.Replays.Each(ctx, r.workspace, func(job *deadletter.Replay, keys []store.Key) error {
		switch {
		case slices.Contains(r.ids, job.Select.Subscription):
			return r.found(ctx, "replays", keys...)
		case job.By != r.principal:
			return nil
		}
		if !r.dry {
			if err := r.Replays.Unname(ctx, job, Pseudonym(r.workspace, r.principal)); err != nil {
				return err
			}
		}
		return r.found(ctx, "replays")
	})
}

// trail takes the name out of the audit trail.
func (r *run) trail(ctx context.Context) error {
	return r.Trail.Redact(ctx, r.workspace, r.principal, Pseudonym(r.workspace, r.principal), r.ids, r.dry, func() error {
		return r.found(ctx, "auditEntries")
	})
}
