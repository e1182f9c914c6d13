package admin

import (
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
)

// A live stream looks at the delivery log and at the log of events again and again, and sends what is new. It costs
// two bounded looks at a time, however much happens: what a look does not show is counted. A store that knows its end
// is not asked for events when nothing was appended.
const (
	// maxLive is how many live streams an instance has, and liveFor how long one is at most.
	maxLive = 20
	liveFor = 5 * time.Minute
	// lookEvery is the time between two looks, and lookRarely where each is paid for.
	lookEvery  = 500 * time.Millisecond
	lookRarely = 3 * time.Second
	// lookBack is how much later than its time a record or an event can be written. (Log has a window of its own.)
	lookBack = 3 * time.Second
	// maxTailed bounds the partitions of the log that are looked at.
	maxTailed = 25
	// shown is how many attempts and events a tick has.
	shown = 20
	// heartbeat is the longest quiet.
	heartbeat = 15 * time.Second
	// recheckEvery is how often a live stream checks that its caller may still see it.
	recheckEvery = 5 * time.Second
	// retail is how often new URIs are looked for, where each look is paid for.
	retail = 30 * time.Second
)

// tick is what is new.
type tick struct {
	At time.Time `json:"at"`
	figures
	Published int `json:"published"`
	// Deliveries and Events are the newest of them, newest first; an event without its payload.
	Deliveries []attemptView `json:"deliveries"`
	Events     []eventView   `json:"events"`
	// Truncated says that there are more URIs than are looked at.
	Truncated bool `json:"truncated"`
}

// liveHandler opens live streams.
type liveHandler struct {
	events *eventHandlers
	auth   auth.Authenticator
	db     store.DB
	ends   <-chan struct{} // is closed when live streams are to end
	log    *slog.Logger

	mu   sync.Mutex
	open []*place // oldest first
}

// place is the permission of a workspace to have one live stream.
type place struct {
	workspace string
	taken     chan struct{} // closed when another workspace got it
}

// enter returns a place for a stream of a workspace, or nil. When all places are taken, the workspace with the most streams loses its
// oldest one, unless this workspace would then have more than that one.
func (h *liveHandler) enter(workspace string) *place {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.open) >= maxLive {
		has := map[string]int{}
		for _, p := range h.open {
			has[p.workspace]++
		}
		oldest := h.open[0]
		for _, p := range h.open {
			if has[p.workspace] > has[oldest.workspace] {
				oldest = p
			}
		}
		if has[oldest.workspace] <= has[workspace]+1 {
			return nil
		}
		close(oldest.taken)
		h.open = slices.DeleteFunc(h.open, func(p *place) bool { return p == oldest })
	}
	p := &place{workspace, make(chan struct{})}
	h.open = append(h.open, p)
	return p
}

// leave gives a place back.
func (h *liveHandler) leave(p *place) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open = slices.DeleteFunc(h.open, func(other *place) bool { return other == p })
}

// tail is where one live stream is.
type tail struct {
	*liveHandler
	*call
	place     *place
	since     time.Time
	seen      map[string]time.Time // records and events since lookBack
	parts     []eventlog.Partition
	truncated bool
	tailed    time.Time // when parts were read
	end       int64     // of the log, when it was last seen to grow
	grew      time.Time
}

func (h *liveHandler) stream(c *call) (any, error) {
	p := h.enter(c.who.Workspace)
	if p == nil {
		return nil, fault.New(fault.Exhausted, "this instance has %d live streams open, which is its bound", maxLive).AtLimit("liveStreams", maxLive)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		defer h.leave(p)
		t := &tail{liveHandler: h, call: c, place: p, since: time.Now(), seen: map[string]time.Time{}, end: -1}
		out := sse.NewWriter(w, heartbeat)
		out.Start()
		t.run(out)
	}), nil
}

// run serves the stream. It ends without a message, because the client connects again.
func (t *tail) run(out *sse.Writer) {
	ctx, every := t.Context(), lookEvery
	if !t.db.Local() {
		every = lookRarely
	}
	end := time.Now().Add(liveFor)
	if deadline, ok := ctx.Deadline(); ok && deadline.Add(-every).Before(end) { // of a function
		end = deadline.Add(-every)
	}
	if out.Write(sse.Append(nil, sse.Event{Comment: " live"})) != nil {
		return
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	checked := time.Now()
	for last := checked; time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return
		case <-t.ends:
			return
		case <-t.place.taken:
			return
		case <-ticker.C:
		}
		if time.Since(checked) >= recheckEvery {
			if checked = time.Now(); !t.allowed() {
				return
			}
		}
		news, err := t.look()
		if err != nil {
			t.log.WarnContext(ctx, "live stream ended", "error", err)
			return
		}
		e := sse.Event{Comment: " quiet"}
		if news.Attempts > 0 || news.Published > 0 {
			data, _ := json.Marshal(news) // texts, times, numbers, and JSON that was valid
			e = sse.Event{Name: "tick", Data: data}
		} else if time.Since(last) < heartbeat {
			continue
		}
		if out.Write(sse.Append(nil, e)) != nil {
			return
		}
		last = time.Now()
	}
}

// allowed reports whether the caller may still see the workspace. While that cannot be decided, they may.
func (t *tail) allowed() bool {
	now, err := t.auth.Authenticate(t.Context(), t.Header)
	switch {
	case fault.Is(err, fault.Unauthenticated), fault.Is(err, fault.Forbidden):
		return false
	case err != nil:
		return true
	}
	return now.ID == t.who.ID && now.Workspace == t.who.Workspace && now.Has(auth.ScopeOperate)
}

// look finds what is new since the last look.
func (t *tail) look() (*tick, error) {
	now := time.Now()
	news := &tick{At: now.UTC(), Deliveries: []attemptView{}, Events: []eventView{}}
	ctx, workspace, from := t.Context(), t.who.Workspace, t.since.Add(-lookBack)
	found, _, err := records.List(ctx, t.db, workspace, records.Query{Span: records.Span{Since: from}}, "", mostCounted)
	if err != nil {
		return nil, err
	}
	first := t.end < 0 // what was there before is no news
	var fresh []records.Record
	for _, r := range found {
		key := r.Subscription + "#" + r.Event + "#" + r.At.String()
		if _, old := t.seen[key]; old {
			continue
		}
		t.seen[key] = now
		if !first || !r.At.Before(t.since) {
			fresh = append(fresh, r)
		}
	}
	news.figures = figuresOf(fresh)
	for _, r := range fresh[:min(len(fresh), shown)] {
		news.Deliveries = append(news.Deliveries, viewOfAttempt(r))
	}
	events, err := t.newEvents(now, from)
	if err != nil {
		return nil, err
	}
	for _, e := range events {
		key := e.Key()
		if _, old := t.seen[key]; old {
			continue
		}
		t.seen[key] = now
		if first && e.Published.Before(t.since) {
			continue
		}
		if news.Published++; news.Published <= shown {
			e.Data = nil
			news.Events = append(news.Events, viewOfEvent(e))
		}
	}
	news.Truncated = t.truncated
	t.since, t.end = now, max(t.end, 0)
	maps.DeleteFunc(t.seen, func(_ string, at time.Time) bool { return at.Before(now.Add(-4 * lookBack)) })
	return news, nil
}

// newEvents may have events that were there before.
func (t *tail) newEvents(now, from time.Time) (events []event.Event, err error) {
	if end := t.events.log.Position(); end != t.end { // always, if positions are times
		t.end, t.grew = end, now
	}
	if now.Sub(t.grew) > lookBack {
		return nil, nil
	}
	local := t.db.Local()
	if local || now.Sub(t.tailed) >= retail {
		if t.parts, t.truncated, err = t.events.tailed(t.call); err != nil {
			return nil, err
		}
		t.tailed = now
	}
	if !local {
		from = from.Add(lookBack - eventlog.Window)
	}
	events, _, err = t.events.log.Newest(t.Context(), t.parts, from, time.Time{}, "", mostCounted)
	return events, err
}
