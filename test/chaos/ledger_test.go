//go:build unix

package chaos

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// event is a published event. Its number determines its id, type, URI and data, so that a ledger can tell from the
// number which events a consumer must receive.
type event int

const idPrefix = "c-"

func (e event) id() string { return fmt.Sprintf("%s%08d", idPrefix, int(e)) }

// parseEvent returns the event with an id, and false if no event has it.
func parseEvent(id string) (event, bool) {
	text, ok := strings.CutPrefix(id, idPrefix)
	n, err := strconv.Atoi(text)
	return event(n), ok && err == nil && n >= 0
}

const regions = 5

func (e event) region() string { return fmt.Sprint("r", int(e)/3%regions) }

// ticket reports whether the event is of the type without order.
func (e event) ticket() bool { return e%3 == 2 }

func (e event) shade() string {
	if e/2%2 == 0 {
		return "light"
	}
	return "dark"
}

// data holds the event's id. A few events are large.
func (e event) data() map[string]any {
	text := "Hello"
	if e%100 == 99 {
		text = strings.Repeat(`<p class="x">"quoted"</p>`, 400)
	}
	return map[string]any{"id": e.id(), "shade": e.shade(), "text": text}
}

// book records the published events: which were accepted, when, and under which URI.
type book struct {
	mu       sync.Mutex
	next     event
	uris     map[event]string // only of event types that were added during the run
	begun    map[event]time.Time
	accepted map[event]time.Time
}

func newBook() *book {
	return &book{uris: map[event]string{}, begun: map[event]time.Time{}, accepted: map[event]time.Time{}}
}

// take returns n new events. uri is their URI. If it is empty, their numbers determine it.
func (b *book) take(n int, uri string) (events []event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for range n {
		if uri != "" {
			b.uris[b.next] = uri
		}
		b.begun[b.next] = time.Now()
		events = append(events, b.next)
		b.next++
	}
	return events
}

func (b *book) accept(events []event) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range events {
		b.accepted[e] = now
	}
}

func (b *book) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.accepted)
}

// uri returns the event's URI.
func (b *book) uri(e event) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.uriOf(e)
}

func (b *book) uriOf(e event) string {
	switch uri := b.uris[e]; {
	case uri != "":
		return uri
	case e.ticket():
		return "event://chaos/tickets/" + e.region() + "/changed"
	default:
		return "event://chaos/orders/" + e.region() + "/created"
	}
}

// wish selects the events of a consumer's subscription. Their URI is below the given one and, unless shade is empty,
// their data has the shade.
type wish struct{ below, shade string }

// wanted returns the accepted events that the wish includes.
func (b *book) wanted(w wish) map[event]time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	events := map[event]time.Time{}
	for e, at := range b.accepted {
		if (w.shade == "" || e.shade() == w.shade) && strings.HasPrefix(b.uriOf(e)+"/", w.below+"/") {
			events[e] = at
		}
	}
	return events
}

// ledger records what one consumer received.
type ledger struct {
	name string
	wish
	// outages reports whether the consumer may be away for longer than its retry schedule, so that events may become
	// dead letters or be announced as a gap.
	outages bool
	// ordered reports whether the events of each URI must arrive in order, apart from repetitions and from the type without order.
	ordered bool

	mu           sync.Mutex
	subscription string // its id, if the consumer is a webhook and knows it
	got          map[event]int
	order        []event // in which they arrived for the first time
	all          int
	gaps         []time.Time
	starts       int
	faults       []string
}

func newLedger(name string, w wish) *ledger {
	return &ledger{name: name, wish: w, got: map[event]int{}}
}

// receive records an event that arrived, whose data must hold its id.
func (l *ledger) receive(id, inData string) {
	e, ok := parseEvent(id)
	if !ok || id != inData {
		l.fault("an event with the id %q and the data of %q arrived", id, inData)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.got[e]++; l.got[e] == 1 {
		l.order = append(l.order, e)
	}
	l.all++
}

// gap records that the server announced missing events.
func (l *ledger) gap() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gaps = append(l.gaps, time.Now())
}

func (l *ledger) start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.starts++
}

const maxFaults = 10

func (l *ledger) fault(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.faults) < maxFaults {
		l.faults = append(l.faults, fmt.Sprintf(format, args...))
	}
}

func (l *ledger) setSubscription(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subscription = id
}

func (l *ledger) counts() (different, all int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.got), l.all
}

// missing returns the wanted events that did not arrive, and the time at which each was accepted.
func (l *ledger) missing(b *book) map[event]time.Time {
	wanted := b.wanted(l.wish)
	l.mu.Lock()
	defer l.mu.Unlock()
	for e := range l.got {
		delete(wanted, e)
	}
	return wanted
}

// announced reports whether a gap was announced after the time.
func (l *ledger) announced(at time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.gaps) > 0 && l.gaps[len(l.gaps)-1].After(at)
}

// disorder describes the events that arrived after an event of the same URI that was published later.
func (l *ledger) disorder(b *book) (descriptions []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	last := map[string]event{}
	for _, e := range l.order {
		uri := b.uriOf(e)
		before, ok := last[uri]
		if at, accepted := b.accepted[e]; ok && accepted && at.Before(b.begun[before]) {
			descriptions = append(descriptions, fmt.Sprintf("%s of %s arrived after %s", e.id(), uri, before.id()))
		}
		if !strings.HasPrefix(uri, "event://chaos/tickets/") {
			last[uri] = e
		}
	}
	return descriptions
}
