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
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// A live stream polls the delivery log and the event log. A poll reads a limited number of items, shows the newest and only counts the
// rest.
const (
	maxLive = 20              // streams of a process
	liveFor = 5 * time.Minute // maximum age of a stream
	// pollRarely is the interval between polls of a store that charges for each request.
	pollEvery  = 500 * time.Millisecond
	pollRarely = 3 * time.Second
	// lookBack is how far each poll looks back before the time of the previous poll. This is necessary because a record or an event can
	// become readable up to lookBack after its own time. In the event log on DynamoDB, this delay can be as long as [eventlog.Window].
	lookBack  = 3 * time.Second
	maxTailed = 25               // partitions of the event log that a stream reads
	shown     = 20               // maximum number of attempts, and of events, in a message of a stream
	heartbeat = 15 * time.Second // maximum time without a message
	// findURIsEvery is how often a live stream looks for URIs with new events, if each request to the store costs money. Otherwise, each
	// poll looks for them.
	findURIsEvery = 30 * time.Second
)

// recheckEvery is how often a live stream checks that its caller may still read it.
var recheckEvery = 5 * time.Second

type tick struct {
	At time.Time `json:"at"`
	figures
	Published int `json:"published"`
	// Deliveries and Events are the newest items since the previous message, at most [shown] of each kind and the newest first. The
	// events have no payloads.
	Deliveries []attemptView `json:"deliveries"`
	Events     []eventView   `json:"events"`
	// Truncated is true if the stream does not read all partitions of the event log, for example because there are more than [maxTailed].
	// Events may then be missing.
	Truncated bool `json:"truncated"`
}

type liveHandler struct {
	events  *eventHandlers
	auth    auth.Authenticator
	db      store.DB
	closing <-chan struct{}
	log     *slog.Logger

	mu   sync.Mutex
	open []*liveSlot // oldest first
}

type liveSlot struct {
	workspace string
	revoked   chan struct{} // closed when another workspace gets the slot
}

// reserve returns a slot for a new live stream of a workspace. If all slots are in use, reserve takes the slot of the oldest stream in
// the workspace with the most streams.
//
// It does so only if that workspace has at least two streams more than the workspace of the new stream, and otherwise returns nil. With a
// smaller difference, the two workspaces would take the same slot from each other in turn.
func (h *liveHandler) reserve(workspace string) *liveSlot {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.open) >= maxLive {
		has := map[string]int{}
		for _, s := range h.open {
			has[s.workspace]++
		}
		oldest := h.open[0]
		for _, s := range h.open {
			if has[s.workspace] > has[oldest.workspace] {
				oldest = s
			}
		}
		if has[oldest.workspace] <= has[workspace]+1 {
			return nil
		}
		close(oldest.revoked)
		h.open = slices.DeleteFunc(h.open, func(s *liveSlot) bool { return s == oldest })
	}
	s := &liveSlot{workspace: workspace, revoked: make(chan struct{})}
	h.open = append(h.open, s)
	return s
}

func (h *liveHandler) release(s *liveSlot) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open = slices.DeleteFunc(h.open, func(other *liveSlot) bool { return other == s })
}

type tail struct {
	*liveHandler
	*call
	slot      *liveSlot
	since     time.Time            // the time of the previous poll
	seen      map[string]time.Time // when a poll read a record or an event first; entries are dropped after some seconds
	parts     []eventlog.Partition
	truncated bool
	tailed    time.Time
	end       int64 // the position at the end of the log; negative before the first poll
	grew      time.Time
}

func (h *liveHandler) stream(c *call) (any, error) {
	slot := h.reserve(c.principal.Workspace)
	if slot == nil {
		return nil, fault.New(fault.Exhausted, "this instance has too many live streams (allowed: %d)", maxLive).AtLimit("liveStreams", maxLive)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		defer h.release(slot)
		t := &tail{liveHandler: h, call: c, slot: slot, since: time.Now(), seen: map[string]time.Time{}, end: -1}
		out := sse.NewWriter(w, heartbeat)
		out.Start()
		t.run(out)
	}), nil
}

// run serves the stream until it has reached its maximum age, its caller loses access, or a poll fails. Then it closes the stream without
// a message that says why, because clients reconnect by themselves.
func (t *tail) run(out *sse.Writer) {
	ctx, every := t.Context(), pollEvery
	if !t.db.Local() {
		every = pollRarely
	}
	end := time.Now().Add(liveFor)
	if deadline, ok := ctx.Deadline(); ok && deadline.Add(-every).Before(end) { // end the stream before Lambda ends the invocation
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
		case <-t.closing:
			return
		case <-t.slot.revoked:
			return
		case <-ticker.C:
		}
		if time.Since(checked) >= recheckEvery {
			if checked = time.Now(); !t.mayContinue() {
				return
			}
		}
		news, err := t.poll()
		if err != nil {
			t.log.WarnContext(ctx, "live stream ended", "error", err)
			return
		}
		e := sse.Event{Comment: " quiet"}
		if news.Attempts > 0 || news.Published > 0 {
			data, _ := json.Marshal(news)
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

// mayContinue reports whether the caller of the stream may still see the workspace. If the permission cannot be checked, for example
// because the token's issuer is unreachable, it returns true.
func (t *tail) mayContinue() bool {
	now, err := t.auth.Authenticate(t.Context(), t.Header)
	switch {
	case fault.Is(err, fault.Unauthenticated), fault.Is(err, fault.Forbidden):
		return false
	case err != nil:
		return true
	}
	return now.ID == t.principal.ID && now.Workspace == t.principal.Workspace && now.Has(auth.ScopeOperate)
}

func (t *tail) poll() (*tick, error) {
	now := time.Now()
	news := &tick{At: now.UTC(), Deliveries: []attemptView{}, Events: []eventView{}}
	ctx, workspace, from := t.Context(), t.principal.Workspace, t.since.Add(-lookBack)
	found, _, err := records.List(ctx, t.db, workspace, records.Query{Span: records.Span{Since: from}}, "", maxCounted)
	if err != nil {
		return nil, err
	}
	first := t.end < 0 // the first poll also finds items from before the stream, which it does not send
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
	news.figures = summarize(fresh)
	fresh = fresh[:min(len(fresh), shown)]
	for _, r := range fresh {
		news.Deliveries = append(news.Deliveries, t.call.viewOfAttempt(r))
	}
	if err := t.events.visible.addTargets(t.call, fresh, news.Deliveries); err != nil {
		return nil, err
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

// newEvents returns the events between the times from and now. They may include events that earlier polls have returned.
func (t *tail) newEvents(now, from time.Time) (events []event.Event, err error) {
	// A log that has not grown for lookBack need not be read. A log without a total order is always read, because its position follows
	// the clock and differs in every poll.
	if end := t.events.log.Position(); end != t.end {
		t.end, t.grew = end, now
	}
	if now.Sub(t.grew) > lookBack {
		return nil, nil
	}
	local := t.db.Local()
	if local || now.Sub(t.tailed) >= findURIsEvery {
		if t.parts, t.truncated, err = t.events.tailedPartitions(t.call); err != nil {
			return nil, err
		}
		t.tailed = now
	}
	if !local {
		from = from.Add(lookBack - eventlog.Window)
	}
	return t.events.log.NewestBatches(t.Context(), t.parts, from, maxCounted)
}
