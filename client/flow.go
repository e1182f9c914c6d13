package client

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
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

// flow hands a subscription's events to its function, in the same way for all modes. It never saves a cursor past an event
// that was not acknowledged.
type flow struct {
	sub   SubscribeOptions
	store Store
	key   string
	log   *slog.Logger

	ctx     context.Context // ends with the subscription; its cause is what failed
	fail    context.CancelCauseFunc
	slots   chan struct{} // held by the events that are handled now
	running sync.WaitGroup
	ahead   chan struct{} // held by the events in queue
	waiting atomic.Int64  // webhooks at the door
	flights singleflight.Group
	seen    *bounded.Map[string, struct{}]

	accepted chan struct{}         // closed when the server has accepted the subscription
	granted  atomic.Pointer[grant] // the last id and secret of a webhook

	cursor string // where reading continues, after the last event that was taken, whether handled or not
	begun  bool   // accepted is closed
	open   bool   // a stream was opened since the last failure

	mu    sync.Mutex
	queue []*step // what was taken, up to the oldest that is not acknowledged
	saved string
	held  bool // the saved cursor stays where it is
}

// hold stops the saved cursor or lets it move again.
func (f *flow) hold(held bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held = held
}

// pin saves a cursor and then stops the saved cursor there.
func (f *flow) pin(cursor string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held = false
	f.save(cursor)
	f.held = true
}

// step is an event, or a position without an event, that the saved cursor has not passed yet.
type step struct {
	cursor string
	done   bool
	event  bool // not only a position
}

// maxAhead limits how many events are handled while an older one is not acknowledged, for example because its command
// fails again and again. The saved cursor cannot pass that event, so a program that starts again handles the later ones
// a second time.
const maxAhead = 1000

// maxSeen is the number of a subscription's last events that are recognized when they arrive again.
const maxSeen = 10_000

// maxWaiting is how many webhooks of a subscription may wait for the function for events.
const maxWaiting = 1000

func newFlow(ctx context.Context, c *Client, s SubscribeOptions) (*flow, error) {
	f := &flow{
		sub: s, store: c.storeOf(s), key: c.storeKey(s), log: c.log,
		slots: make(chan struct{}, max(1, s.Concurrency)), ahead: make(chan struct{}, maxAhead),
		seen:     bounded.NewMap[string, struct{}](2 * maxSeen), // it may forget the older half
		accepted: make(chan struct{}),
	}
	if s.Name != "" {
		f.log = c.log.With("name", s.Name)
	}
	f.granted.Store(&grant{})
	f.ctx, f.fail = context.WithCancelCause(ctx)
	saved, err := f.store.Load(ctx, f.key)
	if err != nil {
		return nil, err
	}
	f.saved, f.cursor = saved, saved
	if saved == "" {
		f.cursor = s.Cursor
	}
	return f, nil
}

// storeKey returns the key of a subscription's cursor. It is the same for the same server, event type and arguments, and does
// not reveal the URL.
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

// once handles an event unless it was handled before. Publishers choose ids, so two events of different URIs or times may have
// the same id, and a subscription with open variables receives both.
func (f *flow) once(e Event) error {
	handle := func() error { return f.sub.Event(f.ctx, e) }
	if e.ID == "" { // nothing distinguishes it from others
		return handle()
	}
	return f.single(fmt.Sprintf("event %q %q %q", e.ID, e.URI, e.Time), handle)
}

// single calls do once per name, unless it fails. Concurrent calls share the outcome.
func (f *flow) single(name string, do func() error) error {
	_, err, _ := f.flights.Do(name, func() (any, error) {
		if _, seen := f.seen.Get(name); seen {
			return nil, nil
		}
		err := do()
		if err == nil {
			f.seen.Put(name, struct{}{})
		}
		return nil, err
	})
	return err
}

// spawn runs a function in a goroutine for which the end of the subscription waits. It refuses if the subscription has ended.
func (f *flow) spawn(do func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx.Err() != nil {
		return false
	}
	f.running.Go(do)
	return true
}

// end ends the subscription and waits for its goroutines.
func (f *flow) end(cause error) {
	f.fail(cause)
	f.mu.Lock() // a concurrent spawn either sees the end or has added its goroutine
	//lint:ignore SA2001 the lock only orders the two
	f.mu.Unlock()
	f.running.Wait()
}

// take starts to handle an event of a stream or a poll, and repeats the function until it acknowledges the event. It returns
// when the event has a slot.
func (f *flow) take(e Event) error {
	select {
	case f.ahead <- struct{}{}:
	default:
		f.log.Warn("waiting for an older event", "handled", maxAhead)
		select {
		case f.ahead <- struct{}{}:
		case <-f.ctx.Done():
			return context.Cause(f.ctx)
		}
	}
	select {
	case f.slots <- struct{}{}:
	case <-f.ctx.Done():
		return context.Cause(f.ctx)
	}
	s := f.push(e.Cursor, true)
	if !f.spawn(func() {
		defer func() { <-f.slots }()
		if f.retry(func() error { return f.once(e) }, "event", e.ID) == nil {
			f.finish(s)
		}
	}) {
		return context.Cause(f.ctx)
	}
	return nil
}

// retry repeats a function of the program until it succeeds or the subscription ends.
func (f *flow) retry(do func() error, attrs ...any) error {
	for failures := 0; f.ctx.Err() == nil; failures++ {
		err := do()
		if err == nil || f.ctx.Err() != nil {
			return err
		}
		f.log.Warn("handler failed, retrying", append(attrs, "error", err)...)
		_ = httpcall.Sleep(f.ctx, failures, 0) // or until ctx ends
	}
	return f.ctx.Err()
}

// gap reports a gap to the program and then continues from its cursor.
func (f *flow) gap(g Gap) error {
	err := f.announce(g)
	if err == nil {
		f.mark(g.Cursor)
	}
	return err
}

// announce reports a gap to the program.
func (f *flow) announce(g Gap) error {
	f.log.Warn("events missing after resume")
	if f.sub.Gap == nil {
		return nil
	}
	return f.retry(func() error { return f.sub.Gap(f.ctx, g) })
}

// mark notes a position without an event.
func (f *flow) mark(cursor string) {
	if cursor == "" {
		return
	}
	f.finish(f.push(cursor, false))
}

func (f *flow) push(cursor string, event bool) *step {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := &step{cursor: cursor, event: event}
	f.queue = append(f.queue, s)
	return s
}

// finish notes that a step is done. It saves the cursor of the last step of which all earlier ones are done.
func (f *flow) finish(s *step) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.done = true
	cursor := ""
	for len(f.queue) > 0 && f.queue[0].done {
		if f.queue[0].cursor != "" {
			cursor = f.queue[0].cursor
		}
		f.leave(f.queue[0])
		f.queue = f.queue[1:]
	}
	// Heartbeats behind a slow event become one step.
	if n := len(f.queue); n > 1 && f.queue[n-1].done && f.queue[n-2].done && !f.queue[n-1].event {
		if f.queue[n-1].cursor != "" {
			f.queue[n-2].cursor = f.queue[n-1].cursor
		}
		f.queue = f.queue[:n-1]
	}
	f.save(cursor)
}

// leave makes room for another event if the step that leaves the queue holds one.
func (f *flow) leave(s *step) {
	if s.event {
		<-f.ahead
	}
}

// settle saves a cursor that the server has declared safe, in a webhook or in the answer to a refresh.
func (f *flow) settle(cursor string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.save(cursor)
}

// save saves a cursor. The caller holds the lock. A cursor that cannot be saved ends the subscription, because its events
// would be lost in a restart.
func (f *flow) save(cursor string) {
	if cursor == "" || cursor == f.saved || f.held {
		return
	}
	if err := f.store.Save(context.WithoutCancel(f.ctx), f.key, cursor); err != nil {
		f.fail(err)
		return
	}
	f.saved = cursor
}

// position returns the cursor that was saved last.
func (f *flow) position() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.saved
}

// grant holds the server's id of a webhook subscription and its newest secret.
type grant struct{ id, secret string }

// started notes that the server has accepted the subscription, or a webhook's refresh.
func (f *flow) started(g grant) {
	if mode := f.sub.Mode; mode == ModePush || mode == ModePoll && !f.begun {
		f.log.Info("following", "mode", mode)
	}
	f.granted.Store(&g)
	if !f.begun {
		f.begun = true
		close(f.accepted)
	}
}

// ended returns a termination if the server refuses a subscription that it had accepted.
func (f *flow) ended(err error) error {
	if f.begun && (fault.Is(err, fault.NotFound) || fault.Is(err, fault.Forbidden) || fault.Is(err, fault.Unsupported)) {
		return &Terminated{Name: f.sub.Name, Err: err}
	}
	return err
}
