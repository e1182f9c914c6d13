package client

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/singleflight"

	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
)

// flow passes a subscription's events to the program's function and saves the cursor, in the same way for all modes.
//
// It never saves a cursor past an event that was not acknowledged. For example, suppose that the function handles events 1, 2 and 3 at
// the same time, and fails for event 2. The saved cursor stays after event 1 until event 2 succeeds, and then moves after event 3.
type flow struct {
	sub     SubscribeOptions
	cursors *cursorSaver
	log     *slog.Logger

	ctx      context.Context // ends with the subscription; its cause says why
	fail     context.CancelCauseFunc
	slots    chan struct{} // has an element for each running call of the program's function
	running  sync.WaitGroup
	capacity chan struct{} // has an element for each event in queue
	webhooks atomic.Int64
	handling singleflight.Group
	handled  *bounded.Map[string, struct{}] // the last acknowledged events, to recognize repetitions

	accepted chan struct{} // closed when the server has accepted the subscription
	granted  atomic.Pointer[grant]

	cursor  string // where reading continues: after the last event read, which may not be handled yet
	started bool
	open    bool  // the current attempt has opened a stream, so the next pause is short
	failed  error // why the last request failed

	mu    sync.Mutex
	queue []*step // the steps from the oldest unacknowledged event to the newest event or position
}

// step is an element of a flow's queue: an event, or only a position in the event log, for example from a heartbeat. It stays in the
// queue until it and all earlier steps are done. Then the saved cursor moves to it.
type step struct {
	cursor string
	done   bool
	event  bool
}

// maxAhead limits how many later events are handled while an older event is not acknowledged, for example because the program's function
// keeps failing for it. The saved cursor cannot pass the older event, so after a restart the program would handle the later events again.
const maxAhead = 1000

// maxHandled is how many acknowledged events a subscription remembers, so that it recognizes them if they arrive again.
const maxHandled = 10_000

// maxName limits the length, in bytes, of the text under which handleOnce remembers an event: its id, URI and time. A longer text is
// replaced by its hash, so that a server cannot fill the memory with long ids.
const maxName = 512

// maxWebhooks limits how many webhooks of a subscription are handled, or wait to be handled, at the same time. The handler refuses
// further webhooks with 503.
const maxWebhooks = 1000

func newFlow(ctx context.Context, c *Client, s SubscribeOptions) (*flow, error) {
	f := &flow{
		sub: s, cursors: &cursorSaver{store: c.chooseStore(s), key: c.storeKey(s)}, log: c.log,
		slots: make(chan struct{}, max(1, s.Concurrency)), capacity: make(chan struct{}, maxAhead),
		handled:  bounded.NewMap[string, struct{}](2 * maxHandled), // twice as many, because the map may drop half of its entries
		accepted: make(chan struct{}),
	}
	if s.Name != "" {
		f.log = c.log.With("name", s.Name)
	}
	f.granted.Store(&grant{})
	f.ctx, f.fail = context.WithCancelCause(ctx)
	f.cursors.ctx, f.cursors.fail = f.ctx, f.fail
	if err := f.cursors.load(ctx); err != nil {
		return nil, err
	}
	f.cursor = cmp.Or(f.cursors.savedCursor(), s.Cursor)
	return f, nil
}

// storeKey returns the key under which a subscription's cursor is stored, for example order.shipped-1f0c…. It depends only on the server,
// the event type and the arguments. It has a hash of the server's URL instead of the URL, which may contain a secret.
func (c *Client) storeKey(s SubscribeOptions) string {
	name := cmp.Or(s.Name, "uris")
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s", c.url, name, s.arguments))
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, name)
	return fmt.Sprintf("%.100s-%s", clean, hex.EncodeToString(sum[:8]))
}

// handleOnce calls the program's function for an event, unless the function has already acknowledged the event. It recognizes an event by
// id, URI and time. The id is not enough: publishers choose the ids, so events of two URIs may have the same id.
func (f *flow) handleOnce(e Event) error {
	handle := func() error { return f.sub.Event(f.ctx, e) }
	if e.ID == "" {
		return handle()
	}
	name := fmt.Sprintf("event %q %q %q", e.ID, e.URI, e.Time)
	if len(name) > maxName {
		sum := sha256.Sum256([]byte(name))
		name = "event " + hex.EncodeToString(sum[:])
	}
	return f.doOnce(name, handle)
}

// doOnce calls the function do, unless an earlier call of doOnce with the same name has succeeded. If several calls with the same name
// run at the same time, do runs only once, and all calls return its result.
func (f *flow) doOnce(name string, do func() error) error {
	_, err, _ := f.handling.Do(name, func() (any, error) {
		if _, seen := f.handled.Get(name); seen {
			return nil, nil
		}
		err := do()
		if err == nil {
			f.handled.Put(name, struct{}{})
		}
		return nil, err
	})
	return err
}

// spawn runs a function in a goroutine that finish waits for. It returns false, and does not run the function, if the subscription has
// ended.
func (f *flow) spawn(do func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx.Err() != nil {
		return false
	}
	f.running.Go(do)
	return true
}

// finish ends the subscription. It waits for the subscription's goroutines, and until the last cursor is saved.
func (f *flow) finish(cause error) {
	f.fail(cause)
	f.mu.Lock() // now a concurrent spawn either sees that ctx has ended or has added its goroutine
	//lint:ignore SA2001 the lock is taken only to wait for a concurrent spawn
	f.mu.Unlock()
	f.running.Wait()
	f.cursors.finish()
}

// startHandling starts a goroutine that handles an event of a stream or a poll. The goroutine calls the program's function until the
// function acknowledges the event.
//
// startHandling blocks while [SubscribeOptions.Concurrency] events are being handled, or while maxAhead events wait for an older one.
func (f *flow) startHandling(e Event) error {
	select {
	case f.capacity <- struct{}{}:
	default:
		f.log.Warn("waiting for an older event", "handled", maxAhead)
		select {
		case f.capacity <- struct{}{}:
		case <-f.ctx.Done():
			return context.Cause(f.ctx)
		}
	}
	select {
	case f.slots <- struct{}{}:
	case <-f.ctx.Done():
		return context.Cause(f.ctx)
	}
	s := f.enqueue(e.Cursor, true)
	if !f.spawn(func() {
		defer func() { <-f.slots }()
		if f.retry(func() error { return f.handleOnce(e) }, "event", e.ID) == nil {
			f.complete(s).wait() // wait in the slot for the save, so that a crash repeats only a few handled events
		}
	}) {
		return context.Cause(f.ctx)
	}
	return nil
}

// retry calls a function of the program until it succeeds or the subscription ends. The parameter attrs has attributes for log messages
// about failures.
func (f *flow) retry(do func() error, attrs ...any) error {
	for failures := 0; f.ctx.Err() == nil; failures++ {
		err := do()
		if err == nil || f.ctx.Err() != nil {
			return err
		}
		f.log.Warn("handler failed, retrying", append(attrs, "error", err)...)
		_ = httpcall.Sleep(f.ctx, failures, 0)
	}
	return f.ctx.Err()
}

// handleGap reports lost events to the program. If the gap has a cursor, it is a position after the lost events, and handleGap then
// advances to it. A webhook about lost events has a cursor before them, so [hook.resumeAt] handles it.
func (f *flow) handleGap(g Gap) error {
	err := f.reportGap(g)
	if err == nil {
		f.advance(g.Cursor)
	}
	return err
}

func (f *flow) reportGap(g Gap) error {
	f.log.Warn("events missing after resume")
	if f.sub.Gap == nil {
		return nil
	}
	return f.retry(func() error { return f.sub.Gap(f.ctx, g) })
}

// advance records a position that has no event, for example the position in a heartbeat. The saved cursor moves to this position when all
// earlier events are acknowledged.
func (f *flow) advance(cursor string) {
	if cursor == "" {
		return
	}
	f.complete(f.enqueue(cursor, false))
}

// enqueue appends a step to the queue: an event or, if the parameter event is false, only a position. The saved cursor cannot pass this
// step until complete is called for it.
func (f *flow) enqueue(cursor string, event bool) *step {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := &step{cursor: cursor, event: event}
	f.queue = append(f.queue, s)
	return s
}

// complete marks a step as done. Then it removes the steps at the front of the queue that are done, and begins to save the cursor of the
// last one that it removed. It returns this save, or nil if there is nothing to save.
func (f *flow) complete(s *step) *saving {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.done = true
	cursor := ""
	for len(f.queue) > 0 && f.queue[0].done {
		if f.queue[0].cursor != "" {
			cursor = f.queue[0].cursor
		}
		f.makeRoom(f.queue[0])
		f.queue = f.queue[1:]
	}
	// If the last two steps are done, and the last one is only a position, merge them. Otherwise heartbeats would fill the queue.
	if n := len(f.queue); n > 1 && f.queue[n-1].done && f.queue[n-2].done && !f.queue[n-1].event {
		if f.queue[n-1].cursor != "" {
			f.queue[n-2].cursor = f.queue[n-1].cursor
		}
		f.queue = f.queue[:n-1]
	}
	return f.cursors.start(cursor) // holding f.mu, so that the saves begin in the order of the queue
}

// makeRoom is called when the step s leaves the queue. If s has an event, makeRoom lets startHandling accept another event. Only events
// count towards maxAhead, so for a position makeRoom does nothing.
func (f *flow) makeRoom(s *step) {
	if s.event {
		<-f.capacity
	}
}

// saveSafe saves a cursor from a webhook, or from the response to a refresh of the subscription. It does not wait until the events in the
// queue are handled. The server sends such a cursor only after it has delivered, or given up, all events before the cursor.
func (f *flow) saveSafe(cursor string) { f.cursors.start(cursor).wait() }

// grant holds the id that the server gave to a webhook subscription, and the newest secret for its webhooks.
type grant struct{ id, secret string }

// markAccepted records that the server has accepted the subscription, or the refresh of a subscription.
func (f *flow) markAccepted(g grant) {
	if mode := f.sub.Mode; mode == ModePush || mode == ModePoll && !f.started {
		f.log.Info("following", "mode", mode)
	}
	f.granted.Store(&g)
	if !f.started {
		f.started = true
		close(f.accepted)
	}
}

// asTerminated returns a [Terminated] if err says that the server refuses a subscription that it had accepted before. Otherwise it
// returns err.
func (f *flow) asTerminated(err error) error {
	if errors.As(err, new(*Terminated)) {
		return err
	}
	if f.started && (fault.Is(err, fault.NotFound) || fault.Is(err, fault.Forbidden) || fault.Is(err, fault.Unsupported)) {
		return &Terminated{Name: f.sub.Name, Err: err}
	}
	return err
}
