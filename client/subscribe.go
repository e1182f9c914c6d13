package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// The modes of delivery (SEP-3415, "Delivery Modes").
const (
	ModeWebhook = spec.ModeWebhook
	ModePush    = spec.ModePush
	ModePoll    = spec.ModePoll
)

// Subscription says what to receive of an event type, and what to do with it. Name and Event are required.
type Subscription struct {
	// Name is that of the event type.
	Name string
	// Arguments bind its variables and filter: what encodes as a JSON object; nil is none.
	Arguments any
	// Mode is [ModeWebhook], [ModePush] or [ModePoll]; empty is the first of these that the event type and this
	// client have.
	Mode string
	// Cursor is where to begin when the store has no cursor; empty is from now on.
	Cursor string
	// Store keeps the cursor of this subscription; nil is the store of [Options].
	Store Store
	// Concurrency is how many events are handled at once; 0 is one, which keeps their order.
	Concurrency int

	// TTL is the lifetime of a webhook subscription to ask for; 0 leaves it to the server. It is refreshed after
	// between half and three quarters of what was granted.
	TTL time.Duration
	// Rotate is the age at which a refresh replaces the webhook's secret; 0 is a day.
	Rotate time.Duration
	// Unsubscribe ends a webhook subscription at the server when ctx ends. Without it the subscription stays until its
	// lifetime ends, and the server retries the events of the meantime for minutes. Do not set it in a program that is
	// replaced while it runs: the new version has the same subscription, which the end of the old one would end.
	Unsubscribe bool

	// Event handles an event. Nil acknowledges it: the cursor moves, and the event does not come again. After an
	// error it comes again, at growing intervals; whoever wants to give an event up returns nil. Its context ends
	// with the subscription. A webhook's sender waits for it for about ten seconds, and comes again later; the
	// outcome is remembered.
	Event func(context.Context, Event) error
	// Gap learns that events were lost; nil only logs it. The cursor moves on when it returns nil.
	Gap func(context.Context, Gap) error
	// Begun is called once the server has accepted the subscription; it may be nil.
	Begun func(Begun)

	arguments json.RawMessage
}

// Begun says how a subscription began.
type Begun struct {
	Mode string
	// ID is the server's name of a webhook subscription, and Secret what its webhooks are signed with first.
	ID, Secret string
}

// Gap says that a server no longer had, or gave up, events after the cursor that it was given. What they were can
// only be found by other means, such as a tool that lists the present state (SEP-3415, "Cursor Lifecycle"). A webhook
// subscription is made anew from Cursor then: a server that only gave up delivering sends those events again.
type Gap struct {
	// Name is the event type.
	Name string
	// Cursor is where the subscription goes on.
	Cursor string
}

// Terminated is the error of a subscription that the server has ended, such as when access was revoked or the
// event type removed (SEP-3415, "Subscription Termination"). Subscribing again may help after the reason is gone.
type Terminated struct {
	Name string
	// Err is the server's reason.
	Err error
}

func (t *Terminated) Error() string { return "the server ended the subscription: " + t.Err.Error() }

// Unwrap returns the server's reason.
func (t *Terminated) Unwrap() error { return t.Err }

// terminated is the end of a subscription for a reason that the server may have given.
func terminated(name string, e *rpcError) *Terminated {
	if e == nil {
		return &Terminated{Name: name, Err: fault.New(fault.Forbidden, "it gave no reason")}
	}
	return &Terminated{Name: name, Err: e.fault(http.StatusOK)}
}

// Subscribe receives events until ctx ends, and then returns nil. It goes on after disconnects and restarts of the
// server, at growing intervals, from its cursor. Each event is handled at least once, and those of the last ten
// thousand not twice by the same call; after a kill of the program some come again, by the same [Event.ID].
//
// The error is a [Terminated]; that of the [Store]; or a refusal that trying again does not mend, with a kind of
// package fault. It returns when no handler runs any more.
func (c *Client) Subscribe(ctx context.Context, s Subscription) error {
	if err := c.check(ctx, &s); err != nil {
		return err
	}
	f, err := newFlow(ctx, c, s)
	if err != nil {
		return err
	}
	switch s.Mode {
	case ModeWebhook:
		err = c.webhook(f)
	case ModePush:
		err = f.follow(func() (time.Duration, error) { return c.push(f) })
	default:
		err = f.follow(func() (time.Duration, error) { return c.poll(f) })
	}
	if ctx.Err() == nil && f.ctx.Err() != nil {
		err = context.Cause(f.ctx)
	}
	f.end(err)
	if ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err()) || Again(err)) {
		return nil
	}
	return err
}

// check completes a subscription, or says what is wrong with it.
func (c *Client) check(ctx context.Context, s *Subscription) (err error) {
	if s.Name == "" || s.Event == nil {
		return fault.New(fault.Invalid, "a subscription needs the name of an event type, and a function for its events")
	}
	s.arguments = json.RawMessage("{}")
	if s.Arguments != nil {
		if s.arguments, err = canonical(s.Arguments); err != nil {
			return err
		}
	}
	if s.Mode == "" {
		s.Mode, err = c.best(ctx, s.Name)
	} else {
		err = c.can(s.Mode)
	}
	return err
}

// canonical encodes arguments with sorted members, so that the same ones are the same text.
func canonical(arguments any) (json.RawMessage, error) {
	b, err := json.Marshal(arguments)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "encode the arguments")
	}
	var object map[string]any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber() // large integers stay what they are
	if err := d.Decode(&object); err != nil || object == nil {
		return nil, fault.New(fault.Invalid, "the arguments are not a JSON object")
	}
	return json.Marshal(object)
}

// follow repeats polls, or streams, until the subscription ends. Once returns how long to wait before the next.
func (f *flow) follow(once func() (time.Duration, error)) error {
	for failures := 0; ; {
		f.open = false
		wait, err := once()
		switch {
		case f.ctx.Err() != nil:
			return context.Cause(f.ctx)
		case err != nil && !f.transient(err):
			return f.ended(err)
		}
		if err == nil || f.open {
			failures = 0
		}
		if err != nil {
			f.log.Warn("request failed, retrying", "mode", f.sub.Mode, "error", err)
			wait = backoff(failures)
			failures++
		}
		if periodic.Sleep(f.ctx, wait) != nil {
			return context.Cause(f.ctx)
		}
	}
}

// transient reports whether to try again after an error. Once the server has accepted the subscription, an answer of a
// proxy that has no backend for a moment is transient, too; before, it means that the URL is wrong.
func (f *flow) transient(err error) bool {
	return Again(err) || f.begun && byProxy(err)
}

// params are those of events/poll and events/stream.
func (f *flow) params() map[string]any {
	params := map[string]any{"name": f.sub.Name, "arguments": f.sub.arguments, "cursor": nil}
	if f.cursor != "" {
		params["cursor"] = f.cursor
	}
	return params
}
