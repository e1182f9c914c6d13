// Package relay holds one notification stream to each backend in the whole deployment, and puts what
// comes into the log, where the streams of clients find it.
//
//	relay.go       which backends there are, and one follower for each
//	lease.go       who of several relays follows a backend, and how another one takes over
//	connection.go  the states of a connection
//	following.go   an open connection: what is read from it and announced
//	invocations.go a relay in a function that is limited in time
//	interests.go   which resources it is subscribed to
//	listens.go     the same in 2026-07-28
//	throttle.go    how much of it the log takes
//
// It sees a backend through [Backend]; calls and the lists of clients do not enter here, nor do the
// streams of clients: see shared/gateway and shared/mcp.
package relay

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Backend is one that is followed; [gateway.Followed] is.
type Backend interface {
	// Place names it, Client speaks to it for the relay, and Ask asks it anew what it is.
	Place() api.Place
	Client() *upstream.Client
	Ask(ctx context.Context) (api.Capabilities, spec.Version, error)
	// Wanted returns the URIs that clients are subscribed to, each with the principals that are. Changed receives when they may be
	// others.
	Wanted(ctx context.Context) (map[string][]string, error)
	Changed() <-chan struct{}
	// List is its list of a kind as it was after Outdate. ChangeListVersion makes all instances fetch those lists again
	// whose change that notification is.
	Outdate()
	List(ctx context.Context, kind api.Kind) ([]api.Entry, error)
	ChangeListVersion(ctx context.Context, method string) error
	// SetNoStream records until when the backend has no notification stream; the zero time records that it has one.
	SetNoStream(ctx context.Context, until time.Time) error
}

// Announcer appends notices to a backend's topic of the log.
type Announcer func(ctx context.Context, workspace, backend string, notice json.RawMessage) error

// Relay holds one notification stream to each backend in the whole deployment, and
// puts what comes into the log. Who holds it is decided by a lease in the store.
type Relay struct {
	// Backends are those to follow. The same value stands for a backend while its configuration stays.
	Backends func(ctx context.Context) []Backend
	Announce Announcer
	// DB holds the leases, and how the lists were.
	DB  store.DB
	Log *slog.Logger
	// Lease is how long a holder that died keeps others waiting; 0 is 30 s.
	Lease time.Duration
	// Relist is how often the lists of a backend without notifications are compared; 0 is 1 min.
	Relist time.Duration
	// MinPause and MaxPause bound the pause before a backend is tried again, which doubles
	// each time; 0 are 1 s and 1 min.
	MinPause, MaxPause time.Duration
	// Until is when this process has to have ended, where its time is bounded. In the last
	// Handover of that time others take the backends over.
	Until    time.Time
	Handover time.Duration
}

func (r *Relay) pauses() (least, most time.Duration) {
	return cmp.Or(r.MinPause, time.Second), cmp.Or(r.MaxPause, time.Minute)
}

func (r *Relay) bounded() bool { return !r.Until.IsZero() }

func (r *Relay) lease() time.Duration { return cmp.Or(r.Lease, 30*time.Second) }

// setEvery is how often the relay looks which backends there are.
const setEvery = time.Second

// follower is the work for one backend.
type follower struct {
	Backend
	throttle *throttle
	stop     context.CancelFunc
	idle     atomic.Bool // another relay has it
}

// key is of what the relays keep of a backend.
func key(of Backend, what string) store.Key {
	return store.Key{Table: store.Sessions, Partition: "relay#" + of.Place().String(), Sort: what}
}

// log is for lines about a backend.
func (r *Relay) log(of Backend) *slog.Logger { return r.Log.With("backend", of.Place().Backend) }

// Run relays until ctx ends, and follows what the gateway's backends are. Where its time is bounded
// it ends as soon as there is nothing to hold: when there are no backends, or others have them.
func (r *Relay) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if r.bounded() {
		end := time.AfterFunc(time.Until(r.Until), stop)
		defer end.Stop()
	}
	followed, idled := map[Backend]*follower{}, make(chan struct{}, 1)
	tick := time.NewTicker(setEvery)
	defer tick.Stop()
	for {
		now := r.Backends(ctx)
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
				f = &follower{Backend: b, throttle: newThrottle()}
				followed[b] = f
				var one context.Context
				one, f.stop = context.WithCancel(ctx)
				wg.Go(func() { r.backend(one, f, idled) })
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

// backend keeps trying to hold the stream of one backend.
func (r *Relay) backend(ctx context.Context, f *follower, idled chan<- struct{}) {
	again, _ := r.pauses()
	if r.bounded() {
		again = max(r.Handover/8, 100*time.Millisecond)
	}
	for ctx.Err() == nil {
		l, err := r.acquire(ctx, f)
		if l != nil {
			f.idle.Store(false)
			(&connection{relay: r, lease: l, backend: f}).keep()
			l.release()
		} else if err != nil && ctx.Err() == nil {
			r.log(f).WarnContext(ctx, "relay lease not read", "error", err)
		}
		f.idle.Store(true)
		select {
		case idled <- struct{}{}:
		default:
		}
		periodic.Sleep(ctx, again/2+mathrand.N(again/2)) // so that not all come together
	}
}

// spread is a pause with jitter, so that backends that died together are not called together: up to twice as long as
// wait, and at most as long as most.
func spread(wait, most time.Duration) time.Duration {
	least := min(wait, most/2)
	return least + mathrand.N(least)
}

// compare fetches the lists and notifies of those that are not what they were when
// they were compared last, by whichever relay. When that was notified already, it only remembers.
func (r *Relay) compare(ctx context.Context, b Backend, notify bool) error {
	b.Outdate()
	notified := map[string]bool{}
	for _, kind := range api.Kinds {
		entries, err := b.List(ctx, kind)
		if err != nil {
			return err
		}
		h := sha256.New()
		for _, e := range entries {
			h.Write(e.JSON)
			h.Write([]byte{'\n'})
		}
		sum := []byte(base64.RawURLEncoding.EncodeToString(h.Sum(nil)))
		key := listKey(b, kind)
		items, err := r.DB.Get(ctx, key)
		if err != nil {
			return fault.Wrap(fault.Unavailable, err, "read how a backend's list was")
		}
		if items[0] != nil && bytes.Equal(items[0].Value, sum) {
			continue
		}
		if method := kind.Changed(); notify && items[0] != nil && !notified[method] {
			notified[method] = true
			if err := b.ChangeListVersion(ctx, method); err != nil {
				return err
			}
			if err := r.announce(ctx, b, api.Notice{Method: method}); err != nil {
				return err
			}
		}
		if err := r.DB.Write(ctx, store.Put(store.Item{Key: key, Value: sum})); err != nil {
			return fault.Wrap(fault.Unavailable, err, "keep how a backend's list is")
		}
	}
	return nil
}

// listKey is of how a list was.
func listKey(of Backend, kind api.Kind) store.Key { return key(of, "list#"+kind.Member()) }

func (r *Relay) announce(ctx context.Context, of Backend, n api.Notice) error {
	text, err := json.Marshal(n)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode a backend's notification")
	}
	return r.Announce(ctx, of.Place().Workspace, of.Place().Backend, text)
}
