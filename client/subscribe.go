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
	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
)

// The modes of delivery (SEP-3415, "Delivery Modes").
const (
	ModeWebhook = "webhook"
	ModePush    = "push"
	ModePoll    = "poll"
)

// SubscribeOptions say what to receive and what to do with it. Event is required, and either Name or URIs.
type SubscribeOptions struct {
	// Name is the name of an event type.
	Name string
	// Arguments bind variables of the event type and filter its events. They are any value that encodes as a JSON object.
	Arguments any
	// URIs subscribe to the events of URIs instead, for example event://orders/42/shipped, or event://orders for all below.
	// The modes are then a webhook of SEP-1803 and a stream of resource updates, and there are no polls.
	URIs []string
	// Mode is [ModeWebhook], [ModePush] or [ModePoll]. If it is empty, Subscribe chooses the first of these that the server
	// and this client both have.
	Mode string
	// Cursor is where to begin if the store has no cursor. If it is empty, the subscription begins now.
	Cursor string
	// Store keeps the cursor of this subscription; nil is the store of [Options].
	Store Store
	// Concurrency is how many events are handled at the same time. 0 means one, which keeps their order.
	Concurrency int

	// TTL is the lifetime to ask for; 0 leaves it to the server. The client refreshes the subscription in time. TTL, Rotate
	// and Unsubscribe are for webhooks of event types.
	TTL time.Duration
	// Rotate is the age at which a refresh replaces the webhook's secret; 0 is a day.
	Rotate time.Duration
	// Unsubscribe ends the subscription at the server when it ends here. Otherwise it stays until its lifetime ends, and the
	// server repeats the events of the meantime for minutes. Do not set it in a program that a new version replaces while it
	// runs, because both have the same subscription. Webhooks for URIs always end here and at the server.
	Unsubscribe bool

	// Event handles an event. Nil acknowledges it. After an error it is called again with growing pauses; to give an event
	// up, return nil. The context ends with the subscription. The sender of a webhook waits about ten seconds and then sends
	// it again. The client handles the event only once and remembers the outcome.
	Event func(context.Context, Event) error
	// Gap handles the loss of events; nil only logs it. The cursor moves on when Gap returns nil.
	Gap func(context.Context, Gap) error

	arguments json.RawMessage
}

// Event is an event as it arrived, in one form for all modes.
type Event struct {
	// Via is webhook (of SEP-1803), events (a webhook of MCP Events), poll, push, or stream (of resource updates).
	Via string `json:"via"`
	// ID identifies the event together with URI, also when it arrives again or in another mode. Use both as the key to make
	// effects idempotent, because publishers may choose the same id for events of two URIs.
	ID           string `json:"id,omitempty"`
	Name         string `json:"name,omitempty"`
	URI          string `json:"uri,omitempty"`
	Time         string `json:"time,omitempty"`
	Subscription string `json:"subscription,omitempty"`
	// Verified reports whether the signature of a webhook was checked. It is false only for servers that send unsigned
	// webhooks, and nil in other modes.
	Verified *bool           `json:"verified,omitempty"`
	Received time.Time       `json:"received"`
	Cursor   string          `json:"cursor,omitempty"`
	Data     json.RawMessage `json:"data"`
}

// Gap reports that the server no longer had, or gave up, events after a cursor. The client cannot find out which ones. Read
// the present state in another way, for example with a tool (SEP-3415, "Cursor Lifecycle"). A webhook subscription begins
// again at Cursor, so a server that only gave up deliveries sends those events again.
type Gap struct {
	// Name is the event type, and empty for URIs.
	Name string
	// Cursor is where the subscription continues.
	Cursor string
}

// Terminated is the error of a subscription that the server has ended, for example because access was revoked or the event
// type was removed (SEP-3415, "Subscription Termination").
type Terminated struct {
	// Name is the event type.
	Name string
	// Err is the server's reason.
	Err error
}

func (t *Terminated) Error() string { return "the server ended the subscription: " + t.Err.Error() }

// Unwrap returns the server's reason.
func (t *Terminated) Unwrap() error { return t.Err }

// terminated returns the error of a subscription that the server ended, perhaps with a reason.
func terminated(name string, e *rpcError) *Terminated {
	if e == nil {
		return &Terminated{Name: name, Err: fault.New(fault.Forbidden, "it gave no reason")}
	}
	return &Terminated{Name: name, Err: e.fault(http.StatusOK)}
}

// Subscription is a running subscription. It ends when the context of [Client.Subscribe] ends, when it is closed, or when it
// fails. Its methods may be called concurrently.
type Subscription struct {
	flow   *flow
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// Mode returns the mode that was chosen.
func (s *Subscription) Mode() string { return s.flow.sub.Mode }

// ID returns the server's id of a webhook subscription. It is empty in other modes.
func (s *Subscription) ID() string { return s.flow.granted.Load().id }

// Secret returns the newest secret with which the server signs webhooks. It is empty for unsigned ones and in other modes.
func (s *Subscription) Secret() string { return s.flow.granted.Load().secret }

// Done returns a channel that is closed when the subscription has ended and no function for events runs anymore.
func (s *Subscription) Done() <-chan struct{} { return s.done }

// Err returns nil before Done is closed, and afterwards the reason: nil if the context ended or Close was called, a
// [Terminated], the error of the [Store], or a refusal that does not change by trying again.
func (s *Subscription) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

// Close ends the subscription, waits for the function for events, and returns [Subscription.Err]. A function for events
// must not call it, because it would wait for itself; it can cancel the context of [Client.Subscribe].
func (s *Subscription) Close() error {
	s.cancel()
	<-s.done
	return s.err
}

// Subscribe subscribes and returns when the server has accepted the subscription. While the server does not answer, it tries
// again until ctx ends. Events may arrive before Subscribe returns. The subscription ends when ctx ends.
//
// The subscription survives interruptions and restarts of the server. It handles each event at least once and recognizes
// repetitions of its last ten thousand events.
func (c *Client) Subscribe(ctx context.Context, o SubscribeOptions) (*Subscription, error) {
	if err := c.check(ctx, &o); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	f, err := newFlow(ctx, c, o)
	if err != nil {
		cancel()
		return nil, err
	}
	s := &Subscription{flow: f, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.err = c.run(ctx, f)
		cancel()
	}()
	select {
	case <-f.accepted:
		return s, nil
	case <-s.done:
	}
	select {
	case <-f.accepted: // and it has ended since then
		return s, nil
	default:
	}
	if s.err == nil {
		return nil, ctx.Err()
	}
	return nil, s.err
}

// run receives events until the subscription ends, and returns why it ended.
func (c *Client) run(ctx context.Context, f *flow) (err error) {
	byURI := len(f.sub.URIs) > 0
	switch {
	case f.sub.Mode == ModeWebhook && byURI:
		err = c.register(f)
	case f.sub.Mode == ModeWebhook:
		err = c.webhook(f)
	case f.sub.Mode == ModePush && byURI:
		err = c.listen(f)
	case f.sub.Mode == ModePush:
		err = f.follow(func() (time.Duration, error) { return c.push(f) })
	default:
		err = f.follow(func() (time.Duration, error) { return c.poll(f) })
	}
	if ctx.Err() == nil && f.ctx.Err() != nil {
		err = context.Cause(f.ctx)
	}
	f.end(err)
	if ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err()) || f.begun && Retryable(err)) {
		return nil
	}
	return err
}

// check completes the options, or says what is wrong with them.
func (c *Client) check(ctx context.Context, o *SubscribeOptions) (err error) {
	if (o.Name == "") == (len(o.URIs) == 0) || o.Event == nil {
		return fault.New(fault.Invalid, "a subscription needs the name of an event type or URIs, and a function for its events")
	}
	if len(o.URIs) > 0 {
		return c.checkURIs(o)
	}
	o.arguments = json.RawMessage("{}")
	if o.Arguments != nil {
		if o.arguments, err = canonical(o.Arguments); err != nil {
			return err
		}
	}
	if o.Mode == "" {
		o.Mode, err = c.best(ctx, o.Name)
	} else {
		err = c.can(o.Mode)
	}
	return err
}

// canonical encodes arguments with sorted members, so that equal arguments have equal texts.
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

// follow repeats polls or streams until the subscription ends. Once returns how long to wait before the next one.
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
			wait = max(wait, httpcall.Backoff(failures))
			failures++
		}
		if periodic.Sleep(f.ctx, wait) != nil {
			return context.Cause(f.ctx)
		}
	}
}

// transient reports whether to try again after an error. Once the server has accepted the subscription, the response of a
// proxy that has no backend is transient, too. Before, it means that the URL is wrong.
func (f *flow) transient(err error) bool {
	return Retryable(err) || f.begun && httpcall.FromProxy(err)
}

// params returns the parameters of events/poll and events/stream.
func (f *flow) params() map[string]any {
	params := map[string]any{"name": f.sub.Name, "arguments": f.sub.arguments, "cursor": nil}
	if f.cursor != "" {
		params["cursor"] = f.cursor
	}
	return params
}
