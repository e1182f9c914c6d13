package lease

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/store"
)

// Shared gives leases to the streams of all instances over one store.
//
// A principal's leases are items of one partition in the order of their times, which the
// streams renew: whoever adds one beyond the bound deletes one that is not renewed, since its stream
// has died or never began, or else the oldest. The fleet's streams are
// counted by the period in which they were opened, a period being as long as a
// stream may last, so that what a killed instance did not count down is forgotten with
// its period.
type Shared struct {
	DB store.DB
	// Max is how many streams a principal may have open.
	Max Max
	// Fleet is how many all may have; 0 is no bound.
	Fleet int64
	// Refuse has a stream over Max refused (Exhausted) instead of ending the oldest.
	Refuse bool
	// Life is the longest that a stream may be open.
	Life time.Duration
	// Check is how often a stream renews its lease, and learns that it has lost it; 0 is 15 s.
	Check time.Duration
	Now   func() time.Time
}

const (
	countStreams = "n"
	// tidying is how long giving a lease back may take, when its stream is over.
	tidying = 2 * time.Second
	// retryAfter is the pause after a renewal that failed.
	retryAfter = 5 * time.Second
)

func principalKey(p auth.Principal, sort string) store.Key {
	return store.Key{Table: store.Sessions, Partition: "l#" + p.Workspace + "#" + p.ID, Sort: sort}
}

// Partition is where the leases of a principal are. A stream whose lease is gone ends.
func Partition(workspace, principal string) store.Key {
	return principalKey(auth.Principal{Workspace: workspace, ID: principal}, "-")
}

func periodKey(period int64) store.Key {
	return store.Key{Table: store.Sessions, Partition: fmt.Sprintf("streams#%d", period), Sort: "-"}
}

func (s *Shared) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}

// Take gives a lease, and takes the oldest from a principal that has too many. It
// is a fault of kind Unavailable that names a limit when the fleet has no room.
func (s *Shared) Take(ctx context.Context, p auth.Principal, superseded func()) (release func(), err error) {
	leave, err := s.enter(ctx)
	if err != nil || p.Anonymous {
		return leave, err
	}
	now := s.now()
	own := store.Item{
		Key: principalKey(p, fmt.Sprintf("%016d#%s", now.UnixMicro(), rand.Text())), Expires: now.Add(s.Life + time.Minute),
	}
	giveBack := func() { s.tidy("lease", store.Delete(own.Key)) }
	if err := s.place(ctx, own, s.Max(ctx, p)); err != nil {
		leave()
		giveBack() // it may be written
		return nil, err
	}
	stop := s.watch(own, superseded)
	return func() {
		stop()
		leave()
		giveBack()
	}, nil
}

// renewed is the lease as it is written now. The version tells when, in milliseconds since 1970.
func (s *Shared) renewed(own store.Item) store.Item {
	own.Version = s.now().UnixMilli()
	return own
}

// overdue reports whether a lease was not renewed when it should have been, with time for one retry.
func (s *Shared) overdue(it store.Item) bool {
	return s.now().Sub(time.UnixMilli(it.Version)) > s.check()+retryAfter
}

func (s *Shared) check() time.Duration { return cmp.Or(s.Check, 15*time.Second) }

// place writes a lease and deletes those beyond the bound.
func (s *Shared) place(ctx context.Context, own store.Item, most int) error {
	if err := s.DB.Write(ctx, store.Put(s.renewed(own))); err != nil {
		return fault.Wrap(fault.Unavailable, err, "take a lease")
	}
	var live, dead []store.Op // the oldest first
	err := store.Each(ctx, s.DB, own.Key, "read the leases", func(it *store.Item) error {
		if s.overdue(*it) {
			dead = append(dead, store.Delete(it.Key))
		} else {
			live = append(live, store.Delete(it.Key))
		}
		return nil
	})
	if err != nil {
		return err
	}
	over := len(dead) + len(live) - most
	if over <= 0 {
		return nil
	}
	if s.Refuse && len(live) > most { // one of them is its own; of two at once both may be refused
		return full(most)
	}
	return fault.Wrap(fault.Unavailable, s.DB.WriteAll(ctx, append(dead, live...)[:over]...), "take over a lease")
}

// enter counts a stream of the fleet in.
func (s *Shared) enter(ctx context.Context) (leave func(), err error) {
	if s.Fleet == 0 {
		return func() {}, nil
	}
	period := s.now().UnixMilli() / max(1, s.Life.Milliseconds())
	this, last := periodKey(period), periodKey(period-1)
	items, err := s.DB.Get(ctx, last)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "count the open streams")
	}
	room := s.Fleet
	if items[0] != nil {
		room -= max(0, items[0].Counts[countStreams])
	}
	full := fault.New(fault.Unavailable, "all %d streams of this server are in use", s.Fleet).
		AtLimit("streams", float64(s.Fleet))
	if room < 1 {
		return nil, full
	}
	count := func(n int64, limits map[string]int64) store.Op {
		op := store.Add(this, map[string]int64{countStreams: n}, limits)
		op.Item.Expires = time.UnixMilli((period + 3) * s.Life.Milliseconds())
		return op
	}
	err = s.DB.Write(ctx, count(1, map[string]int64{countStreams: room}))
	if errors.Is(err, store.ErrConflict) {
		return nil, full
	}
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "count the open streams")
	}
	return func() { s.tidy("count", count(-1, nil)) }, nil
}

// watch renews a lease from time to time, and learns so that it is gone. A store that does
// not answer takes nothing away.
func (s *Shared) watch(own store.Item, superseded func()) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	var timer *time.Timer
	renew := func() {
		next := s.check()
		err := s.DB.Write(ctx, store.Put(s.renewed(own), store.Exists()))
		if errors.Is(err, store.ErrConflict) {
			superseded()
			return
		}
		if err != nil {
			next = min(next, retryAfter)
		}
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() == nil {
			timer.Reset(next)
		}
	}
	mu.Lock()
	timer = time.AfterFunc(s.check(), renew)
	mu.Unlock()
	return func() {
		cancel()
		mu.Lock()
		defer mu.Unlock()
		timer.Stop()
	}
}

// tidy deletes the lease of a stream that has ended, or its part in a count. No caller waits for
// it: both expire by themselves.
func (s *Shared) tidy(what string, op store.Op) {
	ctx, cancel := context.WithTimeout(context.Background(), tidying)
	defer cancel()
	if err := s.DB.Write(ctx, op); err != nil {
		slog.WarnContext(ctx, "stream slot not released", "item", what, "error", err)
	}
}
