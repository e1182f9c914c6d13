package property

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"
)

// occurrence is one event that a publisher sent. Its number is in its payload, because two events may have the same id.
type occurrence struct {
	n       int
	id, uri string
	name    string
	vars    map[string]string
	even    bool
	begun   time.Time // of the first attempt to publish it
	done    time.Time // when it was accepted; zero if it never was
}

// ordered reports whether the events of its URI keep their order.
func (o *occurrence) ordered() bool { return o.name != "loose" && o.name != "turn" }

// payload is the data of every event.
type payload struct {
	N    int    `json:"n"`
	Even bool   `json:"even"`
	Text string `json:"text,omitempty"`
}

// wish is a selection of events as a client asks for it: a type, its variables and a filter.
type wish struct {
	name string
	vars map[string]string
	even *bool
}

func (w wish) String() string {
	return w.name + w.arguments()
}

// arguments returns the arguments of the events methods.
func (w wish) arguments() string {
	args := map[string]any{}
	for name, value := range w.vars {
		args[name] = value
	}
	if w.even != nil {
		args["even"] = *w.even
	}
	text, _ := json.Marshal(args) // texts and booleans
	return string(text)
}

func (w wish) wants(o *occurrence) bool {
	for name, value := range w.vars {
		if o.vars[name] != value {
			return false
		}
	}
	return w.name == o.name && (w.even == nil || *w.even == o.even)
}

// ledger is the reference model: which events were accepted, and when.
type ledger struct {
	mu     sync.Mutex
	events []*occurrence
}

// begin numbers an event that is about to be published.
func (l *ledger) begin(o *occurrence) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o.n, o.begun = len(l.events), time.Now()
	if o.id == "" {
		o.id = fmt.Sprintf("e-%d", o.n)
	}
	l.events = append(l.events, o)
}

func (l *ledger) accept(events []*occurrence) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range events {
		o.done = time.Now()
	}
}

// accepted returns the accepted events of a wish whose publication began after a time.
func (l *ledger) accepted(w wish, after time.Time) (list []*occurrence) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.events {
		if !o.done.IsZero() && o.begun.After(after) && w.wants(o) {
			list = append(list, o)
		}
	}
	return list
}

func (l *ledger) event(n int) *occurrence {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n < 0 || n >= len(l.events) {
		return nil
	}
	return l.events[n]
}

func (l *ledger) count() (begun, accepted int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.events {
		if !o.done.IsZero() {
			accepted++
		}
	}
	return len(l.events), accepted
}

// chain holds the events that one uninterrupted chain of cursors returned, in order.
type chain struct {
	wish   wish
	title  string
	since  time.Time // when its first cursor arrived
	got    []int
	faults []string
}

// check compares a chain with the ledger. Exact chains repeat nothing and keep the order of each URI, unless the event type
// has no order.
func (c *chain) check(l *ledger, exact bool) (problems []string) {
	report := func(format string, args ...any) {
		problems = append(problems, fmt.Sprintf("%s (%s): ", c.title, c.wish)+fmt.Sprintf(format, args...))
	}
	for _, f := range c.faults {
		report("%s", f)
	}
	times := map[int]int{}
	last := map[string]*occurrence{}
	for _, n := range c.got {
		o := l.event(n)
		if o == nil || !c.wish.wants(o) {
			report("returned event %d, which was not asked for", n)
			continue
		}
		if times[n]++; times[n] > 1 {
			continue
		}
		if before := last[o.uri]; exact && o.ordered() && before != nil && !o.done.IsZero() && o.done.Before(before.begun) {
			report("returned event %d after event %d of the same URI, which was published later", n, before.n)
		}
		last[o.uri] = o
	}
	var skipped, repeated []int
	for _, o := range l.accepted(c.wish, c.since) {
		if times[o.n] == 0 {
			skipped = append(skipped, o.n)
		}
	}
	for n, count := range times {
		if count > 1 && l.event(n) != nil {
			repeated = append(repeated, n)
		}
	}
	if len(skipped) > 0 {
		report("skipped %d of %d events: %s", len(skipped), len(l.accepted(c.wish, c.since)), l.describe(skipped))
	}
	if exact && len(repeated) > 0 {
		slices.Sort(repeated)
		report("repeated %d events: %s", len(repeated), l.describe(repeated))
	}
	return problems
}

// describe lists a few events.
func (l *ledger) describe(numbers []int) (text string) {
	for i, n := range numbers {
		if i == 5 {
			return text + " …"
		}
		o := l.event(n)
		text += fmt.Sprintf(" [%d id %s %.60s at %s]", n, o.id, o.uri, o.begun.Format("04:05.000"))
	}
	return text
}
