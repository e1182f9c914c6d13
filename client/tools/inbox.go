package tools

import (
	"strings"
	"sync"

	"github.com/mcp-events/mcpevents/client"
)

const (
	// maxKept bounds the events that are kept, read or not, and maxBytes their data: the oldest go.
	maxKept, maxBytes = 1000, 4 << 20
	// maxText bounds an id, a name, a URI, a time and a note, which the other server writes, in bytes.
	maxText = 1 << 10
	// defaultLimit and maxLimit are of one result, and maxResult bounds its data in bytes, for a model reads it.
	defaultLimit, maxLimit, maxResult = 20, 50, 64 << 10
)

// shown is an event as the model reads it.
type shown struct {
	Subscription string `json:"subscription"`
	ID           string `json:"id,omitempty"`
	Name         string `json:"name"`
	URI          string `json:"uri,omitempty" jsonschema:"what the event is about, if the server says so"`
	Time         string `json:"time,omitempty"`
	Data         any    `json:"data,omitempty"`
	Note         string `json:"note,omitempty" jsonschema:"what happened to the subscription instead of an event, or to this event's data"`
}

// events is the result of a tool that reads.
type events struct {
	Events   []shown `json:"events"`
	More     bool    `json:"more,omitempty" jsonschema:"there are more unread events"`
	Missed   int     `json:"missed,omitempty" jsonschema:"how many unread events were dropped because too many came"`
	TimedOut bool    `json:"timedOut,omitempty"`
}

// kept is an event in the inbox.
type kept struct {
	shown
	size      int
	read      bool
	announced bool // that it came
}

// inbox keeps what came.
type inbox struct {
	mu      sync.Mutex
	all     []kept
	size    int
	missed  int
	waiting map[*string]struct{} // who waits, each for a subscription or for all
	changed chan struct{}        // closed and replaced with each event, and when someone waits no more
}

func (b *inbox) add(subscription string, e client.Event) {
	k := kept{shown: shown{Subscription: subscription, ID: clip(e.ID), Name: clip(e.Name), URI: clip(e.URI), Time: clip(e.Time)}, size: len(e.Data)}
	if k.size > maxResult {
		k.size, k.Note = 0, "the data is too large to be shown here"
	} else {
		k.Data = decoded(e.Data)
	}
	b.put(k)
}

// note shows the reader what is no event.
func (b *inbox) note(subscription, name, text string) {
	b.put(kept{shown: shown{Subscription: subscription, Name: clip(name), Note: clip(text)}})
}

// clip cuts a text down to maxText bytes.
func clip(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "")
}

func (b *inbox) put(k kept) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all, b.size = append(b.all, k), b.size+k.size
	for len(b.all) > maxKept || b.size > maxBytes {
		if !b.all[0].read {
			b.missed++
		}
		b.size -= b.all[0].size
		b.all[0] = kept{}
		b.all = b.all[1:]
	}
	b.signal()
}

func (b *inbox) signal() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// await says that someone waits for what comes of a subscription, or of all, until leave is called.
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

// news says whether an event is unread and unannounced, and no one waits for it.
func (b *inbox) news(k *kept) bool {
	if k.read || k.announced {
		return false
	}
	for subscription := range b.waiting {
		if *subscription == "" || *subscription == k.Subscription {
			return false
		}
	}
	return true
}

// unannounced is how many events were not announced, and no one waits for.
func (b *inbox) unannounced() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.all {
		if b.news(&b.all[i]) {
			n++
		}
	}
	return n
}

// announce is what is to be announced now: the oldest event, or, if it shall be one for all and there are several, their number.
func (b *inbox) announce(oldest bool) (p pushed, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for i := range b.all {
		k := &b.all[i]
		if !b.news(k) {
			continue
		}
		k.announced = true
		if n++; n == 1 {
			p.shown = k.shown
			if k.size > maxPushed {
				p.Data, p.Note = nil, "the data is too large to be pushed: read it with recent_events"
			}
			if oldest {
				return p, true
			}
		}
	}
	if n > 1 {
		p = pushed{shown: shown{Note: "events came: read them with wait_for_event"}, Unread: n}
	}
	return p, n > 0
}

// wake is closed when something comes.
func (b *inbox) wake() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

// newest are the newest, in their order. They count as read, or not.
func (b *inbox) newest(subscription string, limit int, read bool) events {
	b.mu.Lock()
	defer b.mu.Unlock()
	from, size, n := len(b.all), 0, 0
	for ; from > 0 && n < limit; from-- {
		k := &b.all[from-1]
		if subscription != "" && k.Subscription != subscription {
			continue
		}
		if size += k.size; size > maxResult {
			break
		}
		n++
	}
	return b.take(b.all[from:], subscription, limit, read, func(*kept) bool { return true })
}

// unread are the oldest that were not read.
func (b *inbox) unread(subscription string, limit int) events {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.take(b.all, subscription, limit, true, func(k *kept) bool { return !k.read })
}

func (b *inbox) take(all []kept, subscription string, limit int, read bool, wanted func(*kept) bool) events {
	out, size := events{Events: []shown{}, Missed: b.missed}, 0
	for i := range all {
		k := &all[i]
		if subscription != "" && k.Subscription != subscription || !wanted(k) {
			continue
		}
		if size += k.size; len(out.Events) == limit || size > maxResult || out.More {
			out.More, k.announced = true, k.announced || read // of the rest, too, for more says so
			continue
		}
		k.read = k.read || read
		out.Events = append(out.Events, k.shown)
	}
	switch {
	case !read:
		return out
	case len(out.Events) > 0:
		b.missed = 0
	default:
		out.Missed = 0
	}
	return out
}
