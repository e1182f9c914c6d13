// Package lease limits the open streams of clients, for each principal and for the fleet (all processes of the deployment).
//
// A new stream beyond a limit ends its principal's oldest stream. If the server refused the new stream instead, a client could lock
// itself out, because the server may not notice that the client has left its earlier streams. If the fleet is full, a principal without
// streams is refused.
//
// [Local] counts the streams of one process, and is exact. [Shared] stores a lease for each stream, because processes start and stop at
// any time. There, a stream learns at its next check that another stream has replaced it.
//
// Both have a method Take. Its caller passes a function superseded, which is called once if another stream replaces the stream. The
// caller must call the returned function release once.
package lease

import (
	"cmp"
	"container/list"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Shared limits the streams of all processes that share a store. Each open stream holds a lease, which is an item of the store that the
// stream renews. A stream whose item is deleted ends.
//
// A principal's leases are in one partition, ordered by the time at which their streams were opened. A new stream beyond the principal's
// quota deletes a lease. It prefers a lease that was not renewed in time, because its stream must have died, and otherwise chooses the
// oldest lease.
//
// A counter limits the streams of the whole fleet. At the limit, a new stream deletes its principal's oldest lease and starts
// immediately, while the old stream runs until its next check. Otherwise a client that reconnects would have to wait until its abandoned
// streams reach their maximum age, because Lambda does not report that a client has disconnected. [Shared.maxHandovers] limits such
// additional streams.
//
// A new counter begins after each period of [Shared.Life], and only the current and the previous counter are used. So the streams of a
// killed process stop counting after two periods.
type Shared struct {
	DB  store.DB
	Max Max
	// Fleet is how many streams all principals together may have open; 0 is no limit.
	Fleet int64
	// Life is how long a stream may be open.
	Life time.Duration
	// Check is how often a stream renews its lease and learns whether it has lost it; 0 is 15 s.
	Check time.Duration
	Now   func() time.Time
	// Log receives failures; nil is [slog.Default].
	Log *slog.Logger
}

func (s *Shared) log() *slog.Logger { return cmp.Or(s.Log, slog.Default()) }

const (
	countStreams = "n"
	// releaseTime limits how long the removal of a lease from the store may take after its stream has ended.
	releaseTime = 2 * time.Second
	// retryAfter is the pause after a failed renewal of a lease.
	retryAfter = 5 * time.Second
)

func principalKey(p auth.Principal, sort string) store.Key {
	return store.Key{Table: store.Sessions, Partition: "l#" + p.Workspace + "#" + p.ID, Sort: sort}
}

// Partition returns the partition of a principal's leases. A stream whose lease is deleted ends at its next check.
func Partition(workspace, principal string) store.Key {
	return principalKey(auth.Principal{Workspace: workspace, ID: principal}, "-")
}

func periodKey(period int64) store.Key {
	return store.Key{Table: store.Sessions, Partition: fmt.Sprintf("streams#%d", period), Sort: "-"}
}

func (s *Shared) now() time.Time { return periodic.Clock(s.Now)() }

// Take takes a lease for a stream. The caller must call release when the stream ends. If a later stream replaces this one, the function
// superseded is called.
//
// Take deletes the principal's oldest lease if the principal has too many streams or the fleet is full. If the fleet is full and the
// principal has no stream to replace, Take returns an error of kind Unavailable, which names the limit.
func (s *Shared) Take(ctx context.Context, p auth.Principal, superseded func()) (release func(), err error) {
	leave, replaces, err := s.enter(ctx, p)
	if err != nil || p.Anonymous && s.Fleet == 0 {
		return leave, err
	}
	most := math.MaxInt
	if !p.Anonymous {
		most = s.Max(ctx, p)
	}
	now := s.now()
	own := store.Item{
		Key: principalKey(p, fmt.Sprintf("%016d#%s", now.UnixMicro(), rand.Text())), Expires: now.Add(s.Life + time.Minute),
	}
	giveBack := func() { s.tidy("lease", store.Delete(own.Key)) }
	if err := s.placeLease(ctx, own, most, replaces); err != nil {
		leave()
		giveBack() // the lease may be in the store although placeLease failed
		return nil, err
	}
	stop := s.watch(own, superseded)
	return func() {
		stop()
		leave()
		giveBack()
	}, nil
}

// nextLease returns the item that renews the lease own now. Its version is the time of the renewal in milliseconds since 1970.
func (s *Shared) nextLease(own store.Item) store.Item {
	own.Version = s.now().UnixMilli()
	return own
}

// isOverdue reports whether a lease was not renewed in time. It allows time for one retry of the renewal.
func (s *Shared) isOverdue(it store.Item) bool {
	return s.now().Sub(time.UnixMilli(it.Version)) > s.check()+retryAfter
}

func (s *Shared) check() time.Duration { return cmp.Or(s.Check, 15*time.Second) }

// placeLease writes the lease own. If the principal then has more than maxLeases leases, placeLease deletes some of the others, first the
// overdue ones and then the oldest. If replaces is true, it deletes at least one of them.
func (s *Shared) placeLease(ctx context.Context, own store.Item, maxLeases int, replaces bool) error {
	if err := s.DB.Write(ctx, store.Put(s.nextLease(own))); err != nil {
		return fault.Wrap(fault.Unavailable, err, "take a lease")
	}
	var live, dead []store.Op // deletes of the principal's other leases, oldest first; dead has the overdue ones
	err := store.Each(ctx, s.DB, own.Key, "read the leases", func(it *store.Item) error {
		switch {
		case it.Key == own.Key:
		case s.isOverdue(*it):
			dead = append(dead, store.Delete(it.Key))
		default:
			live = append(live, store.Delete(it.Key))
		}
		return nil
	})
	if err != nil {
		return err
	}
	over := len(dead) + len(live) + 1 - maxLeases
	if replaces {
		over = max(over, 1)
	}
	if over = min(over, len(dead)+len(live)); over <= 0 {
		return nil
	}
	return fault.Wrap(fault.Unavailable, s.DB.WriteAll(ctx, append(dead, live...)[:over]...), "take over a lease")
}

// maxHandovers returns how many streams may run beyond the fleet's limit while the streams that they replace are ending. The limit Fleet
// is four fifths of the requests that the deployment can serve at the same time. The last fifth is for calls. maxHandovers is half of
// this fifth, which is an eighth of Fleet.
func (s *Shared) maxHandovers() int64 { return max(1, s.Fleet/8) }

// enter adds a stream to the fleet's counter, and returns the function leave, which removes the stream from the counter. If the fleet is
// full and the principal has a stream that the new one can replace, enter adds the new stream beyond the limit, and the result replaces
// is true.
func (s *Shared) enter(ctx context.Context, p auth.Principal) (leave func(), replaces bool, err error) {
	if s.Fleet == 0 {
		return func() {}, false, nil
	}
	period := s.now().UnixMilli() / max(1, s.Life.Milliseconds())
	this, last := periodKey(period), periodKey(period-1)
	before, err := store.One(ctx, s.DB, last, "count the open streams")
	if err != nil {
		return nil, false, err
	}
	room := s.Fleet
	if before != nil {
		room -= max(0, before.Counts[countStreams])
	}
	count := func(n int64, limits map[string]int64) store.Op {
		op := store.Add(this, map[string]int64{countStreams: n}, limits)
		op.Item.Expires = time.UnixMilli((period + 3) * s.Life.Milliseconds())
		return op
	}
	countIn := func(room int64) (bool, error) {
		if room < 1 {
			return false, nil
		}
		err := s.DB.Write(ctx, count(1, map[string]int64{countStreams: room}))
		if errors.Is(err, store.ErrConflict) {
			return false, nil
		}
		return err == nil, fault.Wrap(fault.Unavailable, err, "count the open streams")
	}
	ok, err := countIn(room)
	if err == nil && !ok {
		if replaces, err = s.hasStream(ctx, p); replaces {
			ok, err = countIn(room + s.maxHandovers())
		}
	}
	if err != nil {
		return nil, false, err
	}
	if !ok {
		return nil, false, fault.New(fault.Unavailable, "all %d streams of this server are in use", s.Fleet).AtLimit(quota.Streams, float64(s.Fleet))
	}
	return func() { s.tidy("count", count(-1, nil)) }, replaces, nil
}

// hasStream reports whether a principal has a stream that a new one could replace. It may have to read several pages, because all leases
// on a page may have expired.
func (s *Shared) hasStream(ctx context.Context, p auth.Principal) (bool, error) {
	q := store.Query{Table: store.Sessions, Partition: principalKey(p, "").Partition}
	for {
		page, err := s.DB.Query(ctx, q)
		if err != nil || len(page.Items) > 0 || !page.More {
			return len(page.Items) > 0, fault.Wrap(fault.Unavailable, err, "read the leases")
		}
		q.After = page.Last
	}
}

// watch renews a lease until stop is called. If the lease was deleted, it calls superseded. If a write fails for another reason, it tries
// again.
func (s *Shared) watch(own store.Item, superseded func()) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	var timer *time.Timer
	renew := func() {
		next := s.check()
		err := s.DB.Write(ctx, store.Put(s.nextLease(own), store.Exists()))
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

// tidy removes an ended stream's lease from the store, or its count from the fleet's counter, with the write op. It only logs an error,
// because leases and counters also expire.
func (s *Shared) tidy(what string, op store.Op) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTime)
	defer cancel()
	if err := s.DB.Write(ctx, op); err != nil {
		s.log().WarnContext(ctx, "stream slot not released", "item", what, "error", err)
	}
}

// Local limits the streams of one process, without a store.
type Local struct {
	limit Max

	mu   sync.Mutex
	open map[string]*list.List // the functions superseded of the open streams, oldest first, by workspace and principal
}

// Max returns how many streams a principal may have open.
type Max func(ctx context.Context, p auth.Principal) int

// NewLocal returns a Local. The function limit returns how many streams a principal may have open. Anonymous callers have no limit,
// because Local cannot tell them apart.
func NewLocal(limit Max) *Local {
	return &Local{limit: limit, open: map[string]*list.List{}}
}

// Take takes a lease for a stream. The caller must call release when the stream ends. If the principal has too many streams, Take ends the
// oldest one by calling the function superseded that was passed to Take for that stream. The error is always nil.
func (l *Local) Take(ctx context.Context, p auth.Principal, superseded func()) (release func(), err error) {
	if p.Anonymous {
		return func() {}, nil
	}
	key, most := p.Workspace+"#"+p.ID, l.limit(ctx, p)
	l.mu.Lock()
	defer l.mu.Unlock()
	open := l.open[key]
	if open == nil {
		open = list.New()
		l.open[key] = open
	}
	for open.Len() >= most {
		go open.Remove(open.Front()).(func())()
	}
	place := open.PushBack(superseded)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		open.Remove(place) // no effect if the stream was superseded
		if open.Len() == 0 && l.open[key] == open {
			delete(l.open, key)
		}
	}, nil
}
