package delivery

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/catalog"
	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/metric"
	"github.com/mcp-events/mcpevents/shared/queue"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/subscription"
	"github.com/mcp-events/mcpevents/shared/trace"
)

// Fanout takes accepted events, appends them to the log, and sends page tasks to
// the subscribers of every pattern that they match.
//
// A batch that is redelivered finds its events in the log and leaves them there; its page
// tasks may be sent twice.
type Fanout struct {
	DB      store.DB
	Log     *eventlog.Log
	Catalog catalog.Source
	Queue   queue.Sender
	// Now is the clock; nil is [time.Now].
	Now func() time.Time
	// Metrics counts dead letters; may be nil.
	Metrics *metric.Set
	// Tracer makes a span of each event; may be nil.
	Tracer *trace.Tracer
}

// uriBatch is what one batch brings for one URI, in order.
type uriBatch struct {
	workspace, uri string
	entry          *catalog.Entry
	vars           map[string]string
	events         []event.Event
	ids            []string // of the messages

	webhookKeys []string // patterns with subscribers
	inBandKeys  []string // patterns with readers
	err         error
}

// Handle is the [queue.Handler] of the events queue.
func (f *Fanout) Handle(ctx context.Context, batch []queue.Message) (failed []string, err error) {
	var spans trace.Spans
	defer func() { spans.End(failure(err)) }()
	groups, poison, failed := f.group(ctx, batch, &spans)
	if len(poison) > 0 {
		if err := f.Queue.Send(ctx, queue.Dead, poison...); err != nil {
			return nil, fault.Wrap(fault.Unavailable, err, "dead-letter events that cannot be decoded")
		}
		f.Metrics.DeadLettered(string(queue.Events), len(poison))
	}
	if len(groups) == 0 {
		return failed, nil
	}
	headers, err := f.match(ctx, groups)
	if err != nil {
		return nil, err
	}
	again := slices.ContainsFunc(batch, func(m queue.Message) bool { return m.Received > 1 })
	if f.DB.Ordered() && !again {
		// Log and queues are one file, so the log takes no longer than the first attempts.
		var sending sync.WaitGroup
		tasks := pageTasks(groups, headers)
		sending.Go(func() { err = f.send(ctx, tasks) })
		f.append(ctx, groups)
		sending.Wait()
	} else {
		// First the log: while it fails, the batch is redelivered again and again, and must
		// not send its tasks each time.
		f.append(ctx, groups)
		err = f.Queue.Send(ctx, queue.Deliveries, pageTasks(groups, headers)...)
	}
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "send page tasks")
	}
	for _, g := range groups {
		if g.err != nil {
			slog.ErrorContext(ctx, "fanout failed", "uri", g.uri, "events", len(g.events), "error", g.err)
			failed = append(failed, g.ids...)
		}
	}
	return failed, nil
}

// failure is what a span says of an error.
func failure(err error) string {
	if err == nil {
		return ""
	}
	return fault.KindOf(err).String()
}

// send queues page tasks. In one process their first attempts begin before the tasks are
// written: the event that is not settled yet stands for them.
func (f *Fanout) send(ctx context.Context, tasks []queue.Outgoing) error {
	if q, ok := f.Queue.(queue.Forwarder); ok {
		return q.Forward(ctx, queue.Deliveries, tasks...)
	}
	return f.Queue.Send(ctx, queue.Deliveries, tasks...)
}

// pageTasks are the tasks for all groups that did not fail.
func pageTasks(groups []*uriBatch, headers map[headerID]int) (tasks []queue.Outgoing) {
	for _, g := range groups {
		if g.err != nil {
			continue
		}
		for _, key := range g.webhookKeys {
			for _, t := range pages(g.workspace, key, subscription.Range{}, headers[headerID{g.workspace, key}], g.events) {
				tasks = append(tasks, queue.Outgoing{Body: t.encode()})
			}
		}
	}
	return tasks
}

// group sorts a batch by workspace and URI. An event that cannot be decoded, or has no event
// type any more, is dead-lettered: it must not block its group.
func (f *Fanout) group(ctx context.Context, batch []queue.Message, spans *trace.Spans) (groups []*uriBatch, poison []queue.Outgoing, left []string) {
	type id struct{ workspace, uri string }
	byURI := map[id]*uriBatch{}
	for _, m := range batch {
		f.Log.CheckClock(m.Sent)
		reason := ""
		e, err := event.Decode(m.Body)
		if newer(err) {
			left = append(left, m.ID)
			continue
		}
		if err != nil {
			reason = "the message is not an event of a known version"
		}
		g := byURI[id{e.Workspace, e.URI}]
		if reason == "" && g == nil {
			cat, err := f.Catalog.Catalog(ctx, e.Workspace)
			if err == nil {
				if entry, vars, ok := cat.Match(e.URI); ok {
					g = &uriBatch{workspace: e.Workspace, uri: e.URI, entry: entry, vars: vars}
				} else {
					reason = "the URI matches no event type of the catalog"
				}
			} else {
				g = &uriBatch{workspace: e.Workspace, uri: e.URI, err: err}
			}
			if g != nil {
				byURI[id{e.Workspace, e.URI}] = g
				groups = append(groups, g)
			}
		}
		if reason != "" {
			slog.ErrorContext(ctx, "event dead-lettered", "message", m.ID, "reason", reason)
			poison = append(poison, queue.NewDeadLetter(queue.Events, m, reason, nil, f.now()))
			continue
		}
		if span := f.Tracer.Continue(e.Trace, "fanout", trace.Consumer); span.On() {
			span.Set(trace.Event(e.Workspace, e.ID, e.Name)...)
			e.Trace = spans.Add(span)
		}
		g.events, g.ids = append(g.events, e), append(g.ids, m.ID)
	}
	return groups, poison, left
}

func (f *Fanout) now() time.Time { return timeBy(f.Now) }

type headerID struct{ workspace, key string }

// match finds the patterns in use that each group's events match, and how many
// subscribers they have: one read for the shapes and the concrete patterns, and a second
// only where other shapes are in use, or streams read.
func (f *Fanout) match(ctx context.Context, groups []*uriBatch) (map[headerID]int, error) {
	now := f.now()
	var r reads
	for _, g := range groups {
		if g.err != nil {
			continue
		}
		for _, scope := range subscription.Scopes(g.entry.Name) {
			r.want(subscription.ShapesKey(g.workspace, scope))
		}
		r.want(subscription.HeaderKey(g.workspace, g.uri))
	}
	if err := r.do(ctx, f.DB); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the shapes in use")
	}
	for _, g := range groups {
		if g.err != nil {
			continue
		}
		for _, scope := range subscription.Scopes(g.entry.Name) {
			webhooks, inBand := subscription.InUse(r.got(subscription.ShapesKey(g.workspace, scope)), scope, now)
			g.webhookKeys = append(g.webhookKeys, keys(g, webhooks)...)
			g.inBandKeys = append(g.inBandKeys, keys(g, inBand)...)
		}
		for _, key := range g.webhookKeys {
			r.want(subscription.HeaderKey(g.workspace, key))
		}
		for _, key := range g.inBandKeys {
			r.want(eventlog.InterestKey(g.workspace, key))
		}
	}
	if err := r.do(ctx, f.DB); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the patterns in use")
	}
	headers := map[headerID]int{}
	for _, g := range groups {
		g.webhookKeys = slices.DeleteFunc(g.webhookKeys, func(key string) bool {
			n := subscription.HeaderCount(r.got(subscription.HeaderKey(g.workspace, key)))
			headers[headerID{g.workspace, key}] = n
			return n <= 0
		})
		g.inBandKeys = slices.DeleteFunc(g.inBandKeys, func(key string) bool {
			return !eventlog.ReadInterest(r.got(eventlog.InterestKey(g.workspace, key))).Until.After(now)
		})
	}
	return headers, nil
}

func keys(g *uriBatch, shapes []subscription.Shape) (out []string) {
	for _, s := range shapes {
		if key, ok := subscription.KeyUnder(g.entry, g.vars, g.uri, s); ok {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}

// append writes each group to the log, several groups at a time. The order within
// a URI is the order of the batch.
func (f *Fanout) append(ctx context.Context, groups []*uriBatch) {
	if len(groups) == 1 { // ordinary under little load
		if groups[0].err == nil {
			groups[0].err = f.appendOne(ctx, groups[0])
		}
		return
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, 32)
	for _, g := range groups {
		if g.err != nil {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			g.err = f.appendOne(ctx, g)
		})
	}
	wg.Wait()
}

func (f *Fanout) appendOne(ctx context.Context, g *uriBatch) error {
	write := f.Log.Append
	if g.entry.Unordered() {
		write = f.Log.AppendUnordered
	}
	done, err := write(ctx, g.workspace, g.uri, g.events, g.inBandKeys)
	if err == nil && done.First {
		err = f.Log.RecordChild(ctx, g.workspace, g.uri)
	}
	return err
}

// reads collects keys and reads each once.
type reads struct {
	pending []store.Key
	items   map[store.Key]*store.Item
}

func (r *reads) want(k store.Key) {
	if r.items == nil {
		r.items = map[store.Key]*store.Item{}
	}
	if _, ok := r.items[k]; !ok {
		r.items[k] = nil
		r.pending = append(r.pending, k)
	}
}

func (r *reads) do(ctx context.Context, db store.DB) error {
	for part := range slices.Chunk(r.pending, store.MaxGet) {
		items, err := db.Get(ctx, part...)
		if err != nil {
			return err
		}
		for i, it := range items {
			r.items[part[i]] = it
		}
	}
	r.pending = nil
	return nil
}

func (r *reads) got(k store.Key) *store.Item { return r.items[k] }
