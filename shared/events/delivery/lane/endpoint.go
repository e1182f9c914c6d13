package lane

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// endpointState is the health of one webhook endpoint as this process knows it. An endpoint is one URL without its query. It is in one of
// three states:
//
//	healthy  first attempts to deliver an event are sent without delay (the fast lane)
//	slow     first attempts go through a separate queue (the slow lane), so that they do not hold up other endpoints
//	paused   the endpoint gets no attempts for some time, and then one at a time until one succeeds
//
// An endpoint becomes slow after a response that took too long, or after three failures in a row. It becomes paused after a timeout, or
// after the status 429, 502, 503 or 504. A quick success makes it healthy again.
//
// All endpoints of a client usually have the same origin, so an endpoint that fails must not harm the others. The origin as a whole counts
// as failing only if connections to it fail, or if [originAfter] of its endpoints fail without a success in between.
//
// Each process learns from its own attempts, because sharing every outcome would cost more than a few failed attempts per process. On AWS,
// processes tell each other only which endpoints hang; see [FastSlot.Hang].
type endpointState struct {
	id     string
	origin *originState // nil until the endpoint's URL is known

	fast      int           // the number of attempts under way in the fast lane
	fastBytes int64         // the size of the bodies of the attempts in the fast lane
	flows     []*flow       // the attempts that wait for a slot of the fast lane, by principal
	slow      int           // the number of attempts under way in the slow lane
	slowBytes int64         // the memory that the attempts in the slow lane need
	queued    []*slowWaiter // attempts that wait for a slot of the slow lane, the oldest first
	hanging   int           // the number of detached attempts under way; see [FastSlot.Detach]

	proven    bool          // the endpoint has answered an attempt with success
	silent    bool          // an attempt since the last success was not answered in time
	hold      time.Duration // how long the last hanging attempt made first attempts take the slow lane
	took      time.Duration // the duration of the last attempt
	answers   times         // averages of the durations of successful attempts
	failures  int           // failed attempts since the last success
	pauses    int           // consecutive pauses; a success or another kind of failure sets it to 0
	slowUntil time.Time     // until then, first attempts take the slow lane
	openUntil time.Time     // the endpoint is paused: no attempts until then; afterwards one at a time, until one succeeds
	limit     int           // limit of concurrent attempts in the slow lane: a success adds one, a timeout sets it to one
}

// originState is the health of an origin, for example https://example.com, as this process knows it. All endpoints of the origin
// share it.
type originState struct {
	failed    map[string]struct{} // endpoints that failed since the last success at this origin
	connect   int                 // attempts that failed to connect since the last success
	slowUntil time.Time           // until then, first attempts to all endpoints of the origin take the slow lane
	hanging   shares              // detached attempts; see [FastSlot.Detach]
	doubtful  shares              // attempts of the slow lane to endpoints that may hang
}

// shares counts how much of a limited resource each principal uses. The resource is slots, i.e. concurrent attempts, or bytes of memory.
type shares struct {
	total int64
	by    map[string]int64
}

// fits reports whether a principal may use n more slots or bytes within the limit. A principal that already uses some may use only three
// quarters of the limit, so that other principals can have attempts, too. If the whole resource is unused, any n fits, so that even a
// body larger than the limit can be sent.
func (s *shares) fits(principal string, n, limit int64) bool {
	had := s.by[principal]
	return s.total == 0 || s.total+n <= limit && (had == 0 || had+n <= limit*3/4)
}

func (s *shares) add(principal string, n int64) {
	if s.by == nil {
		s.by = map[string]int64{}
	}
	s.total += n
	s.by[principal] += n
}

func (s *shares) release(principal string, n int64) {
	s.total -= n
	if s.by[principal] -= n; s.by[principal] == 0 {
		delete(s.by, principal)
	}
}

const (
	slowAfter = 3                // consecutive failures after which an endpoint is slow
	slowFor   = 30 * time.Second // how long first attempts to a slow endpoint take the slow lane
	// maxHold limits how long first attempts to a hanging endpoint take the slow lane. This time is slowFor at first, and doubles each
	// time another first attempt hangs.
	maxHold = 5 * time.Minute
	// slotWait is how long an attempt in the slow lane waits to start if its endpoint has as many attempts under way as allowed. It waits
	// only if the last attempt to the endpoint took less than slotWait.
	slotWait = 500 * time.Millisecond
	// probeTime is how long other first attempts take the slow lane while one attempt, the probe, finds out whether the endpoint is still
	// slow.
	probeTime = 4 * time.Second

	hangPause    = 10 * time.Second // how long an endpoint gets no attempts after a timeout; doubled by each further timeout
	maxHangPause = time.Minute
	// busyPause is how long an endpoint gets no attempts after the status 429, 502, 503 or 504 without Retry-After. Each further such
	// response doubles the time.
	busyPause    = 5 * time.Second
	maxBusyPause = 5 * time.Minute

	slowAtOnce    = 4 // initial limit of concurrent attempts to an endpoint in the slow lane
	maxSlowAtOnce = 32
	// maxHanging limits the detached attempts to one endpoint, i.e. first attempts that continue in the background (see
	// [FastSlot.Detach]). maxOriginHanging limits the detached attempts to all endpoints of one origin.
	maxHanging       = 16
	maxOriginHanging = 64
	// maxOriginDoubtful limits the slow lane's concurrent attempts to all endpoints of one origin that may hang.
	maxOriginDoubtful = 64

	// originAfter is the number of failing endpoints at which their origin counts as failing. maxEndpoint is the number of endpoints whose
	// state a process remembers.
	originAfter = 5
	maxEndpoint = 20_000
)

// get returns the state of an endpoint, and creates the state if necessary. The parameter target is the endpoint's URL, or "" if the URL
// is not known yet.
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

// forget removes the states of endpoints that have no attempts, beginning with endpoints without failures, until fewer than three quarters
// of [maxEndpoint] are left. It also removes origins without endpoints.
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
	if pause := e.nextPause(out, now.Before(e.openUntil)); pause > 0 {
		e.openUntil = periodic.Later(e.openUntil, now.Add(pause))
		e.slowUntil = periodic.Later(e.slowUntil, e.openUntil)
	}
	if e.failures >= slowAfter {
		e.slowUntil = periodic.Later(e.slowUntil, now.Add(slowFor))
	}
	if len(o.failed) < originAfter {
		o.failed[e.id] = struct{}{}
	}
	switch out.Category {
	case webhook.ConnectionRefused, webhook.DNSError, webhook.TLSError:
		o.connect++ // the attempt never had a connection to the endpoint
	}
	if len(o.failed) >= originAfter || o.connect >= slowAfter {
		o.slowUntil = now.Add(slowFor)
	}
}

// times has two moving averages for an endpoint's successful attempts, weighted as in RFC 6298: the average duration, and the average
// deviation from it.
type times struct{ mean, spread time.Duration }

func (t *times) add(took time.Duration) {
	if *t == (times{}) {
		*t = times{took, took / 2}
		return
	}
	t.spread += ((took - t.mean).Abs() - t.spread) / 4
	t.mean += (took - t.mean) / 8
}

// usualLimit returns the time within which nearly all responses of the endpoint arrive. Like TCP's retransmission timeout (RFC 6298), it
// is the average response time plus four times the average deviation. For example, it is 120 ms for an endpoint that responds within 80
// ms on average, give or take 10 ms.
//
// If an attempt takes longer and continues in the background, the endpoint may have begun to hang. Until that attempt ends, the limit is
// lower, the average plus one deviation (90 ms in the example), so that the endpoint holds up the process for less time.
func (l *Lanes) usualLimit(e *endpointState) time.Duration {
	t := e.answers
	switch {
	case !e.proven:
		return 2 * l.limits.MinWait
	case e.hanging > 0:
		return max(t.mean+t.spread, l.limits.MinWait/10)
	}
	return max(t.mean+4*t.spread, l.limits.MinWait)
}

// nextPause returns how long the endpoint gets no attempts after a failed attempt, or 0 if it needs no pause. It may also lower e.limit,
// the limit of concurrent attempts in the slow lane.
//
// The parameter underWay says that the attempt began before the endpoint's current pause. It then failed for the same reason as the
// attempt that caused the pause, so it does not make the next pause longer.
func (e *endpointState) nextPause(out webhook.Outcome, underWay bool) time.Duration {
	base, most := time.Duration(0), time.Duration(0)
	switch {
	case out.RetryAfter > 0 && isBusyStatus(out.Status):
		return out.RetryAfter
	case out.Category == webhook.Timeout:
		base, most = hangPause, maxHangPause
		e.limit = 1
	case isBusyStatus(out.Status):
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

// isBusyStatus reports whether a status asks the sender to slow down for all events (WHK-09).
func isBusyStatus(status int) bool {
	return status == 429 || status == 502 || status == 503 || status == 504
}

// isSlow reports whether first attempts to the endpoint take the slow lane.
func (e *endpointState) isSlow(now time.Time) bool {
	return now.Before(e.slowUntil) || now.Before(e.openUntil) || e.origin != nil && now.Before(e.origin.slowUntil)
}

// isDoubtful reports whether the endpoint may hang, because its last attempts timed out or failed.
func (e *endpointState) isDoubtful(now time.Time) bool {
	return !e.openUntil.IsZero() || now.Before(e.slowUntil) && (!e.proven || e.silent || e.failures > 0)
}

// startProbe reports whether the caller's attempt is a probe, i.e. tests whether the endpoint works again. It is a probe if the endpoint
// or its origin was slow or paused until now, and no attempt has succeeded since. startProbe then makes other first attempts take the
// slow lane for [probeTime], because they might hang, too.
func (e *endpointState) startProbe(now time.Time) (probe bool) {
	for _, until := range []*time.Time{&e.origin.slowUntil, &e.slowUntil, &e.openUntil} {
		if !until.IsZero() {
			*until = now.Add(probeTime)
			probe = true
		}
	}
	return probe
}

// noteHang records that the endpoint hangs. First attempts then take the slow lane for some time. After that, one of them probes the
// endpoint, i.e. tests whether it still hangs. A random part of the time keeps processes from probing simultaneously.
//
// If the previous attempt hung, too (the parameter again), the time is twice as long as before. Without the doubling, probes would cost
// too much: each process makes its own, and on AWS a hanging probe holds up one of few processes.
func (e *endpointState) noteHang(again bool, now time.Time) {
	if e.hold = min(2*e.hold, maxHold); !again || e.hold == 0 {
		e.hold = slowFor
	}
	e.silent = true
	e.slowUntil = periodic.Later(e.slowUntil, now.Add(e.hold-rand.N(e.hold/3)))
}

// Failing counts the endpoints that currently get no attempts in the fast lane. Slow endpoints get attempts in the slow lane. Paused
// endpoints get no attempts at all, because they timed out or responded with 429, 502, 503 or 504.
type Failing struct{ Slow, Paused int }

// CountFailing counts the slow and the paused endpoints among the endpoints that this process knows.
func (l *Lanes) CountFailing() (n Failing) {
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

// On AWS, an attempt that hangs holds up one of few processes until [Limits.Patience] is over. Without help, each process would find out
// in this way that the endpoint hangs. So a process that finds a hanging endpoint writes an item to the store, the endpoint's mark. Other
// processes read the mark in two cases:
//
//   - An attempt takes longer than [FastSlot.Usual]. If the endpoint has a mark, the process stops waiting for the attempt.
//   - It is time to probe an endpoint, i.e. to test with a first attempt whether it still hangs. Attempts in the slow lane test that,
//     too, and renew the mark if they hang. If the mark was renewed, the process makes no probe.
//
// So a hanging attempt costs one write, and a late response costs one read. While an endpoint hangs, each process also makes one read
// every half minute, instead of a probe.

// hangKey returns the key of a hanging endpoint's mark, the item that tells other processes that the endpoint hangs. The version of the
// mark is a time in seconds since 1970. Until then, processes do not probe the endpoint. The mark is kept for [maxHold] longer. While the
// mark is kept, a process that reads it waits for a late response only as long as [FastSlot.Usual].
func hangKey(endpoint string) store.Key {
	return store.Key{Table: store.Deliveries, Partition: "t#" + endpoint, Sort: "hangs"}
}

// slowLaneProbes is how long processes do not test a hanging endpoint with first attempts after an attempt in the slow lane hung, because
// that attempt was a test, too. The slow lane makes an attempt about every 80 s: a pause of a minute ([maxHangPause]), and then up to 20
// s for the attempt. So before slowLaneProbes is over, the next attempt normally hangs, and the time begins again.
const slowLaneProbes = 2 * time.Minute

// Hang records that the endpoint hangs, because the slot's attempt got no response in time. First attempts to the endpoint then take the
// slow lane for some time. Hang also tells other processes.
func (s *FastSlot) Hang(ctx context.Context) {
	if s.Usual > 0 { // otherwise FastSlot.Detach has recorded that the endpoint hangs
		s.recordHang(ctx, s.hung, s.warned)
	}
}

// Hang records that the endpoint hangs, like [FastSlot.Hang].
func (s *DetachedSlot) Hang(ctx context.Context) { s.recordHang(ctx, s.hung, s.warned) }

// recordHang records that the endpoint hangs, and writes the endpoint's mark, which tells other processes. The parameter warned says that
// the endpoint has a mark already, so that recordHang need not write it. The parameter again says that the previous attempt hung, too.
func (s *slot) recordHang(ctx context.Context, again, warned bool) {
	l := s.lanes
	l.mu.Lock()
	s.e.noteHang(again, l.now())
	until := s.e.slowUntil
	l.grantFast(s.e)
	l.mu.Unlock()
	if !warned {
		l.markHanging(ctx, s.call.Endpoint, until)
	}
}

// Warn tells other processes that the slot's attempt timed out, so that they need not test whether the endpoint still hangs.
func (s *SlowSlot) Warn(ctx context.Context) {
	if l := s.lanes; l.limits.MinWait > 0 {
		l.markHanging(ctx, s.call.Endpoint, l.now().Add(slowLaneProbes))
	}
}

// markHanging writes the endpoint's mark, which tells other processes not to test the endpoint until the given time.
func (l *Lanes) markHanging(ctx context.Context, endpoint string, until time.Time) {
	it := store.Item{Key: hangKey(endpoint), Version: until.Unix(), Expires: until.Add(maxHold)}
	_ = l.rate.db.Write(ctx, store.Put(it)) // if the write fails, other processes find out by themselves that the endpoint hangs
}

// readMark returns a hanging endpoint's mark, the item that tells other processes that the endpoint hangs. It returns nil if there is no
// mark or it cannot be read.
func (l *Lanes) readMark(ctx context.Context, endpoint string) *store.Item {
	items, err := l.rate.db.Get(ctx, hangKey(endpoint))
	if err != nil || items[0] == nil || !l.now().Before(items[0].Expires) {
		return nil
	}
	return items[0]
}

// HasWarning reports whether any process has found that the endpoint hangs. It reads from the store, so call it only after an attempt has
// taken longer than usual.
func (s *FastSlot) HasWarning(ctx context.Context) bool {
	s.warned = s.lanes.readMark(ctx, s.call.Endpoint) != nil
	return s.warned
}

// skipProbe reports whether a first attempt need not test the endpoint, because the endpoint's mark says that it still hangs. First
// attempts then continue to take the slow lane for some time. The caller must not hold l.mu.
func (l *Lanes) skipProbe(ctx context.Context, e *endpointState) bool {
	mark := l.readMark(ctx, e.id)
	if mark == nil || l.now().Unix() >= mark.Version {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e.slowUntil = periodic.Later(e.slowUntil, l.now().Add(slowFor-rand.N(slowFor/3)))
	return true
}
