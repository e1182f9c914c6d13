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

// errMaybeEnded says that an attempt was not started, because the subscription may have ended since the caller read it.
var errMaybeEnded = errors.New("delivery: the subscription may have ended")

// mayStart reports whether an attempt may start for a subscription that the caller read at the time readAt. A [Gate], if there is one,
// stops attempts as soon as the subscription is deregistered. On AWS there is no gate, so an attempt may start only within a second after
// the read. So no attempt starts more than a second after deregister has answered.
func (d *Dispatcher) mayStart(id string, readAt time.Time) bool {
	if d.Gate == nil {
		return time.Since(readAt) <= time.Second
	}
	return d.Gate.allows(id, readAt)
}

// firstAttempt is a first attempt whose POST has begun.
type firstAttempt struct {
	d     *Dispatcher
	slot  *lane.FastSlot
	del   *state.Delivery
	sub   *subscription.Subscriber
	event *event.Event
	// unlink makes the POST independent of the page's context, so that the POST can continue after the page has ended. cancel ends the POST.
	unlink func() bool
	cancel context.CancelFunc
	// answer passes the outcome of the POST to handleSlow, if the POST ends after handleSlow has begun.
	answer chan webhook.Outcome
}

// attemptFirst sends an event to one subscriber for the first time. It calls report exactly once, with the records to write or an error,
// and releases the slot s.
//
// A hanging endpoint must not hold up the page, so the page waits only for [lane.FastSlot.Wait]. Then attemptFirst moves the delivery to
// the slow lane and reports that there is nothing to write. If there is capacity, it keeps the running POST ("detaches" it): it stores the
// delivery as due at the time by which the POST must have timed out, and the outcome of the POST later replaces that entry. If the process
// dies, the stored entry is retried. If the POST finishes, the entry's message is stale and dropped. Without capacity, attemptFirst cancels
// the POST and the slow lane repeats it, so the endpoint may see the event twice.
//
// If the page is in a hurry (see package lane), the POST is detached earlier, as soon as it takes longer than the endpoint's answers
// usually take. The POST has as much time as without the hurry, and then the slow lane repeats it.
//
// attemptFirst reports [errMaybeEnded] if the subscription may have ended since readAt, the time at which the caller read it. If late is
// true, the event is late on purpose, for example because it is replayed.
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

// reportPanic reports a panic of a first attempt as an error that concerns only its subscriber. Otherwise the panic would end the process.
func reportPanic(s *lane.FastSlot, report func([]store.Op, error)) {
	if p := recover(); p != nil {
		s.Done(lane.Unused)
		report(nil, fault.FromPanic(p))
	}
}

// handleSlow handles an attempt that takes longer than [lane.FastSlot.Usual] or, if Usual is 0, than [lane.FastSlot.Wait]. It returns the
// records or the error for [Dispatcher.attemptFirst] to report, and releases the slot.
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

// awaitAfterUsual waits, after [lane.FastSlot.Usual] is over, for the rest of [lane.FastSlot.Wait], and reports whether the
// answer arrived. It does not wait if another process has already found that the endpoint hangs.
func (f *firstAttempt) awaitAfterUsual(ctx context.Context, out *webhook.Outcome) bool {
	s := f.slot
	if s.Usual == 0 || s.Usual == s.Wait {
		return false // s.Wait is over, too
	}
	return !s.HasWarning(ctx) && await(f.answer, out, s.Wait-s.Usual)
}

// record records the outcome of the POST, which has ended, and frees the context of the POST.
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

// await waits for an answer, stores it in out, and reports whether it arrived within the limit. A limit of 0 means no limit.
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

// storeDetached stores the delivery of an attempt that continues after its page has stopped waiting, and reports whether that
// succeeded. The delivery is due when the attempt must have ended, so that the slow lane retries it if the process dies.
func (d *Dispatcher) storeDetached(ctx context.Context, s *lane.DetachedSlot, del *state.Delivery, e *event.Event) bool {
	left := s.HangsAfter + s.Rest
	if left == 0 {
		left = max(d.Options.Timeout, d.Options.EventsTimeout)
	}
	written, err := d.deliveries.Schedule(ctx, del, e, d.now().Add(left))
	return err == nil && written
}

// finish waits for the outcome of a detached attempt, whose slot is s, and records it. If the attempt is canceled, or fails because of this
// program, the stored delivery remains, and the slow lane repeats the attempt.
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

// moveToSlowLane stores a delivery whose first attempt the slow lane will make. It delays the delivery's queue message until the endpoint
// may get attempts, because the slow lane would have to return an earlier message to the queue.
func (d *Dispatcher) moveToSlowLane(ctx context.Context, sub *subscription.Subscriber, e *event.Event, late bool) error {
	now := d.now()
	turn, wait := d.lanes.Postpone(ctx, task.EndpointID(sub.Target.URL))
	del := state.New(sub, e, now.Add(turn))
	del.Late = late
	_, err := d.deliveries.Schedule(ctx, del, e, now.Add(max(wait, d.Options.SlowLaneDelay)))
	return err
}

// Gate stops attempts to a deregistered subscription if deregister and dispatch share a process: no attempt starts after [Gate.Close] has
// returned. The zero value is ready to use.
type Gate struct {
	mu    sync.RWMutex
	ended map[string]time.Time
}

// gateFor is the minimum time for which a [Gate] remembers an ended subscription. A worker handles a page in much less time. So after
// gateFor, no worker can still have a page whose subscribers it read before the subscription ended.
const gateFor = 15 * time.Minute

// Close closes the gate for a subscription, so that no attempt to it starts any more.
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

// Open opens the gate again for a subscription that was created with the same id.
func (g *Gate) Open(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.ended, id)
}

// allows reports whether an attempt may start for a subscription that the caller read at the time readAt. If the caller read the
// subscription after it had ended, a client must have created it again, so its attempts may start.
func (g *Gate) allows(id string, readAt time.Time) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	at, ended := g.ended[id]
	return !ended || readAt.After(at)
}

// sender signs and posts deliveries. For each attempt, it records a trace span and metrics, and writes a log line.
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

// attempt makes one signed POST of a delivery. e is nil for a control message, such as a gap notice. A failure of this
// program, such as an unreadable secret, has the category [webhook.Internal].
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
	// A control message has no time of publication, so its lag counts from the beginning of its retry schedule.
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

// recordTime is the time that an attempt leaves before the deadline of ctx, so that its outcome can be recorded.
const recordTime = time.Second

// fitInto returns the timeout of an attempt, shortened if the attempt could outlast ctx. For example, an attempt with a timeout of a minute
// gets 59 seconds in a Lambda function that runs for a minute. Otherwise the attempt would count as aborted instead of timed out, and an
// endpoint that hangs would hold up the function again and again. If ctx leaves less than half of the timeout, fitInto does not shorten it,
// because then the attempt began late, which is not the endpoint's fault.
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

// webhookID returns the webhook-id of an event for an MCP Events subscription. In the final profile it is a hash of the
// subscription and the event, so that all attempts and replays have the same id. It cannot equal the id of a control message,
// msg_<type>_…, because it is hexadecimal.
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

// sign sets the signing keys of a request: the subscription's secret and, during a rotation, also the previous one.
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

// webhookType returns the "type" of the event's webhooks: the catalog's webhookType or, without one, the event type's name.
func (s *sender) webhookType(ctx context.Context, e *event.Event) string {
	if entry := s.eventTypeOf(ctx, e); entry != nil && entry.WebhookType != "" {
		return entry.WebhookType
	}
	return e.Name
}

// eventTypeOf returns the event's type, or nil if the catalog no longer has it or cannot be read.
func (s *sender) eventTypeOf(ctx context.Context, e *event.Event) *catalog.Entry {
	cat, err := s.catalog.Catalog(ctx, e.Workspace)
	if err != nil {
		return nil
	}
	return cat.ByName(e.Name)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// The functions below write bodies without encoding/json, which would validate the payload again for each subscriber. Publish has already
// checked that the payload is valid and compact.

// standardBody returns the body of a SEP-1803 webhook: the members type, timestamp and data of Standard Webhooks, and the members uri and
// subscription of this server.
func standardBody(e *event.Event, webhookType, id string) []byte {
	b := make([]byte, 0, len(e.Data)+len(e.URI)+len(webhookType)+192)
	b = jsonrpc.AppendString(append(b, `{"type":`...), webhookType)
	b = appendTimestamp(b, e)
	b = jsonrpc.AppendString(append(b, `,"uri":`...), e.URI)
	b = jsonrpc.AppendString(append(b, `,"subscription":`...), subscription.URI(id))
	return append(appendData(b, e), '}')
}

// eventsBody returns an EventOccurrence (SEP-3415), the body of an MCP Events webhook. entry is the event type, or nil if the catalog no
// longer has it. cursor is the subscription's cursor; the body has null for an empty cursor.
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
