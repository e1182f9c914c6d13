package lane

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// endpointState is the health of one endpoint, as this process has seen it. An endpoint is a URL without its query. The callbacks of
// one client share an origin, and a bad one must not harm its neighbors. An origin as a whole counts as failing only if it
// cannot be connected to, or if endpoint after endpoint of it fails without a success in between.
//
//	   ┌────────── answers in time ───────────┐
//	   ▼                                      │
//	healthy ──▶ slow: first attempts take the slow lane ──▶ open: no attempt
//	 no answer      three failures in a row,       timeout, 429,     until a time,
//	 in time        a late success                 502, 503, 504     then one probe
//
// Each process learns by its own few failures, which costs less than sharing every outcome. On AWS, processes share only that an
// endpoint hangs; see [Slot.Hang].
type endpointState struct {
	id     string
	origin *originState // nil until its URL is known

	fast      int     // attempts under way in the fast lane
	fastBytes int64   // of their bodies
	flows     []*flow // with attempts that wait for a slot of the fast lane
	slow      int     // attempts under way in the slow lane
	slowBytes int64
	queued    []*slowWaiter // for a slot of the slow lane, the oldest first
	hanging   int           // detached attempts

	proven    bool          // it has answered an attempt with success
	silent    bool          // since then, it has not answered one in time
	hold      time.Duration // how long first attempts take the slow lane after that
	took      time.Duration // the last attempt
	answers   times         // what successful attempts took
	failures  int           // in a row
	pauses    int           // in a row
	slowUntil time.Time     // first attempts take the slow lane
	openUntil time.Time     // no attempt before; afterwards one, until it succeeds
	limit     int           // of attempts in the slow lane: up by one with a success, down to one by a timeout
}

// originState is the state that the endpoints of an origin share.
type originState struct {
	failed    map[string]struct{} // endpoints that failed since the last success of any
	connect   int                 // failures to connect since then
	slowUntil time.Time
	hanging   shares // detached attempts
	doubtful  shares // attempts of the slow lane to endpoints that may hang
}

// shares counts how much each principal uses of a resource, so that one principal cannot use all of it.
type shares struct {
	total int
	by    map[string]int
}

// take adds one to a principal's share and returns true. It returns false if all principals together have reached the limit,
// or this principal half of it.
func (s *shares) take(principal string, limit int) bool {
	if s.total >= limit || s.by[principal] >= max(1, limit/2) {
		return false
	}
	if s.by == nil {
		s.by = map[string]int{}
	}
	s.total++
	s.by[principal]++
	return true
}

func (s *shares) release(principal string) {
	s.total--
	if s.by[principal]--; s.by[principal] == 0 {
		delete(s.by, principal)
	}
}

// byteShares counts the bytes that the principals' attempts hold in memory.
type byteShares struct {
	total int64
	by    map[string]int64
}

// fits reports whether a principal may have n more bytes. All principals together have at most the given number, and one of
// them three quarters of it. The first attempt always fits.
func (s *byteShares) fits(principal string, n, limit int64) bool {
	had := s.by[principal]
	return s.total == 0 || s.total+n <= limit && (had == 0 || had+n <= limit*3/4)
}

func (s *byteShares) add(principal string, n int64) {
	if s.by == nil {
		s.by = map[string]int64{}
	}
	s.total += n
	s.by[principal] += n
}

func (s *byteShares) release(principal string, n int64) {
	s.total -= n
	if s.by[principal] -= n; s.by[principal] == 0 {
		delete(s.by, principal)
	}
}

const (
	slowAfter = 3                // failures in a row
	slowFor   = 30 * time.Second // then another delivery may try
	// maxHold limits how long first attempts take the slow lane after attempts that were not answered in time: slowFor after
	// the first, and twice as long after each probe.
	maxHold = 5 * time.Minute
	// slotWait is how long an attempt of the slow lane waits while its endpoint has all the attempts under way that it
	// may have. Only those wait whose endpoint answers sooner.
	slotWait = 500 * time.Millisecond
	// probeTime is how long first attempts take the slow lane while one of them probes a slow endpoint.
	probeTime = 4 * time.Second

	hangPause    = 10 * time.Second // after a timeout, doubled with each further one
	maxHangPause = time.Minute
	busyPause    = 5 * time.Second // after 429, 502, 503 or 504 without Retry-After
	maxBusyPause = 5 * time.Minute

	slowAtOnce    = 4 // attempts to one endpoint in the slow lane, to begin with
	maxSlowAtOnce = 32
	// maxHanging limits the detached attempts to one endpoint, maxOriginHanging those to one origin.
	maxHanging       = 16
	maxOriginHanging = 64
	// maxOriginDoubtful limits the attempts of the slow lane to those endpoints of one origin that may hang.
	maxOriginDoubtful = 64

	// originAfter is how many endpoints of an origin fail before it counts as failing.
	originAfter = 5
	maxEndpoint = 20_000
)

// get returns the state of an endpoint. Its URL may be unknown, which is "".
func (l *Lanes) get(id, target string) *endpointState {
	e := l.byID[id]
	if e == nil {
		if l.byID == nil {
			l.byID, l.origins = map[string]*endpointState{}, map[string]*originState{}
		}
		if len(l.byID) >= maxEndpoint {
			l.forget()
		}
		e = &endpointState{id: id, limit: slowAtOnce}
		l.byID[id] = e
	}
	if e.origin == nil && target != "" {
		name := subscription.OriginOf(target)
		if e.origin = l.origins[name]; e.origin == nil {
			e.origin = &originState{failed: map[string]struct{}{}}
			l.origins[name] = e.origin
		}
	}
	return e
}

// forget removes endpoints without an attempt under way, healthy ones first.
func (l *Lanes) forget() {
	idle := func(e *endpointState) bool { return e.fast+e.slow+e.hanging+len(e.flows)+len(e.queued) == 0 }
	for _, all := range []bool{false, true} {
		for id, e := range l.byID {
			if len(l.byID) < maxEndpoint*3/4 {
				break
			}
			if idle(e) && (all || e.failures == 0) {
				delete(l.byID, id)
			}
		}
	}
	used := map[*originState]bool{}
	for _, e := range l.byID {
		used[e.origin] = true
	}
	for name, o := range l.origins {
		if !used[o] {
			delete(l.origins, name)
		}
	}
}

// record updates what is known about the endpoint of an attempt.
func (l *Lanes) record(id, target string, out webhook.Outcome, now time.Time) {
	e := l.get(id, target)
	o := e.origin
	if out.Internal() {
		return
	}
	e.took = out.Took
	if out.Category == "" {
		e.answers.add(out.Took)
		e.proven, e.silent = true, false
		clear(o.failed)
		o.connect, o.slowUntil = 0, time.Time{}
		e.failures, e.pauses, e.openUntil = 0, 0, time.Time{}
		e.limit = min(e.limit+1, maxSlowAtOnce)
		e.slowUntil = time.Time{}
		if out.Took >= l.limits.SlowAnswer {
			e.slowUntil = now.Add(slowFor)
		}
		return
	}
	e.failures++
	if out.Category == webhook.Timeout {
		e.silent = true
	}
	if pause := e.pause(out, now.Before(e.openUntil)); pause > 0 {
		e.openUntil = Later(e.openUntil, now.Add(pause))
		e.slowUntil = Later(e.slowUntil, e.openUntil)
	}
	if e.failures >= slowAfter {
		e.slowUntil = Later(e.slowUntil, now.Add(slowFor))
	}
	if len(o.failed) < originAfter {
		o.failed[e.id] = struct{}{}
	}
	if unconnected(out) {
		o.connect++
	}
	if len(o.failed) >= originAfter || o.connect >= slowAfter {
		o.slowUntil = now.Add(slowFor)
	}
}

// times are the moving averages of some times and of their distances from the average, with the weights of RFC 6298.
type times struct{ mean, spread time.Duration }

func (t *times) add(took time.Duration) {
	if *t == (times{}) {
		*t = times{took, took / 2}
		return
	}
	t.spread += ((took - t.mean).Abs() - t.spread) / 4
	t.mean += (took - t.mean) / 8
}

// usualLimit returns how long a page in a hurry waits for an attempt. Nearly all answers of the endpoint arrive within that time.
// It is computed as TCP computes when to send a segment again (RFC 6298). While an attempt of another page has outlasted that
// time, a page waits for the mean only, because the endpoint may have begun to hang.
func (l *Lanes) usualLimit(e *endpointState) time.Duration {
	t := e.answers
	switch {
	case !e.proven:
		return 2 * l.limits.Hurry
	case e.hanging > 0:
		return max(t.mean+t.spread, l.limits.Hurry/10)
	}
	return max(t.mean+4*t.spread, l.limits.Hurry)
}

// pause returns how long an endpoint gets no attempt after a failure. With 0 its deliveries follow their schedules. An attempt that
// was under way when a pause began fails for the same reason as the one that began it, so it does not make the next pause longer.
func (e *endpointState) pause(out webhook.Outcome, underWay bool) time.Duration {
	base, most := time.Duration(0), time.Duration(0)
	switch {
	case out.RetryAfter > 0 && busy(out.Status):
		return out.RetryAfter
	case out.Category == webhook.Timeout:
		base, most = hangPause, maxHangPause
		e.limit = 1
	case busy(out.Status):
		base, most = busyPause, maxBusyPause
		if !underWay {
			e.limit = max(1, e.limit/2)
		}
	default:
		e.pauses = 0
		return 0
	}
	if !underWay || e.pauses == 0 {
		e.pauses++
	}
	return min(base<<min(e.pauses-1, 10), most)
}

// busy reports whether a status asks all senders for fewer requests, whatever the event (WHK-09).
func busy(status int) bool { return status == 429 || status == 502 || status == 503 || status == 504 }

// unconnected reports whether no connection was made.
func unconnected(out webhook.Outcome) bool {
	switch out.Category {
	case webhook.ConnectionRefused, webhook.DNSError, webhook.TLSError:
		return true
	}
	return false
}

// isSlow reports whether first attempts to the endpoint take the slow lane.
func (e *endpointState) isSlow(now time.Time) bool {
	return now.Before(e.slowUntil) || now.Before(e.openUntil) || e.origin != nil && now.Before(e.origin.slowUntil)
}

// isDoubtful reports whether an attempt of the slow lane may hang, because the last ones did or failed.
func (e *endpointState) isDoubtful(now time.Time) bool {
	return !e.openUntil.IsZero() || now.Before(e.slowUntil) && (!e.proven || e.silent || e.failures > 0)
}

// startProbe has the next first attempts take the slow lane if the time of a slow endpoint has passed, and reports whether
// it has: the caller's attempt is then the probe, and the others wait for its outcome. Otherwise they would hang again
// together.
func (e *endpointState) startProbe(now time.Time) (probe bool) {
	for _, until := range []*time.Time{&e.origin.slowUntil, &e.slowUntil, &e.openUntil} {
		if !until.IsZero() {
			*until = now.Add(probeTime)
			probe = true
		}
	}
	return probe
}

// noteHang records that the endpoint did not answer an attempt of the fast lane in time, and whether it had not answered the one
// before either. First attempts then take the slow lane, for longer each time: on AWS a probe that hangs holds one of few
// invocations, and each process makes its own probes. A random part keeps processes from probing together.
func (e *endpointState) noteHang(again bool, now time.Time) {
	if e.hold = min(2*e.hold, maxHold); !again || e.hold == 0 {
		e.hold = slowFor
	}
	e.silent = true
	e.slowUntil = Later(e.slowUntil, now.Add(e.hold-rand.N(e.hold/3)))
}

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Failing is the number of endpoints that get no attempt of the fast lane now. Slow endpoints get attempts of the slow lane. Paused
// endpoints get no attempts until a time that they asked for, or for a pause that grows with their failures.
type Failing struct{ Slow, Paused int }

// Failing counts the endpoints that fail or are slow.
func (l *Lanes) Failing() (n Failing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for _, e := range l.byID {
		switch {
		case now.Before(e.openUntil):
			n.Paused++
		case e.isSlow(now):
			n.Slow++
		}
	}
	return n
}

// On AWS, an attempt that hangs holds one of few processes. A process that has not sent to the endpoint before, or not for a while,
// would wait until the patience of the fast lane ends. So a process that notices a hanging endpoint writes a mark. Other processes
// read the mark in two cases:
//
//   - Their attempt takes longer than usual. If there is a mark, its page does not wait for it any longer.
//   - The endpoint did not answer their last attempt, and it is time for a probe. While the attempts of the slow lane hang, they
//     renew the mark, and are probes enough. So the page makes none, and does not wait for one.
//
// That costs a write per attempt that hangs, and a read per late answer and per half minute of each process.

// hangKey returns the key of the mark of a hanging endpoint. The version of the item is the time until which processes need no
// probe. The item outlives that time. If the endpoint answers again, the mark then harms only attempts that are late.
func hangKey(endpoint string) store.Key {
	return store.Key{Table: store.Deliveries, Partition: "t#" + endpoint, Sort: "hangs"}
}

// slowLaneProbes is how long a mark of the slow lane replaces probes. An endpoint that hangs gets an attempt of the slow lane about
// every 80 s, which is its longest pause and the time limit of an attempt.
const slowLaneProbes = 2 * time.Minute

// Hang records that an attempt has had no answer for so long that the endpoint hangs. Further first attempts then take the slow lane, in
// all processes.
func (s *Slot) Hang(ctx context.Context) {
	l := s.lanes
	if s.Usual == 0 {
		return // Detach has noted it
	}
	l.mu.Lock()
	s.e.noteHang(s.hung, l.now())
	until := s.e.slowUntil
	l.grantFast(s.e)
	l.mu.Unlock()
	if !s.warned {
		l.mark(ctx, s.Endpoint, until)
	}
}

// Warn tells the other processes that an attempt of the slow lane has had no answer.
func (s *Slot) Warn(ctx context.Context) {
	if l := s.lanes; l.limits.Hurry > 0 {
		l.mark(ctx, s.Endpoint, l.now().Add(slowLaneProbes))
	}
}

func (l *Lanes) mark(ctx context.Context, endpoint string, until time.Time) {
	it := store.Item{Key: hangKey(endpoint), Version: until.Unix(), Expires: until.Add(maxHold)}
	_ = l.rate.db.Write(ctx, store.Put(it)) // without it, others find out later
}

// readMark returns the mark of an endpoint, or nil without a mark.
func (l *Lanes) readMark(ctx context.Context, endpoint string) *store.Item {
	items, err := l.rate.db.Get(ctx, hangKey(endpoint))
	if err != nil || items[0] == nil || !l.now().Before(items[0].Expires) {
		return nil
	}
	return items[0]
}

// Warned reports whether another process knows that the endpoint hangs.
func (s *Slot) Warned(ctx context.Context) bool {
	s.warned = s.lanes.readMark(ctx, s.Endpoint) != nil
	return s.warned
}

// spareProbe reports whether another process has seen that the endpoint still hangs, so that no probe is needed. First attempts then
// continue to take the slow lane. It is called without the lock.
func (l *Lanes) spareProbe(ctx context.Context, e *endpointState) bool {
	mark := l.readMark(ctx, e.id)
	if mark == nil || l.now().Unix() >= mark.Version {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e.slowUntil = Later(e.slowUntil, l.now().Add(slowFor-rand.N(slowFor/3)))
	return true
}
