package tools

import (
	"strings"
	"sync"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/mcp/eventtools"
)

const (
	// maxKept and maxBytes limit the kept events, read and unread, by their number and their data. The oldest are dropped first.
	maxKept, maxBytes = 1000, 4 << 20
	// maxText limits each text of an event that the other server writes, such as its id or URI, in bytes.
	maxText = 1 << 10
)

// entry is an event in the inbox, a note about a subscription, or a gap.
type entry struct {
	eventtools.Event
	gap       bool
	read      bool
	announced bool // the client was notified, or a result said that there is more
}

// inbox keeps the events of all subscriptions in the order of their arrival.
type inbox struct {
	mu      sync.Mutex
	entries []entry
	size    int                  // bytes of data
	dropped bool                 // unread entries were dropped since the last read
	waiting map[*string]struct{} // calls that wait, each for a subscription or, if empty, for all
	changed chan struct{}        // closed and replaced when an entry arrives and when a call stops waiting
}

// add adds an event.
func (b *inbox) add(subscription string, e client.Event) {
	x := eventtools.Event{Subscription: subscription, ID: clip(e.ID), Name: clip(e.Name), URI: clip(e.URI), Time: clip(e.Time), Data: e.Data}
	x.Trim()
	b.put(entry{Event: x})
}

// addGap notes that events of a subscription were lost.
func (b *inbox) addGap(subscription, name string) {
	b.put(entry{Event: eventtools.Event{Subscription: subscription, Name: clip(name), Note: "events were lost"}, gap: true})
}

// addNote adds a remark about a subscription.
func (b *inbox) addNote(subscription, name, text string) {
	b.put(entry{Event: eventtools.Event{Subscription: subscription, Name: clip(name), Note: clip(text)}})
}

// clip cuts a text down to maxText bytes.
func clip(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "")
}

func (b *inbox) put(e entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.entries, b.size = append(b.entries, e), b.size+len(e.Data)
	for len(b.entries) > maxKept || b.size > maxBytes {
		b.dropped = b.dropped || !b.entries[0].read
		b.size -= len(b.entries[0].Data)
		b.entries[0] = entry{}
		b.entries = b.entries[1:]
	}
	b.signal()
}

func (b *inbox) signal() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// nextChange returns a channel that is closed at the next change of the inbox.
func (b *inbox) nextChange() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

// await notes that a call waits for the events of a subscription, or of all, until leave is called.
func (b *inbox) await(subscription string) (leave func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting[&subscription] = struct{}{}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.waiting, &subscription)
		b.signal()
	}
}

// toAnnounce reports whether an entry is unread and unannounced, and no call waits for it.
func (b *inbox) toAnnounce(e *entry) bool {
	if e.read || e.announced {
		return false
	}
	for subscription := range b.waiting {
		if *subscription == "" || *subscription == e.Subscription {
			return false
		}
	}
	return true
}

// countToAnnounce returns the number of entries to announce.
func (b *inbox) countToAnnounce() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.entries {
		if b.toAnnounce(&b.entries[i]) {
			n++
		}
	}
	return n
}

// announce returns the next announcement: the oldest event if single is set or if there is only one, otherwise the number of all.
func (b *inbox) announce(single bool) (a announcement, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for i := range b.entries {
		e := &b.entries[i]
		if !b.toAnnounce(e) {
			continue
		}
		e.announced = true
		if n++; n == 1 {
			a.Event = e.Event
			if len(e.Data) > maxPushed {
				a.Data, a.Note = nil, "the data is too large to be pushed: read it with recent_events"
			}
			if single {
				return a, true
			}
		}
	}
	if n > 1 {
		a = announcement{Event: eventtools.Event{Note: "events have arrived: read them with wait_for_event"}, Unread: n}
	}
	return a, n > 0
}

// readUnread returns the oldest unread events and marks them as read.
func (b *inbox) readUnread(q eventtools.Query) *eventtools.Events {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := eventtools.NewEvents(q)
	for i := range b.entries {
		e := &b.entries[i]
		switch {
		case e.read || q.Subscription != "" && e.Subscription != q.Subscription:
		case out.More: // also tells the model about this entry
			e.announced = true
		case e.gap:
			e.read, out.Gap = true, true
		case out.Add(e.Event):
			e.read = true
		default:
			e.announced = true
		}
	}
	if !out.Empty() {
		out.Gap, b.dropped = out.Gap || b.dropped, false
	}
	return out
}

// newest returns the newest events, read or not, and does not mark them as read.
func (b *inbox) newest() *eventtools.Events {
	b.mu.Lock()
	defer b.mu.Unlock()
	from, size := len(b.entries), 0
	for from > 0 && len(b.entries)-from < eventtools.DefaultEvents {
		if size += len(b.entries[from-1].Data); size > eventtools.MaxBytes {
			break
		}
		from--
	}
	out := eventtools.NewEvents(eventtools.Query{Limit: eventtools.DefaultEvents})
	for _, e := range b.entries[from:] {
		if e.gap {
			out.Gap = true
		} else {
			out.Add(e.Event)
		}
	}
	return out
}
