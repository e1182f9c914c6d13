// Package fanout appends the accepted events of the events queue to the event log, and queues page tasks. A page task sends events to one
// page of the subscribers of a pattern (a URI, wildcard or parent).
package fanout

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Fanout appends accepted events to the log, and queues page tasks, which send the events to the subscribers. It queues tasks for every
// pattern (a URI, wildcard or parent) that the events match.
//
// If the queue redelivers a batch, Fanout does not append the events again, but it may send the page tasks twice.
type Fanout struct {
	DB      store.DB
	Log     *eventlog.Log
	Catalog catalog.Source
	Queue   queue.Sender
	// Now is the clock; nil is [time.Now].
	Now func() time.Time
	// Metrics counts dead letters. It may be nil.
	Metrics *metric.Set
	// Tracer records a trace span for each event. It may be nil.
	Tracer *trace.Tracer
	// Logger logs failures; nil is [slog.Default].
	Logger *slog.Logger
}

func (f *Fanout) logger() *slog.Logger { return cmp.Or(f.Logger, slog.Default()) }

// uriBatch holds the events of one batch that have the same URI, in the order of the batch. The comments below call this a group.
type uriBatch struct {
	workspace, uri string
	entry          *catalog.Entry
	vars           map[string]string
	events         []event.Event
	messages       []queue.Message // the messages from which the events were decoded

	webhookKeys []string // the matching patterns that have webhook subscribers
	inBandKeys  []string // the matching patterns that streams or polls read
	appended    eventlog.Appended

	refused map[string]error // errors of events that the log cannot store, by message id
	err     error            // the error that affects all events of the group
}

// try calls step, and stores its error or panic in b.err, so that the groups of other URIs continue. If an earlier step of the group has
// failed, try does nothing.
func (b *uriBatch) try(step func() error) {
	if b.err != nil {
		return
	}
	defer fault.Recovered(&b.err)
	b.err = step()
}

// isNew reports whether the queue delivers all of the group's events for the first time, so that they cannot be in the log yet.
func (b *uriBatch) isNew() bool {
	return !slices.ContainsFunc(b.messages, func(m queue.Message) bool { return !m.First })
}

// Handle fans out a batch of events. It is the [queue.Handler] of the events queue.
//
// Handle dead-letters an event that can never be handled, so that the event does not block the later ones of its FIFO group. A temporary
// error in one group (see uriBatch) fails only the messages of that group, whose ids Handle returns. An error in a step that all groups
// share fails the whole batch.
func (f *Fanout) Handle(ctx context.Context, batch []queue.Message) (failed []string, err error) {
	groups, errs, spans := f.group(ctx, batch)
	defer func() {
		for message, span := range spans {
			span.End(spanError(cmp.Or(err, errs[message])))
		}
	}()
	if f.DB.Local() {
		err = f.deliverLocal(ctx, groups, batch)
	} else {
		err = f.deliver(ctx, groups)
	}
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		if g.err != nil {
			f.logger().ErrorContext(ctx, "fanout failed", "uri", g.uri, "events", len(g.events), "error", g.err)
			for _, m := range g.messages {
				errs[m.ID] = g.err
			}
			continue
		}
		maps.Copy(errs, g.refused)
	}
	return f.settle(ctx, batch, errs), nil
}

// deliverLocal appends the events to the log and sends page tasks, if the store is a local file that only this process uses. It does both
// concurrently, so that the first webhooks need not wait for the append. There are two exceptions:
//
//   - If the queue has redelivered a message, deliverLocal first appends the events, and then writes the tasks to the queue before the
//     webhooks are sent. Otherwise, while the disk is full, each redelivery would send the same webhooks again.
//   - If the queue has not written a message to disk yet, deliverLocal first appends the events, because a crash may still lose the
//     message. The commit of the event's log entry also writes the message.
//
// A client that subscribes from a cursor meanwhile waits for the batch before it replays the log. The first reader of a parent or
// wildcard waits, too; see [eventlog.Log.AwaitBatches].
func (f *Fanout) deliverLocal(ctx context.Context, groups []*uriBatch, batch []queue.Message) error {
	defer f.Log.BeginBatch()()
	subscribers, err := f.match(ctx, groups)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(batch, func(m queue.Message) bool { return m.Received > 1 }) {
		f.append(ctx, groups)
		return f.sendTasks(ctx, pageTasks(groups, subscribers))
	}
	if slices.ContainsFunc(batch, func(m queue.Message) bool { return m.Unwritten }) {
		f.append(ctx, groups)
		return f.forwardTasks(ctx, pageTasks(groups, subscribers))
	}
	var sending sync.WaitGroup
	tasks := pageTasks(groups, subscribers)
	sending.Go(func() {
		defer fault.Recovered(&err)
		err = f.forwardTasks(ctx, tasks)
	})
	f.append(ctx, groups)
	sending.Wait()
	return err
}

// deliver appends the events to the log and then sends page tasks.
//
// It looks for subscribers only after the append, because otherwise a client that subscribes from a cursor meanwhile could miss an event.
// In this order, either deliver finds the new subscription, or the subscription's replay finds the event in the log.
//
// If streams or polls read a pattern, deliver also appends the events to the pattern's partitions of the log. Then it looks for
// subscribers again, because a replay may read from these partitions.
func (f *Fanout) deliver(ctx context.Context, groups []*uriBatch) error {
	f.append(ctx, groups)
	subscribers, err := f.match(ctx, groups)
	if err != nil {
		return err
	}
	read := slices.DeleteFunc(slices.Clone(groups), func(g *uriBatch) bool { return len(g.inBandKeys) == 0 })
	if len(read) > 0 {
		each(read, func(g *uriBatch) error {
			return f.Log.AppendPatterns(ctx, g.appended, g.events, g.inBandKeys, g.entry.Unordered())
		})
		if subscribers, err = f.match(ctx, groups); err != nil {
			return err
		}
	}
	return f.sendTasks(ctx, pageTasks(groups, subscribers))
}

func (f *Fanout) sendTasks(ctx context.Context, tasks []queue.Outgoing) error {
	if len(tasks) == 0 {
		return nil
	}
	return fault.Wrap(fault.Unavailable, f.Queue.Send(ctx, queue.Deliveries, tasks...), "send page tasks")
}

// forwardTasks queues page tasks like sendTasks. But if the queue is in this process, the first webhooks are sent before the tasks are
// written to disk. After a crash in between, the events queue redelivers the event, which leads to the same tasks again.
func (f *Fanout) forwardTasks(ctx context.Context, tasks []queue.Outgoing) error {
	if len(tasks) == 0 {
		return nil
	}
	return fault.Wrap(fault.Unavailable, queue.Forward(ctx, f.Queue, queue.Deliveries, tasks...), "send page tasks")
}

// settle dead-letters the messages whose error is permanent. It returns the ids of the other messages with an error, which stay on the
// queue. When the queue redelivers such a message, it also redelivers all later messages of the same FIFO group, so settle does not
// dead-letter those messages yet.
func (f *Fanout) settle(ctx context.Context, batch []queue.Message, errs map[string]error) (failed []string) {
	var letters []queue.Outgoing
	var dead []string
	blocked := map[string]bool{}
	for _, m := range batch {
		err := errs[m.ID]
		switch {
		case err == nil:
		case task.IsPermanent(err) && (m.Group == "" || !blocked[m.Group]):
			reason := fault.Public(err)
			f.logger().ErrorContext(ctx, "event dead-lettered", "message", m.ID, "reason", reason)
			letters = append(letters, queue.NewDeadLetter(queue.Events, m, reason, nil, f.now()))
			dead = append(dead, m.ID)
		default:
			blocked[m.Group] = true
			failed = append(failed, m.ID)
		}
	}
	if len(letters) == 0 {
		return failed
	}
	if err := f.Queue.Send(ctx, queue.Dead, letters...); err != nil {
		f.logger().ErrorContext(ctx, "dead letter not sent", "queue", queue.Events, "messages", len(dead), "error", err)
		return append(failed, dead...)
	}
	f.Metrics.DeadLettered(string(queue.Events), len(letters))
	return failed
}

func spanError(err error) string {
	if err == nil {
		return ""
	}
	return fault.KindOf(err).String()
}

func pageTasks(groups []*uriBatch, subscribers map[patternID]int) (tasks []queue.Outgoing) {
	for _, g := range groups {
		g.try(func() error {
			var own []queue.Outgoing
			for _, key := range g.webhookKeys {
				for _, t := range task.Pages(g.workspace, key, subscription.Range{}, subscribers[patternID{g.workspace, key}], g.events) {
					own = append(own, t.Outgoing())
				}
			}
			tasks = append(tasks, own...)
			return nil
		})
	}
	return tasks
}

// group groups the events of a batch by workspace and URI. It also returns the errors of messages that cannot be handled, and the trace
// spans of the other messages, by message id.
//
// A message that a newer release wrote stays on the queue until [task.Renew] replaces it. When the queue redelivers it, it also
// redelivers the later messages of the same FIFO group. So group leaves the later messages on the queue, too, because otherwise each
// redelivery would repeat their webhooks.
func (f *Fanout) group(ctx context.Context, batch []queue.Message) (groups []*uriBatch, errs map[string]error, spans map[string]trace.Span) {
	type id struct{ workspace, uri string }
	byURI := map[id]*uriBatch{}
	errs = map[string]error{}
	blocked := map[string]error{}
	catalogs := latestCatalogs{source: f.Catalog}
	for _, m := range batch {
		f.Log.CheckClock(m.Sent)
		if err := blocked[m.Group]; err != nil && m.Group != "" {
			errs[m.ID] = err
			continue
		}
		e, err := task.DecodeEvent(m)
		if task.IsNewer(err) && task.Renew(ctx, f.logger(), f.Queue, queue.Events, m) {
			continue
		}
		var g *uriBatch
		if err == nil {
			g = byURI[id{e.Workspace, e.URI}]
			unordered := f.Log.Spreads() && m.Group != publish.OrderedGroup(e.Workspace, e.URI)
			if g == nil || g.entry.Name != e.Name || unordered && !g.entry.Unordered() {
				g, err = catalogs.find(ctx, g, &e, unordered)
			}
		}
		if err != nil {
			errs[m.ID] = err
			if !task.IsPermanent(err) {
				f.logger().WarnContext(ctx, "event left in queue", "message", m.ID, "error", err)
				blocked[m.Group] = err
			}
			continue
		}
		if len(g.events) == 0 {
			byURI[id{e.Workspace, e.URI}] = g
			groups = append(groups, g)
		}
		if span := f.Tracer.Continue(e.Trace, "fanout", trace.Consumer); span.Recording() {
			span.Set(trace.Event(e.Workspace, e.ID, e.Name)...)
			e.Trace = span.Context
			if spans == nil {
				spans = map[string]trace.Span{}
			}
			spans[m.ID] = span
		}
		g.events, g.messages = append(g.events, e), append(g.messages, m)
	}
	return groups, errs, spans
}

// latestCatalogs finds the event types of one batch's events. It reads the latest catalog of each workspace at most once.
type latestCatalogs struct {
	source catalog.Source
	latest map[string]latestCatalog // the catalogs that were read, by workspace
}

type latestCatalog struct {
	catalog *catalog.Catalog
	err     error
}

// find returns the group of an event's URI, with the event type that the URI matches. The parameter g is the existing group of the URI,
// or nil. The parameter unordered says that package publish has sent the event as an unordered one. Several processes may then have
// messages of the URI, so they must not append to the URI's own partition.
//
// find first looks in the catalog of this process, which may be seconds old. It reads the latest catalog in these cases:
//   - The URI matches no event type, or another type than the event names.
//   - The parameter unordered is true, but the type is ordered in this process's catalog.
func (c *latestCatalogs) find(ctx context.Context, g *uriBatch, e *event.Event, unordered bool) (_ *uriBatch, err error) {
	defer fault.Recovered(&err)
	if g == nil {
		g = &uriBatch{workspace: e.Workspace, uri: e.URI}
	}
	match := func(cat *catalog.Catalog) bool {
		entry, vars, ok := cat.Match(e.URI)
		if ok {
			g.entry, g.vars = entry, vars
		}
		return ok
	}
	last, read := c.latest[e.Workspace]
	if !read {
		cat, err := c.source.Catalog(ctx, e.Workspace)
		switch {
		case err == nil && match(cat) && g.entry.Name == e.Name && (g.entry.Unordered() || !unordered):
			return g, nil
		case err != nil && !fault.Is(err, fault.NotFound):
			return nil, err
		}
		last.catalog, last.err = catalog.Latest(ctx, c.source, e.Workspace)
		if c.latest == nil {
			c.latest = map[string]latestCatalog{}
		}
		c.latest[e.Workspace] = last
	}
	switch {
	case last.err != nil:
		return nil, last.err
	case !match(last.catalog):
		return nil, fault.New(fault.NotFound, "the URI matches no event type of the catalog")
	}
	return g, nil
}

func (f *Fanout) now() time.Time { return periodic.Clock(f.Now)() }

func (f *Fanout) append(ctx context.Context, groups []*uriBatch) {
	each(groups, func(g *uriBatch) error { return f.appendOne(ctx, g) })
}

// each calls step for the groups in which no earlier step has failed, several groups concurrently.
func each(groups []*uriBatch, step func(*uriBatch) error) {
	if len(groups) == 1 { // the usual case under little load, which needs no goroutine
		groups[0].try(func() error { return step(groups[0]) })
		return
	}
	var all errgroup.Group
	all.SetLimit(32)
	for _, g := range groups {
		all.Go(func() error {
			g.try(func() error { return step(g) })
			return nil
		})
	}
	_ = all.Wait() // each group keeps its own error
}

func (f *Fanout) appendOne(ctx context.Context, g *uriBatch) error {
	write := f.Log.Append
	switch {
	case f.Log.TotalOrder() && g.isNew():
		write = f.Log.AppendNew
	case g.entry.Unordered():
		write = f.Log.AppendUnordered
	}
	done, err := write(ctx, g.workspace, g.uri, g.events, g.inBandKeys)
	if task.IsPermanent(err) {
		// At least one of the events cannot be stored. Append them one by one to find out which.
		events, messages := g.events, g.messages
		g.events, g.messages, g.refused = nil, nil, map[string]error{}
		for i, e := range events {
			part, err := write(ctx, g.workspace, g.uri, events[i:i+1], g.inBandKeys)
			switch {
			case task.IsPermanent(err):
				g.refused[messages[i].ID] = err
				continue
			case err != nil:
				g.events, g.messages = events, messages
				return err
			}
			done.Unrecorded = done.Unrecorded || part.Unrecorded
			g.events, g.messages = append(g.events, e), append(g.messages, messages[i])
		}
		err = nil
	}
	if err != nil {
		return err
	}
	g.appended = done
	if done.Unrecorded {
		// Do not fail or wait long, because only clients that list sub-resources need this write. A failure would repeat the group's
		// webhooks. The write can be slow, because all URIs below a parent are in one partition.
		limited, cancel := context.WithTimeout(ctx, recordTime)
		defer cancel()
		if err := f.Log.RecordChild(limited, g.workspace, g.uri); err != nil {
			f.logger().WarnContext(ctx, "sub-resource not listed", "uri", g.uri, "error", err)
		}
	}
	return nil
}

// recordTime limits how long a group waits until its URI is recorded as a sub-resource of its parents.
const recordTime = time.Second

// patternID identifies a pattern to which clients subscribe. The field key is [match.Pattern.Key].
type patternID struct{ workspace, key string }

// match stores in each group the keys of the patterns that match the group's events: in webhookKeys, the patterns with webhook
// subscribers, and in inBandKeys, the patterns that streams or polls read. It returns each pattern's number of webhook subscribers. A
// second read of the store is needed only if parents or wildcards have subscribers or readers.
func (f *Fanout) match(ctx context.Context, groups []*uriBatch) (map[patternID]int, error) {
	now := f.now()
	var r reads
	for _, g := range groups {
		g.webhookKeys, g.inBandKeys = nil, nil
		g.try(func() error {
			wanted := []store.Key{subscription.HeaderKey(g.workspace, g.uri)}
			for _, scope := range match.ScopesOf(g.entry.Name) {
				wanted = append(wanted, subscription.ShapesKey(g.workspace, scope))
			}
			return r.want(wanted...)
		})
	}
	if err := r.do(ctx, f.DB); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the shapes in use")
	}
	for _, g := range groups {
		g.try(func() error {
			for _, scope := range match.ScopesOf(g.entry.Name) {
				webhooks, inBand := subscription.InUse(r.items[subscription.ShapesKey(g.workspace, scope)], scope, now)
				g.webhookKeys = append(g.webhookKeys, patternKeys(g, webhooks)...)
				g.inBandKeys = append(g.inBandKeys, patternKeys(g, inBand)...)
			}
			var wanted []store.Key
			for _, key := range g.webhookKeys {
				wanted = append(wanted, subscription.HeaderKey(g.workspace, key))
			}
			for _, key := range g.inBandKeys {
				wanted = append(wanted, eventlog.InterestKey(g.workspace, key))
			}
			return r.want(wanted...)
		})
	}
	if err := r.do(ctx, f.DB); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the patterns in use")
	}
	subscribers := map[patternID]int{}
	for _, g := range groups {
		g.try(func() error {
			g.webhookKeys = slices.DeleteFunc(g.webhookKeys, func(key string) bool {
				n := subscription.HeaderCount(r.items[subscription.HeaderKey(g.workspace, key)])
				subscribers[patternID{g.workspace, key}] = n
				return n <= 0
			})
			g.inBandKeys = slices.DeleteFunc(g.inBandKeys, func(key string) bool {
				return !eventlog.ReadInterest(r.items[eventlog.InterestKey(g.workspace, key)]).Until.After(now)
			})
			return nil
		})
	}
	return subscribers, nil
}

func patternKeys(g *uriBatch, shapes []match.Shape) (out []string) {
	for _, s := range shapes {
		if key, ok := match.KeyUnder(g.entry, g.vars, g.uri, s); ok {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}

// reads collects the store keys that all groups need, so that each key is read only once.
type reads struct {
	pending []store.Key
	items   map[store.Key]*store.Item
}

// want adds keys to the next read. If a key is not valid, want returns an error and adds no keys, because an invalid key would make the
// read fail for all groups.
func (r *reads) want(keys ...store.Key) error {
	for _, k := range keys {
		if err := k.Check(); err != nil {
			return err
		}
	}
	if r.items == nil {
		r.items = map[store.Key]*store.Item{}
	}
	for _, k := range keys {
		if _, ok := r.items[k]; !ok {
			r.items[k] = nil
			r.pending = append(r.pending, k)
		}
	}
	return nil
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
