package delivery

import (
	"math/rand/v2"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
)

// record updates what is known about an endpoint after an attempt.
func (l *lanes) record(e *endpointState, out webhook.Outcome, now time.Time) {
	o := e.origin
	if internal(out) {
		return
	}
	e.took = out.Took
	if out.Category == "" {
		e.proven, e.silent = true, false
		clear(o.failed)
		o.connect, o.slowUntil = 0, time.Time{}
		e.failures, e.pauses, e.openUntil = 0, 0, time.Time{}
		e.limit = min(e.limit+1, maxSlowAtOnce)
		e.slowUntil = time.Time{}
		if out.Took >= l.limits.slowAnswer {
			e.slowUntil = now.Add(slowFor)
		}
		return
	}
	e.failures++
	if out.Category == webhook.Timeout {
		e.silent = true
	}
	if pause := e.pause(out, now.Before(e.openUntil)); pause > 0 {
		e.openUntil = later(e.openUntil, now.Add(pause))
		e.slowUntil = later(e.slowUntil, e.openUntil)
	}
	if e.failures >= slowAfter {
		e.slowUntil = later(e.slowUntil, now.Add(slowFor))
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

// pause is how long an endpoint gets no attempt after a failure. With 0 its deliveries follow
// their schedules. An attempt that was under way when a pause began fails for the same reason as the one that
// began it: it makes the next pause no longer.
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

// busy reports whether a status asks for less, of every sender and for every event (WHK-09).
func busy(status int) bool { return status == 429 || status == 502 || status == 503 || status == 504 }

// unconnected reports whether no connection was made.
func unconnected(out webhook.Outcome) bool {
	switch out.Category {
	case webhook.ConnectionRefused, webhook.DNSError, webhook.TLSError:
		return true
	}
	return false
}

// internal reports whether an outcome says nothing about the endpoint.
func internal(out webhook.Outcome) bool {
	return out.Category == webhook.Aborted || out.Category == webhook.Internal
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
	e.slowUntil = later(e.slowUntil, now.Add(e.hold-rand.N(e.hold/3)))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Failing is how many endpoints get no attempt of the fast lane now: Slow are attempted in the slow lane, Paused not at all, until
// a time that they asked for or that grows with their failures.
type Failing struct{ Slow, Paused int }

// Failing counts the endpoints that fail or are slow.
func (d *Dispatcher) Failing() Failing { return d.lanes.failing(d.now()) }

func (l *lanes) failing(now time.Time) (n Failing) {
	l.mu.Lock()
	defer l.mu.Unlock()
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
