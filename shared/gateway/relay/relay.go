// Package relay keeps one notification stream open to each backend, for all clients and processes of a deployment. It writes the
// backends' notifications to the event log, from which the streams of clients read them.
//
//	relay.go       the set of backends, with one follower for each
//	lease.go       decides which of several relays follows a backend, and hands over to another one, also in a function with limited time
//	connection.go  the states of a connection
//	following.go   an open connection: announces notifications, and subscribes on behalf of clients
//	stream.go      the streams of a connection, each read by a goroutine
//	interests.go   the subscriptions to resources in session-based revisions, and which subscriptions there is room for
//	listens.go     the subscriptions to resources in 2026-07-28
//	throttle.go    limits on notifications
//	events.go      the event types of backends, and subscriptions to their events
//	receive.go     one subscription to events
//	callers.go     one subscription to events of a backend that acts for its callers
package relay

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/backends"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Relay keeps one notification stream open to each backend, and writes the backends' notifications to the event log. If several processes
// have a relay, a lease in the store decides which relay holds a backend's stream.
type Relay struct {
	// Backends returns the backends whose notifications the relay announces, usually [backends.Set.Followed].
	Backends func(ctx context.Context) []*backends.Backend
	// Announce appends a backend's notification to the backend's topic in the event log.
	Announce func(ctx context.Context, workspace, backend string, notice json.RawMessage) error
	// DB holds the leases, and the hashes of the backends' lists with which the relay notices changes.
	DB  store.DB
	Log *slog.Logger
	// Lease is how long a lease lasts, and thus how long other relays wait after its holder has died; 0 means 30 s.
	Lease time.Duration
	// Relist is how often the relay reads a backend's lists without having been notified of a change; 0 means 1 min.
	Relist time.Duration
	// MinPause and MaxPause limit the pause before another attempt to connect to a backend. The pause doubles with each failure. 0 means
	// 1 s and 1 min.
	MinPause, MaxPause time.Duration
	// Until is when this process must have ended, or zero if its time is not limited. In the last part of that time, other relays take
	// over the backends. Handover is the length of this part.
	Until    time.Time
	Handover time.Duration
	Events   *Events // nil if clients cannot subscribe to backends' events
}

func (r *Relay) pauses() (least, most time.Duration) {
	return cmp.Or(r.MinPause, time.Second), cmp.Or(r.MaxPause, time.Minute)
}

func (r *Relay) bounded() bool { return !r.Until.IsZero() }

func (r *Relay) lease() time.Duration { return cmp.Or(r.Lease, 30*time.Second) }

const readBackendsEvery = time.Second

// follower is the relay's state for one backend, whether or not the relay has the backend's lease.
type follower struct {
	*backends.Backend
	throttle     *notificationThrottle
	stop         context.CancelFunc
	idle         atomic.Bool       // another relay follows the backend, or the backend acts for its callers and no client wants its events
	typesChanged chan struct{}     // receives when the backend has notified of changed event types
	unread       map[api.Kind]bool // the lists that could not be fetched for the last comparison
}

// placed is implemented by the types that belong to one backend, such as [follower].
type placed interface{ Place() api.Place }

func key(of placed, what string) store.Key {
	return store.Key{Table: store.Sessions, Partition: "relay#" + of.Place().String(), Sort: what}
}

func (r *Relay) log(of placed) *slog.Logger { return r.Log.With("backend", of.Place().Backend) }

// Run announces the notifications of the backends until ctx ends. If the relay's time is limited, Run returns earlier if it has nothing
// to do, for example because there are no backends, or because other relays follow all of them.
func (r *Relay) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if r.bounded() {
		end := time.AfterFunc(time.Until(r.Until), stop)
		defer end.Stop()
	}
	followed, idled := map[*backends.Backend]*follower{}, make(chan struct{}, 1)
	tick := time.NewTicker(readBackendsEvery)
	defer tick.Stop()
	var reconciled []*backends.Backend
	for {
		now := r.Backends(ctx)
		if reconciled == nil || !slices.Equal(reconciled, now) {
			if err := r.Events.reconcile(ctx, r.DB); err == nil {
				reconciled = append([]*backends.Backend{}, now...)
			} else if ctx.Err() == nil {
				r.Log.WarnContext(ctx, "event types not reconciled", "error", err)
			}
		}
		for b, f := range followed {
			if !slices.Contains(now, b) {
				f.stop()
				delete(followed, b)
			}
		}
		idle := true
		for _, b := range now {
			f := followed[b]
			if f == nil {
				f = &follower{Backend: b, throttle: newNotificationThrottle(), typesChanged: make(chan struct{}, 1), unread: map[api.Kind]bool{}}
				followed[b] = f
				var one context.Context
				one, f.stop = context.WithCancel(ctx)
				wg.Go(func() { r.keepFollowing(one, f, idled) })
			}
			idle = idle && f.idle.Load()
		}
		if idle && r.bounded() {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-idled:
		case <-tick.C:
		}
	}
}

// keepFollowing follows one backend whenever this relay gets the backend's lease. Whenever the relay has no lease, keepFollowing sends to
// idled, so that [Relay.Run] checks whether any backend is left to follow.
func (r *Relay) keepFollowing(ctx context.Context, f *follower, idled chan<- struct{}) {
	again, _ := r.pauses()
	if r.bounded() {
		again = max(r.Handover/8, 100*time.Millisecond)
	}
	for ctx.Err() == nil {
		l, err := r.acquire(ctx, f)
		if l != nil {
			f.idle.Store(false)
			stop := r.startEvents(l, f)
			(&connection{relay: r, lease: l, backend: f}).keep()
			stop() // stop stores the cursors, so that the relay that gets the lease next continues from them
			l.release()
		} else if err != nil && ctx.Err() == nil {
			r.log(f).WarnContext(ctx, "relay lease not read", "error", err)
		}
		f.idle.Store(true)
		select {
		case idled <- struct{}{}:
		default:
		}
		periodic.Sleep(ctx, again/2+mathrand.N(again/2)) // jitter, so that relays do not all try at the same moment
	}
}

// spread returns a random pause between wait and twice wait, but not longer than most. So the relay does not contact all backends that
// failed together at the same time.
func spread(wait, most time.Duration) time.Duration {
	least := min(wait, most/2)
	return least + mathrand.N(least)
}

// compareLists fetches a backend's lists and announces the ones that differ from the last comparison by any relay. With notify unset, it
// only stores the new hashes, because the changes have already been announced.
//
// A list that cannot be fetched must not hide changes of the others, because some servers always answer one of their lists with an error.
// So compareLists skips the list and adds it to f.unread. When it can fetch the list again, it announces a change even with notify unset.
// It also always announces a list with [api.LeftOut] in place of the hash, so that clients that got no entries of the backend read the
// list again.
func (r *Relay) compareLists(ctx context.Context, f *follower, notify bool) error {
	f.Outdate()
	notified := map[string]bool{}
	for _, kind := range api.Kinds {
		key := f.ListHashKey(kind)
		was, err := store.One(ctx, r.DB, key, "read how a backend's list was")
		if err != nil {
			return err
		}
		entries, err := f.List(ctx, kind)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			if !f.unread[kind] {
				r.log(f).WarnContext(ctx, "backend list not read", "list", kind.Member(), "error", err)
			}
			f.unread[kind] = true
			continue
		}
		h := sha256.New()
		for _, e := range entries {
			h.Write(e.JSON)
			h.Write([]byte{'\n'})
		}
		sum := []byte(base64.RawURLEncoding.EncodeToString(h.Sum(nil)))
		if was != nil && bytes.Equal(was.Value, sum) {
			delete(f.unread, kind)
			continue
		}
		missed := f.unread[kind] || isLeftOut(was)
		if method := kind.ChangedMethod(); (notify || missed) && was != nil && !notified[method] {
			notified[method] = true
			if err := f.ChangeListVersion(ctx, method); err != nil {
				return err
			}
			if err := r.announce(ctx, f, api.Notice{Method: method}); err != nil {
				return err
			}
		}
		unchanged := store.Absent()
		if was != nil {
			unchanged = store.VersionIs(was.Version)
		}
		err = r.DB.Write(ctx, store.Put(api.NewListHash(key, sum), unchanged))
		if errors.Is(err, store.ErrConflict) {
			continue // another process has replaced the item, for example with LeftOut, so the relay will compare the list again
		}
		if err != nil {
			return fault.Wrap(fault.Unavailable, err, "keep how a backend's list is")
		}
		delete(f.unread, kind)
	}
	return nil
}

// isLeftOut reports whether an item has [api.LeftOut] in place of the hash of a list.
func isLeftOut(hash *store.Item) bool { return hash != nil && string(hash.Value) == api.LeftOut }

func (r *Relay) announce(ctx context.Context, of placed, n api.Notice) error {
	text, err := json.Marshal(n)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode a backend's notification")
	}
	return r.Announce(ctx, of.Place().Workspace, of.Place().Backend, text)
}
