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

// Who holds the stream of a backend is said by an item of the store, which its holder
// renews. A holder whose time is bounded says when it ends. In the last part of that time a
// successor connects first, and takes the item over only then; the holder sees that within
// [watchEvery] and goes. So both listen for a moment, and nothing is missed.

// holding is the value of the item.
type holding struct {
	Owner string `json:"o"`
	Until int64  `json:"u,omitempty"` // when the holder will end, in milliseconds since 1970; 0 is never
	// Connected is whether the holder was connected when it wrote this.
	Connected bool `json:"c,omitempty"`
}

// watchEvery is how often a holder in the last part of its time looks whether it has a successor.
const watchEvery = 250 * time.Millisecond

// lease is the right to hold a backend's stream, or with follows set the prospect of it.
type lease struct {
	relay   *Relay
	backend *follower
	key     store.Key
	version int64
	holding holding
	// stops is when we stop acting unless it is renewed before: long enough before others see it
	// expire that what is under way is over by then.
	stops time.Time

	connected atomic.Bool

	// follows is set until the lease is taken over from a holder that still listens; took after that.
	follows, took bool

	ctx    context.Context // ends with the lease
	cancel context.CancelFunc
	done   chan struct{} // closed when it is given back or lost; nil before it is ours
}

// acquire takes the lease of a backend that no relay holds, or prepares to take it from one that
// is about to end. It is nil while another one has it.
func (r *Relay) acquire(ctx context.Context, b *follower) (*lease, error) {
	if r.bounded() && time.Until(r.Until) <= r.Handover {
		return nil, nil // others are to have it
	}
	l := &lease{relay: r, backend: b, key: key(b, "-")}
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
		// It has nothing to hand over.
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
	// Versions of holders do not meet, so that none renews or gives back another's lease.
	version := time.Now().UnixMicro()
	if l.done != nil {
		version = l.version + 1
	}
	l.holding.Connected = l.connected.Load()
	value, _ := json.Marshal(l.holding)                              // a string, a number and a bool
	expires := time.Now().Add(l.relay.lease()).Truncate(time.Second) // as the store keeps it
	err := l.relay.DB.Write(ctx, store.Put(store.Item{
		Key: l.key, Value: value, Version: version, Expires: expires,
	}, cond))
	if err == nil {
		l.version, l.stops = version, expires.Add(-l.relay.lease()/6)
	}
	return err
}

func (l *lease) read(ctx context.Context) (*store.Item, error) {
	items, err := l.relay.DB.Get(ctx, l.key)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the lease of a backend")
	}
	return items[0], nil
}

// mayFollow is the holder if it is about to end, and before us; else nil.
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

// take makes the lease ours, if it is not yet. We are connected.
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
				break // another one was first
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

// renew keeps the lease until its context ends, and then gives it back; or ends the context
// when another relay has it, or it was not renewed in time. A renewal that fails is tried again.
func (l *lease) renew() {
	l.done = make(chan struct{})
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
				if l.succeeded() {
					return
				}
				continue
			}
			log, err := l.relay.Log.With("backend", l.backend.Place().Backend), l.prolong()
			switch {
			case err == nil:
				renewal, retry = time.Now().Add(third), l.firstRetry()
			case l.ctx.Err() != nil: // it is given back
			case errors.Is(err, store.ErrConflict):
				if !l.ending() {
					log.WarnContext(l.ctx, "lease lost: another relay has it", "error", err)
				}
				return
			case !time.Now().Before(l.stops):
				log.WarnContext(l.ctx, "lease lost: it was not renewed in time", "error", err)
				return
			default:
				log.WarnContext(l.ctx, "lease renewal failed, it is tried again", "error", err)
				renewal = time.Now().Add(min(retry, time.Until(l.stops)))
				retry = min(2*retry, l.relay.lease()/6)
			}
		}
	}()
}

// prolong writes the lease anew. A write that failed may have been done all the same: then the item
// has another version and is ours.
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

// succeeded reports whether the lease has another owner. When that cannot be read it has not.
func (l *lease) succeeded() bool {
	ctx, stop := context.WithDeadline(l.ctx, l.stops)
	defer stop()
	held, err := l.read(ctx)
	return err == nil && !l.owns(held)
}

func (l *lease) owns(held *store.Item) bool {
	var h holding
	return held != nil && json.Unmarshal(held.Value, &h) == nil && h.Owner == l.holding.Owner
}

// firstRetry is the pause after the first renewal that fails; it doubles.
func (l *lease) firstRetry() time.Duration { return l.relay.lease() / 30 }

func (l *lease) ending() bool {
	return l.relay.bounded() && time.Until(l.relay.Until) <= l.relay.Handover
}

// nextLook is how long there is nothing to do: until the renewal or, where there may be a
// successor, not so long.
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

// giveBack lets others take the lease at once. What fails here expires.
func (l *lease) giveBack() {
	ctx, stop := context.WithTimeout(context.WithoutCancel(l.ctx), 2*time.Second)
	defer stop()
	_ = l.relay.DB.Write(ctx, store.Delete(l.key, store.VersionIs(l.version)))
}

// release ends it.
func (l *lease) release() {
	l.cancel()
	if l.done != nil {
		<-l.done
	}
}
