package delivery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/delivery/lane"
	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// errMaybeEnded is the error for a webhook that was not sent, because the subscription may have ended after the caller read the
// subscription.
var errMaybeEnded = errors.New("delivery: the subscription may have ended")

// mayStart reports whether a webhook may be sent to a subscription that the caller read at the time readAt. With a [Gate], it may be sent
// unless the subscription has ended since then. Without a gate, as on AWS, it may be sent only within a second after readAt, so that no
// attempt starts more than a second after the response to an unsubscribe request.
func (d *Dispatcher) mayStart(id string, readAt time.Time) bool {
	if d.Gate == nil {
		return time.Since(readAt) <= time.Second
	}
	return d.Gate.allows(id, readAt)
}

// firstAttempt is the first attempt to send an event to one subscriber. Its POST request has begun.
type firstAttempt struct {
	d     *Dispatcher
	slot  *lane.FastSlot
	del   *state.Delivery
	sub   *subscription.Subscriber
	event *event.Event
	// unlink separates the POST from the context of the task that started it, so that the POST can continue after the task has ended. The
	// function cancel ends the POST.
	unlink func() bool
	cancel context.CancelFunc
	// answer carries the outcome of a POST that takes longer than usual to the function that waits for it, handleSlow or finish.
	answer chan webhook.Outcome
}

// attemptFirst sends an event to one subscriber for the first time. It calls report exactly once, with the store operations that record
// the outcome, or with an error. It also releases the slot s, which permits the attempt.
//
// A hanging endpoint must not hold up the other subscribers of the caller's task, so the caller usually waits only for
// [lane.FastSlot.Wait]. If the POST is still running then, attemptFirst "detaches" it: it stores the delivery as a retry that is due when
// the POST must have timed out, and lets the POST continue in the background. The outcome of the POST later replaces the stored retry. If
// too many POSTs are detached already, attemptFirst cancels the POST and leaves the delivery to the slow lane, which makes the retries.
// The endpoint may then get the event twice.
//
// attemptFirst reports [errMaybeEnded] if the subscription may have ended since readAt, the time at which the caller read it. The
// parameter late says that the event is late on purpose, for example because it is replayed.
func (d *Dispatcher) attemptFirst(ctx context.Context, s *lane.FastSlot, sub *subscription.Subscriber, e *event.Event, late bool, readAt time.Time, report func([]store.Op, error)) {
	growStack()
	switch {
	case !s.Start(ctx, sub.Target.URL):
		s.Done(lane.Unused)
		report(nil, d.moveToSlowLane(ctx, sub, e, late))
		return
	case !d.mayStart(sub.ID, readAt):
		s.Done(lane.Unused)
		report(nil, errMaybeEnded)
		return
	}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f := &firstAttempt{
		d: d, slot: s, del: state.New(sub, e, d.now()), sub: sub, event: e,
		unlink: context.AfterFunc(ctx, cancel), cancel: cancel, answer: make(chan webhook.Outcome, 1),
	}
	f.del.Late = late
	inTime := func() bool { return true }
	if s.Wait > 0 {
		inTime = time.AfterFunc(cmp.Or(s.Usual, s.Wait), func() {
			defer reportPanic(s, report)
			report(f.handleSlow(ctx))
		}).Stop
	}
	out := d.sender.attempt(own, f.del, sub, e)
	if !inTime() {
		f.answer <- out // handleSlow reports the result
		return
	}
	f.unlink()
	s.Done(out)
	report(f.record(ctx, out))
}

// reportPanic recovers from a panic of a first attempt and reports it as an error. So the panic affects only one subscriber and does not
// end the process.
func reportPanic(s *lane.FastSlot, report func([]store.Op, error)) {
	if p := recover(); p != nil {
		s.Done(lane.Unused)
		report(nil, fault.FromPanic(p))
	}
}

// handleSlow decides what happens to a POST without a response after [lane.FastSlot.Usual] or, if Usual is 0, after [lane.FastSlot.Wait].
// It waits for the POST, detaches it or cancels it, and releases the slot. Its results are the arguments for report in
// [Dispatcher.attemptFirst].
func (f *firstAttempt) handleSlow(ctx context.Context) ([]store.Op, error) {
	s := f.slot
	out := lane.Unused
	defer func() { s.Done(out) }()
	defer f.unlink()
	if f.awaitAfterUsual(ctx, &out) {
		return f.record(ctx, out)
	}
	switch detached := s.Detach(); {
	case detached != nil:
		if f.d.storeDetached(ctx, detached, f.del, f.event) {
			sub, e := *f.sub, *f.event
			f.sub, f.event = &sub, &e // copies, so that the memory of the page and its other events can be freed
			f.d.attempts.Go(func() { f.finish(context.WithoutCancel(ctx), detached) })
			return nil, nil
		}
		defer func() { detached.Done(out) }()
	case s.Rest > 0 && await(f.answer, &out, s.Rest):
		return f.record(ctx, out)
	default:
		s.Hang(ctx)
	}
	f.cancel()
	out = <-f.answer // the answer may have arrived right before the cancellation
	if out.Internal() && ctx.Err() == nil {
		return nil, f.d.moveToSlowLane(ctx, f.sub, f.event, f.del.Late)
	}
	return f.record(ctx, out)
}

// awaitAfterUsual waits for the outcome of the POST until [lane.FastSlot.Wait] is over, and reports whether the outcome arrived. It does
// not wait if another process has already found that the endpoint hangs.
func (f *firstAttempt) awaitAfterUsual(ctx context.Context, out *webhook.Outcome) bool {
	s := f.slot
	if s.Usual == 0 || s.Usual == s.Wait {
		return false // s.Wait is over, too
	}
	return !s.HasWarning(ctx) && await(f.answer, out, s.Wait-s.Usual)
}

// record records the outcome of the POST, which has ended, and frees the context of the POST. It returns store operations that the caller
// must still write.
func (f *firstAttempt) record(ctx context.Context, out webhook.Outcome) ([]store.Op, error) {
	f.cancel()
	return f.d.outcomes.Record(ctx, f.del, f.sub, f.event, out)
}

// growStack grows the goroutine's stack to the size that an attempt needs. Without it, the stack grows three times while the attempt calls
// deeper functions, and each time the runtime copies all frames. That took almost 4 % of the CPU time of a busy server.
//
//go:noinline
func growStack() {
	var space [8 << 10]byte
	runtime.KeepAlive(&space)
}

// await waits for the outcome of a POST, stores it in out, and reports whether it arrived within the limit. A limit of 0 means no limit.
func await(answer <-chan webhook.Outcome, out *webhook.Outcome, limit time.Duration) bool {
	var over <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case *out = <-answer:
		return true
	case <-over:
		return false
	}
}

// storeDetached stores the delivery of a first attempt that continues in the background, and reports whether that succeeded. The stored
// delivery is due when the attempt must have ended, so that it is retried if the process dies.
func (d *Dispatcher) storeDetached(ctx context.Context, s *lane.DetachedSlot, del *state.Delivery, e *event.Event) bool {
	left := s.HangsAfter + s.Rest
	if left == 0 {
		left = max(d.Options.Timeout, d.Options.EventsTimeout)
	}
	written, err := d.deliveries.Schedule(ctx, del, e, d.now().Add(left))
	return err == nil && written
}

// finish waits for the outcome of a first attempt that continues in the background, and records it. If the attempt is canceled or fails
// because of this program, the delivery stays in the store and is retried. The parameter s is the attempt's slot.
func (f *firstAttempt) finish(ctx context.Context, s *lane.DetachedSlot) {
	var out webhook.Outcome
	if !await(f.answer, &out, s.HangsAfter) {
		s.Hang(ctx)
		if !await(f.answer, &out, s.Rest) {
			f.cancel()
			out = <-f.answer
		}
	}
	s.Done(out)
	if out.Internal() {
		f.cancel()
		return
	}
	notes, err := f.record(ctx, out)
	if err == nil && len(notes) > 0 {
		err = state.WriteNotes(ctx, f.d.DB, notes)
	}
	if err != nil {
		f.d.log().WarnContext(ctx, "attempt outcome lost", "subscription", f.sub.ID, "event", f.event.ID, "error", err)
	}
}

// moveToSlowLane stores a delivery, so that the slow lane, which makes the retries, also makes its first attempt. The delivery's queue
// message is delayed until the endpoint may get the attempt. If the message arrived earlier, the slow lane would return it to the queue.
func (d *Dispatcher) moveToSlowLane(ctx context.Context, sub *subscription.Subscriber, e *event.Event, late bool) error {
	now := d.now()
	turn, wait := d.lanes.Postpone(ctx, task.EndpointID(sub.Target.URL))
	del := state.New(sub, e, now.Add(turn))
	del.Late = late
	_, err := d.deliveries.Schedule(ctx, del, e, now.Add(max(wait, d.Options.SlowLaneDelay)))
	return err
}

// Gate stops webhooks to a subscription that has ended: no attempt starts after [Gate.Close] has returned. This requires that the
// subscription ends in the process that sends the webhooks. The zero value is ready to use.
type Gate struct {
	mu    sync.RWMutex
	ended map[string]time.Time
}

// gateFor is the minimum time for which a [Gate] remembers an ended subscription. A worker sends the events of one task in much less
// time. So after gateFor, no worker has a copy of the subscription that it read before the subscription ended.
const gateFor = 15 * time.Minute

// Close stops webhooks to the subscription with this id. No attempt starts after Close has returned.
func (g *Gate) Close(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.ended == nil {
		g.ended = map[string]time.Time{}
	}
	if len(g.ended) > 1000 && len(g.ended)%1000 == 0 {
		for id, at := range g.ended {
			if now.Sub(at) > gateFor {
				delete(g.ended, id)
			}
		}
	}
	g.ended[id] = now
}

// Open permits webhooks again after a client has created a subscription with the same id.
func (g *Gate) Open(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.ended, id)
}

// allows reports whether a webhook may be sent to a subscription that the caller read at the time readAt. If the caller read the
// subscription after its end, a client must have created it again, so its webhooks may be sent.
func (g *Gate) allows(id string, readAt time.Time) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	at, ended := g.ended[id]
	return !ended || readAt.After(at)
}

// sender makes the signed POST requests that deliver events. For each request, it records a trace span and metrics. It also writes a log
// line if [Options.LogDeliveries] is set.
type sender struct {
	poster  Poster
	opener  Opener
	catalog catalog.Source
	gaps    *lifecycle.Gaps // for its sealer, which makes the webhook-ids
	options *Options
	now     func() time.Time
	log     *slog.Logger
	metrics *metric.Set
	tracer  *trace.Tracer
}

// attempt sends the webhook of a delivery in one signed POST. The event e is nil for a control message, for example a notice of lost
// events. If this program fails, for example because it cannot decrypt a secret, the outcome has the category [webhook.Internal].
func (s *sender) attempt(ctx context.Context, del *state.Delivery, sub *subscription.Subscriber, e *event.Event) (out webhook.Outcome) {
	defer func() {
		if p := recover(); p != nil {
			out = webhook.Outcome{Category: webhook.Internal, Err: fault.FromPanic(p)}
		}
	}()
	n, target := len(del.Attempts)+1, sub.Target.URL
	var traced trace.Context
	if e != nil {
		traced = e.Trace
	}
	span := s.tracer.Continue(traced, "attempt", trace.Client)
	defer func() {
		if span.Recording() {
			endSpan(span, del, target, n, out)
		}
	}()
	r := webhook.Request{Trace: span.Context, URL: target, ID: del.Event, SubscriptionID: del.Subscription, At: s.now(), Timeout: s.options.Timeout, KeepResponse: s.options.KeepResponses}
	err := s.fill(ctx, &r, del, sub, e)
	if err == nil {
		err = s.sign(ctx, &r, del.Workspace, sub)
	}
	if err != nil {
		return webhook.Outcome{Category: webhook.Internal, Err: err}
	}
	r.Timeout = fitInto(ctx, r.Timeout)
	out = s.poster.Send(ctx, r)
	if out.Internal() {
		return out
	}
	// A control message has no time of publication, so its delivery lag counts from the beginning of its retry schedule.
	lag := s.now().Sub(cmp.Or(del.Published, del.First))
	s.metrics.Attempt(string(out.Category), n == 1 && !del.Late && !del.Again, out.Took, lag)
	if s.options.LogDeliveries {
		level := slog.LevelInfo
		if out.Category != "" {
			level = slog.LevelWarn
		}
		s.log.LogAttrs(ctx, level, "delivery attempt",
			slog.String("workspace", del.Workspace), slog.String("subscription", del.Subscription), slog.String("event", del.Event),
			slog.String("name", del.Name), slog.String("origin", subscription.OriginOf(target)), slog.Int("attempt", n), slog.Int("status", out.Status),
			slog.String("category", string(out.Category)), slog.Float64("took_ms", milliseconds(out.Took)), slog.Float64("lag_ms", milliseconds(lag)))
	}
	return out
}

// recordTime is the time between the timeout of an attempt and the deadline of its context, in which the outcome of the attempt is
// recorded.
const recordTime = time.Second

// fitInto returns the timeout of an attempt, shortened so that the attempt ends before ctx does. For example, an attempt with a timeout
// of a minute gets 59 seconds in a Lambda function that runs for a minute. Otherwise the attempt would count as aborted instead of timed
// out, and an endpoint that hangs would hold up the function again and again.
//
// If ctx leaves less than half of the timeout, fitInto returns the full timeout. The attempt then began late, so it is not the endpoint's
// fault if ctx aborts the attempt.
func fitInto(ctx context.Context, timeout time.Duration) time.Duration {
	end, ok := ctx.Deadline()
	if left := time.Until(end) - recordTime; ok && left >= timeout/2 {
		return min(timeout, left)
	}
	return timeout
}

func endSpan(span trace.Span, del *state.Delivery, target string, n int, out webhook.Outcome) {
	span.Set(trace.Event(del.Workspace, del.Event, del.Name)...)
	span.Set(attribute.String("mcpevents.subscription", del.Subscription), attribute.Int("mcpevents.attempt", n),
		attribute.String("http.request.method", http.MethodPost), attribute.String("server.address", subscription.OriginOf(target)))
	if out.Status != 0 {
		span.Set(attribute.Int("http.response.status_code", out.Status))
	}
	span.End(string(out.Category))
}

func (s *sender) fill(ctx context.Context, r *webhook.Request, del *state.Delivery, sub *subscription.Subscriber, e *event.Event) (err error) {
	if del.Control != nil {
		r.Timeout, r.Body = s.options.EventsTimeout, del.Control.Body
		return nil
	}
	if len(sub.Redact) > 0 {
		redacted := *e
		if redacted.Data, err = match.Redact(e.Data, sub.Redact); err != nil {
			return err
		}
		e = &redacted
	}
	if sub.Origin != subscription.MCPEvents {
		r.Body = standardBody(e, s.webhookType(ctx, e), sub.ID)
		return nil
	}
	r.Timeout = s.options.EventsTimeout
	r.Body = eventsBody(e, s.eventTypeOf(ctx, e), sub.Cursor)
	r.ID, err = s.webhookID(ctx, sub, e)
	return err
}

// webhookID returns the webhook-id header of an event for an MCP Events subscription. In the final version of the protocol, it is a hash
// of the subscription and the event, so that all attempts and replays of the event have the same id. It cannot equal the id of a control
// message, msg_<type>_…, because all characters after msg_ are hexadecimal.
func (s *sender) webhookID(ctx context.Context, sub *subscription.Subscriber, e *event.Event) (string, error) {
	if cmp.Or(sub.Profile, s.options.Profile) != spec.Final {
		return e.ID, nil
	}
	sealer, err := s.gaps.Sealer(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("msg_%016x", sealer.Hash("message\x00"+e.Workspace+"\x00"+sub.ID+"\x00"+e.Key())), nil
}

// sign sets the keys with which a request is signed: the subscription's secret and, while the secret is rotated, also the previous
// secret.
func (s *sender) sign(ctx context.Context, r *webhook.Request, workspace string, sub *subscription.Subscriber) error {
	target := sub.Target
	if target.Type == subscription.None {
		return nil
	}
	binding := webhook.Binding{Workspace: workspace, Subscription: sub.ID, Target: target.URL}
	key, err := s.opener.Open(ctx, target.Secret, binding)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "open the secret")
	}
	r.Keys = [][]byte{key}
	if target.Type == subscription.Raw {
		r.RawSecret = key
	}
	if len(target.Previous) > 0 && s.now().Before(target.PreviousUntil.Time()) {
		old, err := s.opener.Open(ctx, target.Previous, binding)
		if err != nil {
			return fault.Wrap(fault.Internal, err, "open the previous secret")
		}
		r.Keys = append(r.Keys, old)
	}
	return nil
}

// webhookType returns the member "type" in the body of the event's webhooks. It is the webhookType of the event type in the catalog or,
// without one, the event type's name.
func (s *sender) webhookType(ctx context.Context, e *event.Event) string {
	if entry := s.eventTypeOf(ctx, e); entry != nil && entry.WebhookType != "" {
		return entry.WebhookType
	}
	return e.Name
}

// eventTypeOf returns the catalog's entry of the event's type, or nil if the catalog no longer has the type or cannot be read.
func (s *sender) eventTypeOf(ctx context.Context, e *event.Event) *catalog.Entry {
	cat, err := s.catalog.Catalog(ctx, e.Workspace)
	if err != nil {
		return nil
	}
	return cat.ByName(e.Name)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// The functions below write the bodies of webhooks without encoding/json, which would validate the event's payload again for each
// subscriber. The payload is valid and compact, because it was checked when the event was published.

// standardBody returns the body of a webhook for a SEP-1803 subscription. The members type, timestamp and data are defined by Standard
// Webhooks, and the members uri and subscription by this server.
func standardBody(e *event.Event, webhookType, id string) []byte {
	b := make([]byte, 0, len(e.Data)+len(e.URI)+len(webhookType)+192)
	b = jsonrpc.AppendString(append(b, `{"type":`...), webhookType)
	b = appendTimestamp(b, e)
	b = jsonrpc.AppendString(append(b, `,"uri":`...), e.URI)
	b = jsonrpc.AppendString(append(b, `,"subscription":`...), subscription.URI(id))
	return append(appendData(b, e), '}')
}

// eventsBody returns the body of an MCP Events webhook, an EventOccurrence (SEP-3415). The parameter entry is the event's type, or nil if
// the catalog no longer has the type. The parameter cursor is the subscription's cursor. If it is empty, the cursor in the body is null.
func eventsBody(e *event.Event, entry *catalog.Entry, cursor string) []byte {
	b := make([]byte, 0, len(e.Data)+2*len(e.URI)+len(e.Name)+len(cursor)+384)
	b = jsonrpc.AppendString(append(b, `{"eventId":`...), e.ID)
	b = jsonrpc.AppendString(append(b, `,"name":`...), e.Name)
	b = appendData(appendTimestamp(b, e), e)
	b = append(b, `,"cursor":`...)
	if cursor == "" {
		b = append(b, `null`...)
	} else {
		b = jsonrpc.AppendString(b, cursor)
	}
	b = match.AppendOccurrenceMeta(append(b, `,"_meta":{`...), e, entry)
	return append(b, `}}`...)
}

func appendTimestamp(b []byte, e *event.Event) []byte {
	b = append(b, `,"timestamp":"`...)
	return append(e.Time.AppendFormat(b, time.RFC3339Nano), '"')
}

func appendData(b []byte, e *event.Event) []byte {
	b = append(b, `,"data":`...)
	if len(e.Data) == 0 {
		return append(b, `null`...)
	}
	return append(b, e.Data...)
}
