package client

import (
	"context"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// cursorSaver saves the cursors of a subscription in a store. It saves them in the background, so that a slow store does not stop the
// subscription from reading and handling events. If several cursors arrive during a save, only the newest of them is saved next.
type cursorSaver struct {
	store Store
	key   string
	ctx   context.Context
	fail  context.CancelCauseFunc // ends the subscription

	mu      sync.Mutex
	saved   string
	running *saving // nil if no save is running
	next    *saving
	held    bool // start ignores new cursors, see hold
	hung    bool // the store did not save a cursor in time
}

type saving struct {
	cursor string
	done   chan struct{} // closed when the save has succeeded or failed, or was dropped
}

// wait waits until a save has ended. It does nothing if s is nil.
func (s *saving) wait() {
	if s != nil {
		<-s.done
	}
}

func (c *cursorSaver) savedCursor() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.saved
}

func (c *cursorSaver) load(ctx context.Context) error {
	saved, err := c.store.Load(ctx, c.key)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.saved = saved
	return nil
}

// hold stops c from saving new cursors if held is true, and lets c save them again if held is false. A save that is already running still
// completes, but a save that waits for it is dropped.
//
// The client stops the saving while it asks the server for lost events again. With a newer cursor in the store, a restarted client would
// skip these events.
func (c *cursorSaver) hold(held bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held = held; held {
		c.dropNext()
	}
}

// saveAndHold saves a cursor and waits until it is saved. Until hold(false) is called, start ignores all cursors.
func (c *cursorSaver) saveAndHold(cursor string) {
	c.mu.Lock()
	c.held = true
	c.dropNext()
	s := c.startLocked(cursor)
	c.mu.Unlock()
	s.wait()
}

// start begins to save a cursor, and returns a value with which the caller can wait for the end of the save.
//
// It returns nil if there is nothing to save: the cursor is empty or already saved, hold(true) is in effect, or the store did not save an
// earlier cursor in time.
func (c *cursorSaver) start(cursor string) *saving {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held {
		return nil
	}
	return c.startLocked(cursor)
}

// startLocked does the work of start even if c.held is true. saveAndHold needs this, because it sets c.held before it saves its own
// cursor. The caller holds c.mu.
func (c *cursorSaver) startLocked(cursor string) *saving {
	last, newest := c.last(), c.saved
	if last != nil {
		newest = last.cursor
	}
	switch {
	case cursor == "" || c.hung:
		return nil
	case cursor == newest:
		return last
	case c.running == nil:
		c.running = &saving{cursor: cursor, done: make(chan struct{})}
		go c.run()
	case c.next == nil:
		c.next = &saving{cursor: cursor, done: make(chan struct{})}
	default:
		c.next.cursor = cursor
	}
	return c.last()
}

// last returns the save that will end last, or nil if no save is running. A save that waits for the running one ends after it. If no save
// waits, last returns the running save. The caller holds c.mu.
func (c *cursorSaver) last() *saving {
	if c.next != nil {
		return c.next
	}
	return c.running
}

// dropNext removes the save that waits for the running one. The caller holds c.mu.
func (c *cursorSaver) dropNext() {
	if c.next != nil {
		close(c.next.done)
		c.next = nil
	}
}

// finish waits until the last save has ended. The caller must start no further save.
func (c *cursorSaver) finish() {
	c.mu.Lock()
	s := c.last()
	c.mu.Unlock()
	s.wait()
}

// run executes the running save, and then the saves that wait for it. If the store returns an error, run ends the subscription. Otherwise
// the subscription would continue without saving its position, and a restarted program would handle many events again.
//
// After a timeout, run does not call the store again. Otherwise the end of the subscription would have to wait for a second timeout.
func (c *cursorSaver) run() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.running != nil {
		cursor := c.running.cursor
		c.mu.Unlock()
		late, err := c.save(cursor)
		c.mu.Lock()
		switch {
		case err == nil:
			c.saved = cursor
		case late:
			c.hung = true
			c.dropNext()
			c.fail(fault.Wrap(fault.Unavailable, err, "the store did not save the cursor in time"))
		default:
			c.fail(err)
		}
		close(c.running.done)
		c.running, c.next = c.next, nil
	}
}

// saveTimeout limits how long the store may take to save a cursor while the subscription is running.
const saveTimeout = time.Minute

// save saves a cursor in the store. It does so even if the subscription has ended, because the cursor's event was acknowledged. The
// result late is true if the store took longer than saveTimeout or, after the end of the subscription, longer than drainTime.
//
// The time is limited because [Subscription.Close] and the responses to webhooks wait until the cursor is saved.
func (c *cursorSaver) save(cursor string) (late bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), saveTimeout)
	defer cancel()
	stop := context.AfterFunc(c.ctx, func() { time.AfterFunc(drainTime, cancel) })
	defer stop()
	err = c.store.Save(ctx, c.key, cursor)
	return ctx.Err() != nil, err
}
