package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
)

// These are the modes in which events arrive (SEP-3415, "Delivery Modes").
const (
	ModeWebhook = "webhook"
	ModePush    = "push"
	ModePoll    = "poll"
)

// SubscribeOptions select the events to receive, and the function that handles them. Set either Name or URIs. The field Event is
// required, unless Endpoint is set.
type SubscribeOptions struct {
	// Name is the name of an event type.
	Name string
	// Arguments set variables of the event type, and filter its events, for example map[string]string{"carrier": "DHL"}. Any value that
	// encodes as a JSON object is allowed.
	Arguments any
	// URIs select events by their URI instead of their event type. For example, event://orders/42/shipped selects the events of one
	// URI, and event://orders the events of all URIs below it. The events arrive as webhooks of SEP-1803 ([ModeWebhook]) or in a
	// stream of resource updates ([ModePush]). [ModePoll] is not available.
	URIs []string
	// Mode is [ModeWebhook], [ModePush] or [ModePoll]. If it is empty, Subscribe chooses the first of these modes that both the server
	// and this client support.
	Mode string
	// Cursor is the position at which to begin if the store has no cursor. If it is empty, the subscription begins with the next event.
	Cursor string
	// Store saves the cursor of this subscription. If it is nil, the store of [Options] is used.
	Store Store
	// Concurrency is how many events are handled at the same time. 0 means one, so that events are handled in their order.
	Concurrency int

	// TTL is the requested lifetime of a webhook subscription. If it is 0, the server chooses the lifetime. The client refreshes the
	// subscription before the lifetime is over. TTL, Rotate and Unsubscribe apply only to webhooks of event types.
	TTL time.Duration
	// Rotate is the age after which the next refresh replaces the webhook's secret. 0 means a day.
	Rotate time.Duration
	// Unsubscribe makes the client end the subscription at the server when it ends in this program. Otherwise the server keeps the
	// subscription until its lifetime is over. Meanwhile, it tries for some minutes to deliver each event, so that a restarted program
	// receives the event.
	//
	// Do not set Unsubscribe if two versions of the program overlap during a deployment, because both use the same subscription. The
	// client always ends webhook subscriptions for URIs at the server.
	Unsubscribe bool
	// Endpoint is a webhook endpoint outside of this program, for example a function that runs only while a webhook arrives. It replaces
	// [Options.Webhooks]. Subscribe then only creates and refreshes the subscription. The endpoint verifies webhooks, answers challenges,
	// and saves cursors in the subscription's Store. The function Event is never called.
	Endpoint *Endpoint

	// Event handles an event. It acknowledges the event by returning nil. After an error, the client calls it again, with growing pauses.
	// To skip an event that cannot be handled, return nil. The context ends with the subscription.
	//
	// Event may take longer than the ten seconds after which the sender of a webhook repeats the event. The client does not call Event
	// for the repetition. It answers the repetition with the result of the first call.
	Event func(context.Context, Event) error
	// Gap is called when events were lost. After an error, the client calls it again, with growing pauses. On a stream or with polls, the
	// saved cursor moves past the lost events only when Gap returns nil. If Gap is nil, the loss is only logged.
	Gap func(context.Context, Gap) error

	arguments json.RawMessage
}

// Endpoint is a webhook endpoint outside of this program. If a caller subscribes twice to the same event type with the same arguments and
// the same URL, the server treats both as one subscription. So a program can continue the subscription of another program.
type Endpoint struct {
	// URL is the URL to which the server sends webhooks.
	URL string
	// Secret returns the secret for the next registration or refresh. The endpoint must accept webhooks with this secret before Secret
	// returns. If it is a new secret, the endpoint must accept the previous one for some more time, too.
	Secret func(context.Context) (string, error)
	// Accepted is called after the server has accepted a registration or a refresh. It gets the server's id of the subscription and the
	// end of the subscription's lifetime, which is zero if the lifetime is unlimited. Accepted may be nil.
	Accepted func(ctx context.Context, id string, until time.Time) error
	// Resume makes the server send all events after the saved cursor. Without Resume, a server that still has the subscription ignores
	// the cursor, and sends only events that it has not delivered yet.
	Resume bool
}

// Event is a received event. It has the same form in all modes.
type Event struct {
	// Via says how the event arrived:
	//
	//   - "webhook": a webhook of SEP-1803
	//   - "events": a webhook of MCP Events
	//   - "poll": a response to events/poll
	//   - "push": the stream of events/stream
	//   - "stream": a stream of resource updates, for subscriptions by URI
	Via string `json:"via"`
	// ID and URI together identify the event, even if it arrives again or in another mode. Use both as the key to make effects
	// idempotent, because publishers may choose the same id for events of two URIs.
	ID           string `json:"id,omitempty"`
	Name         string `json:"name,omitempty"`
	URI          string `json:"uri,omitempty"`
	Time         string `json:"time,omitempty"`
	Subscription string `json:"subscription,omitempty"`
	// Verified is true for a webhook with a valid signature, and false if the server sends unsigned webhooks. It is nil for events that
	// arrive in another mode.
	Verified *bool           `json:"verified,omitempty"`
	Received time.Time       `json:"received"`
	Cursor   string          `json:"cursor,omitempty"`
	Data     json.RawMessage `json:"data"`
}

// Gap reports that events were lost. The server no longer had the events after a cursor, or it gave up their delivery, or the stream of a
// server without cursors was interrupted. The client cannot find out which events were lost. Read the current state in another way, for
// example with a tool (SEP-3415, "Cursor Lifecycle").
//
// A webhook subscription continues at Cursor. If the server still has the events whose delivery it had given up, they arrive again.
type Gap struct {
	// Name is the name of the event type. It is empty if the subscription is for URIs.
	Name string
	// Cursor is the position at which the subscription continues.
	Cursor string
}

// Subscription is a running subscription. It ends when the context of [Client.Subscribe] ends, when it is closed, or when it
// fails. Its methods may be called concurrently.
type Subscription struct {
	flow   *flow
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// Mode returns the mode in which events arrive, for example [ModeWebhook].
func (s *Subscription) Mode() string { return s.flow.sub.Mode }

// ID returns the server's id of a webhook subscription. It is empty in other modes.
func (s *Subscription) ID() string { return s.flow.granted.Load().id }

// Secret returns the newest secret with which the server signs webhooks. It is empty for unsigned webhooks and in other modes.
func (s *Subscription) Secret() string { return s.flow.granted.Load().secret }

// Done returns a channel that is closed when the subscription has ended and all calls of [SubscribeOptions.Event] have returned.
func (s *Subscription) Done() <-chan struct{} { return s.done }

// Err returns the reason why the subscription has ended: a [Terminated], the error of the [Store], or a permanent refusal by the server.
// It returns nil while the subscription runs, after Close, and if the context has ended.
func (s *Subscription) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

// Close ends the subscription, waits until [SubscribeOptions.Event] has returned, and returns [Subscription.Err]. The function Event must
// not call Close, because Close would wait for it forever. It can cancel the context of [Client.Subscribe] instead.
func (s *Subscription) Close() error {
	s.cancel()
	<-s.done
	return s.err
}

// Subscribe starts a subscription, and returns when the server has accepted it. Events may arrive before Subscribe returns. The
// subscription ends when ctx ends.
//
// If the server does not answer, Subscribe tries again until ctx ends. Two requests are tried only five times: the registration of a
// webhook for URIs, and the list of event types, which Subscribe needs if Mode is empty.
//
// The subscription survives interruptions and restarts of the server. It handles each event at least once, and recognizes its last ten
// thousand events if they arrive again.
func (c *Client) Subscribe(ctx context.Context, o SubscribeOptions) (*Subscription, error) {
	if err := c.completeOptions(ctx, &o); err != nil {
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
	case <-f.accepted: // the server accepted the subscription, so Subscribe succeeds, although the subscription has already ended
		return s, nil
	default:
	}
	if s.err == nil && f.failed != nil {
		return nil, withReason(ctx, f.failed)
	}
	if s.err == nil {
		return nil, ctx.Err()
	}
	return nil, s.err
}

func (c *Client) run(ctx context.Context, f *flow) (err error) {
	byURI := len(f.sub.URIs) > 0
	switch {
	case f.sub.Mode == ModeWebhook && byURI:
		err = c.receiveRegistered(f)
	case f.sub.Mode == ModeWebhook:
		err = c.receiveWebhooks(f)
	case f.sub.Mode == ModePush && byURI:
		err = c.receiveUpdates(f)
	case f.sub.Mode == ModePush:
		err = f.repeat(func() (time.Duration, error) { return c.streamOnce(f) })
	default:
		err = f.repeat(func() (time.Duration, error) { return c.pollOnce(f) })
	}
	if ctx.Err() == nil && f.ctx.Err() != nil {
		err = context.Cause(f.ctx)
	}
	f.finish(err)
	if ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err()) || f.started && Retryable(err)) {
		return nil
	}
	return err
}

func (c *Client) completeOptions(ctx context.Context, o *SubscribeOptions) (err error) {
	if (o.Name == "") == (len(o.URIs) == 0) || o.Event == nil && o.Endpoint == nil {
		return fault.New(fault.Invalid, "a subscription needs the name of an event type or URIs, and a function for its events")
	}
	if len(o.URIs) > 0 && o.Endpoint != nil {
		return fault.New(fault.Invalid, "an endpoint is for an event type, not for URIs")
	}
	if len(o.URIs) > 0 {
		return c.completeURIOptions(o)
	}
	o.arguments = json.RawMessage("{}")
	if o.Arguments != nil {
		if o.arguments, err = encodeCanonical(o.Arguments); err != nil {
			return err
		}
	}
	switch {
	case o.Endpoint != nil:
		o.Mode = ModeWebhook
		if o.Endpoint.URL == "" || o.Endpoint.Secret == nil {
			err = fault.New(fault.Invalid, "an endpoint needs a URL and a function for its secret")
		}
	case o.Mode == "":
		o.Mode, err = c.chooseMode(ctx, o.Name)
	default:
		err = c.checkMode(o.Mode)
	}
	return err
}

// chooseMode chooses the mode for an event type. Its first choice is a webhook, which needs a connection only while an event arrives. The
// second choice is a stream, because its events arrive immediately. Polls are the last choice.
func (c *Client) chooseMode(ctx context.Context, name string) (string, error) {
	types, err := c.EventTypes(ctx)
	if err != nil {
		return "", err
	}
	at := slices.IndexFunc(types, func(t EventType) bool { return t.Name == name })
	if at < 0 {
		return "", fault.New(fault.NotFound, "unknown event type %q: the server does not list it for this caller", name)
	}
	for _, mode := range []string{ModeWebhook, ModePush, ModePoll} {
		if slices.Contains(types[at].Delivery, mode) && c.checkMode(mode) == nil {
			return mode, nil
		}
	}
	return "", fault.New(fault.Unsupported, "%s is delivered by %v, which this client cannot use", name, types[at].Delivery)
}

func (c *Client) checkMode(mode string) error {
	switch {
	case mode == ModePoll, mode == ModePush && c.isStateless(), mode == ModeWebhook && c.options.Webhooks != nil:
		return nil
	case mode == ModePush:
		return fault.New(fault.Unsupported, "mode push needs revision 2026-07-28, and this server speaks %s", c.version)
	case mode == ModeWebhook:
		return fault.New(fault.Invalid, "mode webhook needs Options.Webhooks, a handler that the server can reach")
	}
	return fault.New(fault.Invalid, "%q is not a mode (allowed: webhook, push, poll)", mode)
}

// encodeCanonical encodes arguments as JSON with sorted members, so that equal arguments have equal texts.
func encodeCanonical(arguments any) (json.RawMessage, error) {
	b, err := json.Marshal(arguments)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "encode the arguments")
	}
	var object map[string]any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber() // keeps large integers exact
	if err := d.Decode(&object); err != nil || object == nil {
		return nil, fault.New(fault.Invalid, "the arguments are not a JSON object")
	}
	return json.Marshal(object)
}

// repeat calls the function attempt until the subscription ends. The function returns how long to wait before the next call.
func (f *flow) repeat(attempt func() (time.Duration, error)) error {
	for failures := 0; ; {
		f.open = false
		wait, err := attempt()
		switch {
		case f.ctx.Err() != nil:
			return context.Cause(f.ctx)
		case err != nil && !f.isTransient(err):
			return f.asTerminated(err)
		}
		if err == nil || f.open {
			failures = 0
		}
		if err != nil {
			f.failed = err
			f.log.Warn("request failed, retrying", "mode", f.sub.Mode, "error", err)
			wait = max(wait, httpcall.Backoff(failures))
			failures++
		}
		if periodic.Sleep(f.ctx, wait) != nil {
			return context.Cause(f.ctx)
		}
	}
}

// isTransient reports whether the client should try again after an error. A restart of the server is transient, but a wrong URL is not,
// and in both cases a proxy may answer with an error page and status 404 or 405. Such a page counts as transient only if the server has
// accepted the subscription before.
func (f *flow) isTransient(err error) bool {
	return Retryable(err) || f.started && httpcall.FromProxy(err)
}

func (f *flow) cursorParams() map[string]any {
	params := map[string]any{"name": f.sub.Name, "arguments": f.sub.arguments, "cursor": nil}
	if f.cursor != "" {
		params["cursor"] = f.cursor
	}
	return params
}
