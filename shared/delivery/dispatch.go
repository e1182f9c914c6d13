package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"mcpevents/shared/catalog"
	"mcpevents/shared/event"
	"mcpevents/shared/fault"
	"mcpevents/shared/queue"
	"mcpevents/shared/store"
	"mcpevents/shared/subscription"
	"mcpevents/shared/webhook"
)

// Poster sends one signed request. shared/webhook implements it.
type Poster interface {
	Send(ctx context.Context, r webhook.Request) webhook.Outcome
}

// Opener opens sealed secrets. shared/webhook implements it.
type Opener interface {
	Open(sealed []byte, b webhook.Binding) ([]byte, error)
}

// Subscriptions is what dispatch asks of subscriptions beyond their items.
type Subscriptions interface {
	Lookup(ctx context.Context, workspace, principal, id string) (*subscription.Subscription, error)
	Disable(ctx context.Context, workspace, principal, id, reason string) error
	Suspend(ctx context.Context, workspace, principal, id string) error
}

// Options are the operator's choices. Zero values are the defaults.
type Options struct {
	// Schedule and EventsSchedule replace [StandardSchedule] and [EventsSchedule].
	Schedule, EventsSchedule Schedule
	// Timeout bounds an attempt of a SEP-1803 subscription (20 s), EventsTimeout
	// one of an MCP Events subscription (10 s).
	Timeout, EventsTimeout time.Duration
	// Concurrency is how many attempts run at once in this process (128).
	Concurrency int
	// Patience is how long a page waits for an answer before the attempt goes on
	// beside it and its place is free for others. 0 waits to the end, which suits a
	// process that is frozen when its batch is done.
	Patience time.Duration
	// Records says which attempts leave a delivery record.
	Records Records
	// LogDeliveries writes a log line for each attempt.
	LogDeliveries bool
}

// Records is the --delivery-log setting.
type Records string

// The settings: a record of every attempt, of failed ones only, or of none.
const (
	RecordAll      Records = "all"
	RecordFailures Records = "failures"
	RecordNone     Records = "none"
)

// Dispatcher sends webhooks. Make it with [NewDispatcher].
type Dispatcher struct {
	DB            store.DB
	Queue         queue.Sender
	Subscriptions Subscriptions
	Catalog       Types
	Poster        Poster
	Opener        Opener
	// Ender ends subscriptions that may not go on, and its review is asked before every
	// delivery.
	Ender *Ender
	// Gate is set where register runs in the same process.
	Gate    *Gate
	Options Options
	Now     func() time.Time
	Log     *slog.Logger
	// Observe is told of every attempt; may be nil.
	Observe func(Attempted)

	slots  chan struct{}
	aside  chan struct{} // attempts that go on beside their page
	beside sync.WaitGroup
	health health
	stored known
	status statuses
	rates  rates
}

// Types tells the webhook type of an event type.
type Types interface {
	WebhookType(ctx context.Context, workspace, name string) string
}

// Attempted is an attempt as metrics see it.
type Attempted struct {
	Category webhook.Category
	Attempt  int
	Took     time.Duration
	// Lag is from publishing to the end of a first attempt.
	Lag time.Duration
}

// NewDispatcher makes d ready to use, with the defaults of what is zero, and
// returns it.
func NewDispatcher(d *Dispatcher) *Dispatcher {
	if d.Options.Timeout == 0 {
		d.Options.Timeout = 20 * time.Second
	}
	if d.Options.EventsTimeout == 0 {
		d.Options.EventsTimeout = 10 * time.Second
	}
	if d.Options.Concurrency == 0 {
		d.Options.Concurrency = 128
	}
	if d.Options.Records == "" {
		d.Options.Records = RecordFailures
	}
	d.slots = make(chan struct{}, d.Options.Concurrency)
	d.aside = make(chan struct{}, 4*d.Options.Concurrency)
	return d
}

func (d *Dispatcher) now() time.Time {
	if d.Now != nil {
		return d.Now()
	}
	return time.Now()
}

func (d *Dispatcher) log() *slog.Logger {
	if d.Log != nil {
		return d.Log
	}
	return slog.Default()
}

// page is the work of one batch on one range of one pattern.
type page struct {
	PageTask
	messages []string
	err      error
}

// Pages is the [queue.Handler] of the deliveries queue. Tasks of one batch for
// the same range share one read of its subscribers.
func (d *Dispatcher) Pages(ctx context.Context, batch []queue.Message) (failed []string, err error) {
	type rangeID struct {
		workspace, pattern string
		subscription.Range
	}
	byRange := map[rangeID]*page{}
	var order []*page
	for _, m := range batch {
		t, err := decodeTask(m.Body, func(t PageTask) int { return t.V })
		if err != nil {
			d.log().ErrorContext(ctx, "a page task was put aside", "error", err, "message", m.ID)
			if err := d.Queue.Send(ctx, queue.Dead, queue.Outgoing{Body: m.Body}); err != nil {
				failed = append(failed, m.ID)
			}
			continue
		}
		id := rangeID{t.Workspace, t.Pattern, t.Range}
		p := byRange[id]
		if t.Resume != nil {
			p = nil // shares no read with events
		}
		if p == nil {
			p = &page{PageTask: t}
			p.Events = nil
			if t.Resume == nil {
				byRange[id] = p
			}
			order = append(order, p)
		}
		p.Events = append(p.Events, t.Events...)
		p.messages = append(p.messages, m.ID)
	}
	var wg sync.WaitGroup
	for _, p := range order {
		wg.Go(func() { p.err = d.page(ctx, p.PageTask) })
	}
	wg.Wait()
	for _, p := range order {
		if p.err != nil {
			d.log().ErrorContext(ctx, "a page was not sent; it comes again", "pattern", p.Pattern, "error", p.err)
			failed = append(failed, p.messages...)
		}
	}
	return failed, nil
}

// page sends events to the subscribers of a range, or splits a range that holds
// too many.
func (d *Dispatcher) page(ctx context.Context, t PageTask) error {
	if t.Resume != nil {
		return d.resume(ctx, t.Workspace, *t.Resume)
	}
	if t.Count > pageSplit {
		if parts := pages(t.Workspace, t.Pattern, t.Range, t.Count, t.Events); len(parts) > 1 {
			return d.sendPages(ctx, parts)
		}
	}
	read := time.Now()
	subs, more, last, err := subscription.Subscribers(ctx, d.DB, t.Workspace, t.Pattern, t.Range, 4*pageTarget)
	if err != nil {
		return err
	}
	if more { // more than the header said: the rest is another task
		rest := t.Range
		rest.From = last
		if err := d.sendPages(ctx, pages(t.Workspace, t.Pattern, rest, 1, t.Events)); err != nil {
			return err
		}
	}
	return d.sendAll(ctx, t, subs, read)
}

// lastStart is until when a page may start attempts, so that those it has
// started end before its batch does: an endpoint that takes its time over many
// events would else have the page cut off, and sent again from its start, for ever.
func (d *Dispatcher) lastStart(ctx context.Context) (at time.Time, ok bool) {
	end, ok := ctx.Deadline()
	if !ok {
		return at, false
	}
	left := time.Until(end)
	return time.Now().Add(max(left/2, left-max(d.Options.Timeout, d.Options.EventsTimeout)-2*time.Second)), true
}

func (d *Dispatcher) sendPages(ctx context.Context, tasks []PageTask) error {
	out := make([]queue.Outgoing, len(tasks))
	for i, t := range tasks {
		out[i].Body = encode(t)
	}
	return fault.Wrap(fault.Unavailable, d.Queue.Send(ctx, queue.Deliveries, out...), "send page tasks")
}

// stale is the age from which a page's read is not trusted any more: on AWS no
// attempt starts more than a second after deregister has answered.
const stale = 800 * time.Millisecond

// sendAll makes the first attempts of a page: subscribers in parallel, the
// events of one subscriber in order. It returns when all outcomes are recorded.
func (d *Dispatcher) sendAll(ctx context.Context, t PageTask, subs []subscription.Subscriber, read time.Time) error {
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		ops  []store.Op
		errs error
	)
	last, limited := d.lastStart(ctx)
	for i := range subs {
		sub := &subs[i]
		select {
		case d.slots <- struct{}{}:
		case <-ctx.Done():
			wg.Wait()
			return ctx.Err()
		}
		wg.Go(func() {
			defer func() { <-d.slots }()
			notes, done, err := d.sendTo(ctx, t, sub, read, func() bool { return limited && time.Now().After(last) })
			if left := t.Events[done:]; err == nil && len(left) > 0 {
				err = d.sendPages(ctx, pages(t.Workspace, t.Pattern, subscription.At(sub.ID), 1, left))
			}
			mu.Lock()
			defer mu.Unlock()
			ops = append(ops, notes...)
			if err != nil {
				errs = err
			}
		})
	}
	wg.Wait()
	if len(ops) > 0 {
		if err := d.DB.WriteAll(ctx, ops...); err != nil {
			// The deliveries were made; sending them again for their records would harm.
			d.log().WarnContext(ctx, "delivery records were not written", "error", err)
		}
	}
	return errs
}

// sendTo makes the first attempts for one subscriber and returns the records to
// write. The events from number done on are left to another page.
func (d *Dispatcher) sendTo(ctx context.Context, t PageTask, sub *subscription.Subscriber, read time.Time, late func() bool,
) (notes []store.Op, done int, err error) {
	where := origin(sub.Target.URL)
	right, err := d.Ender.Review.Subscriber(ctx, t.Workspace, t.Pattern, sub, false)
	if err != nil {
		return d.over(ctx, t, sub, err)
	}
	for i := range t.Events {
		e := &t.Events[i]
		if !sub.Wants(e, d.now()) {
			continue
		}
		if may, err := right.May(ctx, e); err != nil || !may {
			if err != nil {
				return notes, i, err
			}
			continue
		}
		if late() {
			return notes, i, nil
		}
		if sub.Suspended != 0 {
			if err := d.hold(ctx, t.Workspace, sub, e); err != nil {
				return notes, i, err
			}
			continue
		}
		if d.health.slow(where, d.now()) {
			if err := d.divert(ctx, t.Workspace, sub, e); err != nil {
				return notes, i, err
			}
			continue
		}
		if d.Gate == nil && time.Since(read) > stale {
			served, err := subscription.Served(ctx, d.DB, t.Workspace, t.Pattern, []string{sub.ID})
			if err != nil {
				return notes, i, err
			}
			read = time.Now()
			if !served[sub.ID] {
				return notes, len(t.Events), nil
			}
		}
		if !d.Gate.enter(sub.ID, read) {
			return notes, i, nil // another page will see whether it was made anew
		}
		note, err := d.first(ctx, t.Workspace, sub, e)
		notes = append(notes, note...)
		if err != nil {
			return notes, i, err
		}
	}
	return notes, len(t.Events), nil
}

// over is the result of a page for a subscriber that may not go on, as far as is known
// here: it ends, or, if it turns out that what is known here is old, a further page looks
// at it anew.
func (d *Dispatcher) over(ctx context.Context, t PageTask, sub *subscription.Subscriber, err error) (notes []store.Op, done int, _ error) {
	if _, is := errors.AsType[*subscription.Ended](err); !is {
		return nil, 0, err
	}
	if sub.Until != 0 && d.now().Unix() >= sub.Until {
		return nil, len(t.Events), nil
	}
	ended, err := d.Ender.End(ctx, t.Workspace, sub.Principal, sub.ID)
	if err != nil || !ended {
		return nil, 0, err
	}
	return nil, len(t.Events), nil
}

// divert turns a first attempt into a single delivery on the slow lane.
func (d *Dispatcher) divert(ctx context.Context, workspace string, sub *subscription.Subscriber, e *event.Event) error {
	now := d.now()
	_, err := d.scheduleNext(ctx, newChain(workspace, sub, e, now), e, 0, store.Key{}, now)
	return err
}

// errUnprepared marks the outcome of an attempt that never left.
var errUnprepared = errors.New("delivery: the webhook could not be prepared")

// attempt makes one signed POST of an event.
func (d *Dispatcher) attempt(ctx context.Context, workspace string, sub *subscription.Subscriber, e *event.Event, n int) webhook.Outcome {
	return d.send(ctx, attempted{
		workspace: workspace, subscription: sub.ID, target: sub.Target.URL,
		event: e.ID, name: e.Name, published: e.Published, n: n,
	}, func(r *webhook.Request) error { return d.fill(ctx, r, workspace, sub, e) })
}

// attempted is what an attempt is of, for whoever looks on.
type attempted struct {
	workspace, subscription, target, event, name string

	published time.Time
	n         int
}

// send makes one POST of a request that fill completes.
func (d *Dispatcher) send(ctx context.Context, a attempted, fill func(*webhook.Request) error) webhook.Outcome {
	r := webhook.Request{URL: a.target, ID: a.event, SubscriptionID: a.subscription, At: d.now(), Timeout: d.Options.Timeout}
	var out webhook.Outcome
	if err := fill(&r); err != nil {
		// Not the endpoint's fault; it is retried like one that is.
		d.log().ErrorContext(ctx, "a webhook could not be prepared", "subscription", a.subscription, "error", err)
		out = webhook.Outcome{Category: webhook.ConnectionRefused, Err: errUnprepared}
	} else {
		out = d.Poster.Send(ctx, r)
	}
	if out.Category == webhook.Aborted {
		return out // we stopped, not the endpoint
	}
	where := origin(a.target)
	d.health.saw(where, out, d.now())
	lag := d.now().Sub(a.published)
	if d.Observe != nil {
		d.Observe(Attempted{Category: out.Category, Attempt: a.n, Took: out.Took, Lag: lag})
	}
	if d.Options.LogDeliveries {
		level := slog.LevelInfo
		if out.Category != "" {
			level = slog.LevelWarn
		}
		d.log().LogAttrs(ctx, level, "delivery",
			slog.String("workspace", a.workspace), slog.String("subscription", a.subscription), slog.String("event", a.event),
			slog.String("name", a.name), slog.String("origin", where), slog.Int("attempt", a.n), slog.Int("status", out.Status),
			slog.String("category", string(out.Category)), slog.Float64("took_ms", milliseconds(out.Took)), slog.Float64("lag_ms", milliseconds(lag)))
	}
	return out
}

// fill adds the body and the keys to a request.
func (d *Dispatcher) fill(ctx context.Context, r *webhook.Request, workspace string, sub *subscription.Subscriber, e *event.Event) error {
	redacted := *e
	var err error
	if redacted.Data, err = subscription.Redacted(e.Data, sub.Redact); err != nil {
		return err
	}
	e = &redacted
	if sub.Origin == subscription.MCPEvents {
		r.Timeout = d.Options.EventsTimeout
		r.Body, err = eventsBody(e, sub.Cursor)
	} else {
		r.Body, err = standardBody(e, d.Catalog.WebhookType(ctx, workspace, e.Name), sub.ID)
	}
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode the webhook")
	}
	return d.sign(r, workspace, sub.ID, sub.Target)
}

// sign adds the keys to a request.
func (d *Dispatcher) sign(r *webhook.Request, workspace, id string, target subscription.Target) error {
	if target.Type == subscription.None {
		return nil
	}
	binding := webhook.Binding{Workspace: workspace, Subscription: id, Target: target.URL}
	key, err := d.Opener.Open(target.Secret, binding)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "open the secret")
	}
	r.Keys = [][]byte{key}
	if target.Type == subscription.Raw {
		r.RawSecret = key
	}
	if len(target.Previous) > 0 && d.now().Unix() < target.PreviousUntil {
		old, err := d.Opener.Open(target.Previous, binding)
		if err != nil {
			return fault.Wrap(fault.Internal, err, "open the previous secret")
		}
		r.Keys = append(r.Keys, old)
	}
	return nil
}

// standardBody is the body of a SEP-1803 webhook (Standard Webhooks' type,
// timestamp, data, and ours).
func standardBody(e *event.Event, webhookType, id string) ([]byte, error) {
	return json.Marshal(struct {
		Type         string          `json:"type"`
		Timestamp    string          `json:"timestamp"`
		URI          string          `json:"uri"`
		Subscription string          `json:"subscription"`
		Data         json.RawMessage `json:"data"`
	}{webhookType, e.Timestamp(), e.URI, subscription.URI(id), e.Data})
}

// eventsBody is an EventOccurrence (SEP-3415).
func eventsBody(e *event.Event, cursor string) ([]byte, error) {
	var c *string
	if cursor != "" {
		c = &cursor
	}
	return json.Marshal(struct {
		EventID   string          `json:"eventId"`
		Name      string          `json:"name"`
		Timestamp string          `json:"timestamp"`
		Data      json.RawMessage `json:"data"`
		Cursor    *string         `json:"cursor"`
	}{e.ID, e.Name, e.Timestamp(), e.Data, c})
}

// WebhookTypes implements [Types] from the catalog.
type WebhookTypes struct{ Source catalog.Source }

// WebhookType is the catalog's; an event type that left the catalog has its name.
func (t WebhookTypes) WebhookType(ctx context.Context, workspace, name string) string {
	if cat, err := t.Source.Catalog(ctx, workspace); err == nil {
		if e := cat.ByName(name); e != nil && e.WebhookType != "" {
			return e.WebhookType
		}
	}
	return name
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
