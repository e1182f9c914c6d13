package bench

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// ledger knows of each delivery of a run whether it arrived and how long that took. Its methods may be called
// concurrently.
type ledger struct {
	prefix      string // of the ids of this run's events
	subscribers int
	uris        int
	secrets     []string // by endpoint; empty ones are not verified
	began       time.Time

	sent []atomic.Int64  // by event: nanoseconds after began
	took []atomic.Uint32 // by event and subscriber: microseconds + 1; 0 has not arrived

	arrived, duplicates, strange, forged atomic.Int64

	last atomic.Int64  // the latest arrival that was no duplicate, as sent
	done chan struct{} // closed with the last delivery
	each chan struct{} // with [Shape.Latency], one for each arrival; else nil
}

func newLedger(prefix string, s Shape, secrets []string) *ledger {
	l := &ledger{
		prefix: prefix, subscribers: s.Subscribers, uris: s.URIs, secrets: secrets, began: time.Now(),
		sent: make([]atomic.Int64, s.Events), took: make([]atomic.Uint32, s.deliveries()), done: make(chan struct{}),
	}
	if s.Latency {
		l.each = make(chan struct{}, s.deliveries())
	}
	return l
}

func (l *ledger) id(n int) string { return l.prefix + strconv.Itoa(n) }

// publishing notes when event n is sent, or should have been: an event that waits because the server is slow
// to accept those before it is late too.
func (l *ledger) publishing(n int, at time.Time) { l.sent[n].Store(int64(at.Sub(l.began))) }

// arrive notes a webhook with the id at an endpoint. Webhooks of other runs are ignored.
func (l *ledger) arrive(id []byte, endpoint int, at time.Time) {
	text, ours := strings.CutPrefix(string(id), l.prefix)
	if !ours {
		return
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n >= len(l.sent) || endpoint < 0 || endpoint >= l.subscribers*l.uris || n%l.uris != endpoint%l.uris {
		l.strange.Add(1)
		return
	}
	since := int64(at.Sub(l.began))
	took := time.Duration(since - l.sent[n].Load()).Microseconds()
	if !l.took[n*l.subscribers+endpoint/l.uris].CompareAndSwap(0, uint32(min(max(took, 0)+1, math.MaxUint32))) {
		l.duplicates.Add(1)
		return
	}
	for last := l.last.Load(); since > last && !l.last.CompareAndSwap(last, since); last = l.last.Load() {
	}
	if l.each != nil {
		l.each <- struct{}{}
	}
	if l.arrived.Add(1) == int64(len(l.took)) {
		close(l.done)
	}
}

// lost returns the number of deliveries that have not arrived.
func (l *ledger) lost() int64 { return int64(len(l.took)) - l.arrived.Load() }

// latencies returns the latencies of the arrived deliveries, sorted.
func (l *ledger) latencies() []time.Duration {
	out := make([]time.Duration, 0, len(l.took))
	for i := range l.took {
		if v := l.took[i].Load(); v != 0 {
			out = append(out, time.Duration(v-1)*time.Microsecond)
		}
	}
	slices.Sort(out)
	return out
}

// percentile returns the smallest of the sorted values that at least p % of them do not exceed (nearest rank).
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(p*float64(len(sorted))/100 - 1e-9)) // 99.9 is a little more than 99.9
	return sorted[min(max(rank, 1), len(sorted))-1]
}
