package relay

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// An item in the store, the lease, decides which relay holds a backend's stream. The holder renews it. A holder whose time is limited,
// for example in a Lambda function, records in the item when it will end. In the last part of that time, a successor first connects to
// the backend and then takes over the lease. The holder notices that within [watchEvery] and stops, so both listen for a moment and no
// notification is lost.

type holding struct {
	Owner     string `json:"o"`
	Until     int64  `json:"u,omitempty"` // when the holder will end, in milliseconds since 1970; 0 means never
	Connected bool   `json:"c,omitempty"` // the holder was connected to the backend when it wrote this item
}

// watchEvery is how often a relay whose time is ending checks whether another relay has taken over its lease.
const watchEvery = 250 * time.Millisecond

// lease is the right to hold a backend's stream. While the field follows is set, another relay still has this right, and this relay
// prepares to take it over.
type lease struct {
	relay   *Relay
	backend *follower
	key     store.Key
	version int64
	holding holding
	// The time stops is when the relay stops using a lease that it could not renew. Enough time is left then to finish running work
	// before the lease expires.
	stops time.Time

	connected atomic.Bool

	// The field follows is set while another relay still has the lease. The field took is set after this relay has taken over the lease
	// from a relay that was still connected to the backend.
	follows, took bool

	ctx      context.Context // ends with the lease
	cancel   context.CancelFunc
	done     chan struct{} // closed when the lease is released or lost; nil before the relay has it
	acquired chan struct{} // closed when the relay has the lease
}

// acquire acquires a backend's lease if no relay has it, or prepares to take it over from a relay that is about to end. It returns nil if
// another relay keeps the lease.
func (r *Relay) acquire(ctx context.Context, b *follower) (*lease, error) {
	if r.bounded() && time.Until(r.Until) <= r.Handover {
		return nil, nil // this relay leaves the lease to others, because it ends soon
	}
	l := &lease{relay: r, backend: b, key: key(b, "-"), acquired: make(chan struct{})}
	l.holding.Owner = rand.Text()
	if r.bounded() {
		l.holding.Until = r.Until.UnixMilli()
	}
	l.ctx, l.cancel = context.WithCancel(ctx)
	err := l.put(ctx, store.Absent())
	switch {
	case err == nil:
		l.renew()
		return l, nil
	case !errors.Is(err, store.ErrConflict):
		l.cancel()
		return nil, fault.Wrap(fault.Unavailable, err, "take the lease of a backend")
	}
	l.follows = true
	held, err := l.read(ctx)
	if h := l.mayFollow(held); err == nil && h != nil {
		if h.Connected {
			return l, nil
		}
		// The holder is not connected to the backend, so there is no connection to wait for. This relay takes the lease first, and
		// connects then.
		if err = l.take(ctx); err == nil {
			return l, nil
		}
	}
	l.cancel()
	if fault.Is(err, fault.Conflict) {
		return nil, nil
	}
	return nil, err
}

func (l *lease) put(ctx context.Context, cond store.Condition) error {
	// Different holders write different versions of the item, so that a holder cannot renew or release another one's lease.
	version := time.Now().UnixMicro()
	if l.done != nil {
		version = l.version + 1
	}
	l.holding.Connected = l.connected.Load()
	value, _ := json.Marshal(l.holding)                              // cannot fail: it has a string, a number and a bool
	expires := time.Now().Add(l.relay.lease()).Truncate(time.Second) // the store keeps whole seconds
	err := l.relay.DB.Write(ctx, store.Put(store.Item{
		Key: l.key, Value: value, Version: version, Expires: expires,
	}, cond))
	if err == nil {
		l.version, l.stops = version, expires.Add(-l.relay.lease()/6)
	}
	return err
}

func (l *lease) read(ctx context.Context) (*store.Item, error) {
	return store.One(ctx, l.relay.DB, l.key, "read the lease of a backend")
}

// mayFollow returns the lease's holder if this relay may take over the lease from it, and otherwise nil. The parameter held is the
// lease's item in the store. The holder's time must be about to end, and must end before this relay's time.
func (l *lease) mayFollow(held *store.Item) *holding {
	h := &holding{}
	if held == nil || !l.relay.bounded() || json.Unmarshal(held.Value, h) != nil || h.Until == 0 {
		return nil
	}
	until := time.UnixMilli(h.Until)
	if time.Until(until) > l.relay.Handover || !until.Before(l.relay.Until) {
		return nil
	}
	return h
}

// take takes over the lease if another relay still has it. It returns an error if a third relay was faster.
func (l *lease) take(ctx context.Context) error {
	if !l.follows {
		return nil
	}
	const tries = 5 // the holder may renew between our read and our write
	for range tries {
		held, err := l.read(ctx)
		if err != nil {
			return err
		}
		cond, continued := store.Absent(), false
		if held != nil {
			h := l.mayFollow(held)
			if h == nil {
				break // another relay was faster
			}
			cond, continued = store.VersionIs(held.Version), h.Connected
		}
		switch err := l.put(ctx, cond); {
		case err == nil:
			l.follows, l.took = false, continued
			l.renew()
			return nil
		case !errors.Is(err, store.ErrConflict):
			return fault.Wrap(fault.Unavailable, err, "take over the lease of a backend")
		}
	}
	return fault.New(fault.Conflict, "another one took the lease of backend %s over", l.backend.Place().Backend)
}

// renew starts a goroutine that renews the lease until the lease's context ends, and then gives the lease back. The goroutine retries
// failed renewals. It ends the context itself if another relay has the lease, or if no renewal succeeded in time.
func (l *lease) renew() {
	l.done = make(chan struct{})
	close(l.acquired)
	go func() {
		defer close(l.done)
		defer l.cancel()
		third, retry := l.relay.lease()/3, l.firstRetry()
		for renewal := time.Now().Add(third); ; {
			wait := time.NewTimer(l.nextLook(renewal))
			select {
			case <-l.ctx.Done():
				wait.Stop()
				l.giveBack()
				return
			case <-wait.C:
			}
			if time.Now().Before(renewal) {
				if l.isLost() {
					return
				}
				continue
			}
			log, err := l.relay.Log.With("backend", l.backend.Place().Backend), l.prolong()
			switch {
			case err == nil:
				renewal, retry = time.Now().Add(third), l.firstRetry()
			case l.ctx.Err() != nil: // the next iteration gives the lease back
			case errors.Is(err, store.ErrConflict):
				if !l.ending() {
					log.WarnContext(l.ctx, "lease lost", "reason", "another relay has it", "error", err)
				}
				return
			case !time.Now().Before(l.stops):
				log.WarnContext(l.ctx, "lease lost", "reason", "not renewed in time", "error", err)
				return
			default:
				log.WarnContext(l.ctx, "lease renewal failed", "error", err)
				renewal = time.Now().Add(min(retry, time.Until(l.stops)))
				retry = min(2*retry, l.relay.lease()/6)
			}
		}
	}()
}

// prolong renews the lease. If the item has an unexpected version but still names this relay as its owner, an earlier write took effect
// although it reported an error. Then prolong continues from that version.
func (l *lease) prolong() error {
	ctx, stop := context.WithDeadline(l.ctx, l.stops) // a write may hang
	defer stop()
	err := l.put(ctx, store.VersionIs(l.version))
	if !errors.Is(err, store.ErrConflict) {
		return err
	}
	held, rerr := l.read(ctx)
	switch {
	case rerr != nil:
		return rerr
	case !l.owns(held):
		return err
	}
	l.version = held.Version
	return l.put(ctx, store.VersionIs(l.version))
}

// isLost reports whether this relay no longer owns the lease, usually because another relay has taken it over. If the lease cannot be read,
// isLost returns false.
func (l *lease) isLost() bool {
	ctx, stop := context.WithDeadline(l.ctx, l.stops)
	defer stop()
	held, err := l.read(ctx)
	return err == nil && !l.owns(held)
}

func (l *lease) owns(held *store.Item) bool {
	var h holding
	return held != nil && json.Unmarshal(held.Value, &h) == nil && h.Owner == l.holding.Owner
}

// firstRetry returns the pause after the first failed renewal of the lease. The pause doubles with each further failure.
func (l *lease) firstRetry() time.Duration { return l.relay.lease() / 30 }

func (l *lease) ending() bool {
	return l.relay.bounded() && time.Until(l.relay.Until) <= l.relay.Handover
}

// nextLook returns how long the goroutine that renews the lease can sleep: until the next renewal or, if this relay's time is about to
// end, until the next check whether another relay has taken over.
func (l *lease) nextLook(renewal time.Time) time.Duration {
	wait := time.Until(renewal)
	if !l.relay.bounded() {
		return wait
	}
	if l.ending() {
		return min(wait, watchEvery)
	}
	return min(wait, time.Until(l.relay.Until)-l.relay.Handover)
}

// giveBack deletes the lease, so that another relay can take it immediately. If that fails, the lease expires later.
func (l *lease) giveBack() {
	ctx, stop := context.WithTimeout(context.WithoutCancel(l.ctx), 2*time.Second)
	defer stop()
	_ = l.relay.DB.Write(ctx, store.Delete(l.key, store.VersionIs(l.version)))
}

func (l *lease) release() {
	l.cancel()
	if l.done != nil {
		<-l.done
	}
}

// These numbers divide the time of a serverless function's invocation. For example, an invocation of 15 minutes stops following backends
// 15 s before its end (a 60th). In the time before that (a quarter), the next invocation connects to the backends and takes over their
// leases. A lease lasts 30 s (a 30th). So if an invocation dies, other relays wait up to 30 s.
const (
	closingShare  = 60
	handoverShare = 4
	leaseShare    = 30
	minLease      = 3 * time.Second
)

// Invocations runs relays in a serverless function whose invocations are limited in time. Each invocation follows the backends until
// shortly before its end and hands them over to the next one.
type Invocations struct {
	newRelay func() *Relay
	idle     chan struct{} // has a token while no invocation runs
	ending   context.Context
	end      context.CancelFunc
}

// NewInvocations returns Invocations that run a new relay in each invocation.
func NewInvocations(newRelay func() *Relay) *Invocations {
	i := &Invocations{newRelay: newRelay, idle: make(chan struct{}, 1)}
	i.idle <- struct{}{}
	i.ending, i.end = context.WithCancel(context.Background())
	return i
}

// Serve runs a relay until shortly before ctx's deadline. It returns earlier if there are no backends, if other relays
// follow all of them, or after [Invocations.Shutdown]. Concurrent calls run one after the other.
func (i *Invocations) Serve(ctx context.Context) error {
	<-i.idle
	defer func() { i.idle <- struct{}{} }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(i.ending, cancel)()
	r := i.newRelay()
	if deadline, ok := ctx.Deadline(); ok {
		life := time.Until(deadline)
		r.Until = deadline.Add(-life / closingShare)
		r.Handover = life / handoverShare
		r.Lease = max(life/leaseShare, minLease)
	}
	r.Run(ctx)
	return nil
}

// Shutdown ends the running invocation, which releases its leases first, so that other relays follow the backends
// immediately. It waits for the invocation, but not longer than limit.
func (i *Invocations) Shutdown(limit time.Duration) {
	i.end()
	select {
	case <-i.idle:
	case <-time.After(limit):
	}
}
