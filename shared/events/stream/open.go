package stream

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/demand"
	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
)

// Request selects the events and notices of a feed, and where it starts.
type Request struct {
	Workspace string
	// Principal is the reader. It matters only for events of backends, to which the relay subscribes on the principal's behalf.
	Principal string
	Patterns  []match.Pattern // [Feed.Add] adds more
	Topics    []string        // e.g. [TopicCatalog]
	// Cursor is the position at which another feed of the workspace ended, and after which this feed starts. If it is empty, the feed
	// starts at the end of the log.
	Cursor string
	// TopicsAfter is the position after which the feed returns notices (see [eventlog.Log.Position]); 0 is the end of the log. It is
	// ignored if the request has a cursor and Sole is false, because the notices then begin at the cursor's position.
	TopicsAfter int64
	// MaxAge is the maximum age of the events after a cursor; 0 is no limit. Events may be older by up to [eventlog.Window].
	MaxAge time.Duration
	// Sole says that the feed has a single pattern, and that the client will resume with the same pattern. A resumed feed then reads its
	// topics from [Request.TopicsAfter] instead of the cursor, so that it does not repeat notices.
	Sole bool
	// Wants reports whether the feed returns an event; nil returns all events.
	Wants func(*event.Event) bool
}

// Open starts a feed. It returns an error of kind Invalid if this deployment did not make the cursor for the workspace.
//
// Fanout copies events to the log's partitions of a parent or wildcard only while a client reads that pattern. So Open records the interest
// ([eventlog.Interest]) before it returns, and the feed returns every event that is published afterwards.
func (ts *Tails) Open(ctx context.Context, r Request) (*Feed, error) {
	f := &Feed{tails: ts, workspace: r.Workspace, principal: r.Principal, wants: r.Wants}
	f.in.most, f.in.wake = ts.mostWaiting, make(chan struct{}, 1)
	f.at.log, f.at.sources, f.at.sole = ts.Log, map[string]*source{}, r.Sole
	begin := func() error { return nil } // an exactMerge needs no preparation, because its sources begin at the end of the log
	if ts.Log.TotalOrder() {
		f.merge = &exactMerge{at: &f.at, in: &f.in}
	} else {
		m := &stampedMerge{at: &f.at, in: &f.in}
		f.merge, begin = m, func() error { return m.begin(ctx, r.Workspace, &f.sent) }
	}
	for _, p := range r.Patterns { // before the feed takes its position, because the relay may first have to subscribe at a backend
		if err := ts.Demand.Want(ctx, r.Workspace, r.Principal, p.Key); err != nil {
			return nil, err
		}
	}
	opened, now := ts.Log.Time().UnixMicro(), ts.Log.Position()
	from := func(eventlog.Partition) int64 { return now }
	f.at.begun, f.at.given = now, opened
	topics := cmp.Or(r.TopicsAfter, now)
	if r.Cursor != "" {
		c, err := ts.Sealer.Open(r.Workspace, r.Cursor)
		if err != nil {
			return nil, err
		}
		f.at.begun, f.at.given = c.At, c.Given
		from = func(p eventlog.Partition) int64 {
			start, truncated := ts.startPosition(c, p, r.MaxAge)
			f.Truncated = f.Truncated || truncated
			return start
		}
		if !r.Sole && len(r.Topics) > 0 {
			topics = from(eventlog.Partition{})
		}
		f.resume = make(map[uint64]struct{}, len(c.Sent))
		for _, h := range c.Sent {
			f.resume[h] = struct{}{}
		}
	}
	for _, p := range r.Patterns {
		if err := f.add(ctx, p, from); err != nil {
			f.Close()
			return nil, err
		}
	}
	if r.Cursor == "" {
		if err := begin(); err != nil {
			f.Close()
			return nil, err
		}
	}
	for _, t := range r.Topics {
		for _, p := range ts.topicPartitions(ctx, r.Workspace, t) {
			f.join(&source{part: p, pattern: t, topic: true}, topics, renewal{})
		}
	}
	return f, nil
}

// Add makes the feed return the events of another pattern, too. It begins with the events after the given position in the event log; see
// [eventlog.Log.Position].
func (f *Feed) Add(ctx context.Context, p match.Pattern, after int64) error {
	return f.add(ctx, p, func(eventlog.Partition) int64 { return after })
}

func (f *Feed) add(ctx context.Context, p match.Pattern, from func(eventlog.Partition) int64) error {
	parts := p.Partitions(f.tails.Log, f.workspace)
	if len(parts) == 1 {
		part := parts[0]
		f.join(&source{part: part, pattern: p.Key, place: f.tails.Sealer.PlaceOf(part, 0).Partition}, from(part), f.renewDemand(p))
		return nil
	}
	renew := renewal{every: min(renewEvery, f.tails.Log.MinRetention()/8), do: func(ctx context.Context) error {
		_, err := subscription.RecordInterest(ctx, f.tails.DB, f.tails.Log, f.workspace, p)
		return err
	}}
	in, err := subscription.RecordInterest(ctx, f.tails.DB, f.tails.Log, f.workspace, p)
	if err != nil {
		return err
	}
	for _, part := range parts {
		start := from(part)
		if since := in.FirstPosition(); since > max(start, f.at.given) && f.resume != nil {
			f.Truncated = true
			start = since
		}
		f.join(&source{part: part, pattern: p.Key}, start, renew)
	}
	return nil
}

// renewDemand returns a renewal that keeps the relay subscribed to a backend's events. For events of this server, it returns the zero
// renewal.
func (f *Feed) renewDemand(p match.Pattern) renewal {
	if catalog.BackendOf(p.Key) == "" {
		return renewal{}
	}
	return renewal{every: demand.RenewEvery, principal: f.principal, do: func(ctx context.Context) error {
		return f.tails.Demand.Want(ctx, f.workspace, f.principal, p.Key)
	}}
}

func (f *Feed) join(s *source, start int64, renew renewal) {
	if f.at.sources[s.part.Name()] != nil {
		return
	}
	s.start, s.floor, s.past = start, start, start
	f.at.sources[s.part.Name()] = s
	f.at.behind = append(f.at.behind, s)
	f.in.startCatchUp()
	t := f.tails.join(f, s.part, renew)
	s.written, s.growing = t.written, t.lookBack == 0
}

// Remove ends the feed's subscription to a pattern. The feed may still return events that match another of its patterns.
func (f *Feed) Remove(p match.Pattern) { f.remove(p.Key, false) }

// Follow makes the feed return the notices of a topic, too, for example notices about changes of a subscription. It begins with the notices
// after the given position in the event log; see [eventlog.Log.Position].
func (f *Feed) Follow(topic string, after int64) {
	f.join(&source{part: eventlog.TopicPartition(f.workspace, topic), pattern: topic, topic: true}, after, renewal{})
}

// Unfollow removes a topic that [Feed.Follow] added.
func (f *Feed) Unfollow(topic string) { f.remove(topic, true) }

func (f *Feed) remove(pattern string, topic bool) {
	for name, s := range f.at.sources {
		if s.pattern == pattern && s.topic == topic {
			f.tails.leave(f, s.part)
			delete(f.at.sources, name)
			f.merge.forget(s)
		}
	}
}

// startPosition returns where a reader with a cursor starts in a partition. The result truncated reports whether the reader misses
// events, because the log no longer has them or they are older than maxAge.
//
// startPosition allows events that are older than maxAge by up to [eventlog.Window]. If writers choose the keys, a cursor's position may
// be this much before the time at which the client got the cursor.
func (ts *Tails) startPosition(c eventlog.Cursor, p eventlog.Partition, maxAge time.Duration) (start int64, truncated bool) {
	floor := ts.Log.Oldest()
	if maxAge > 0 {
		floor = max(floor, ts.Log.Time().Add(-maxAge-eventlog.Window).UnixMicro())
	}
	return ts.Log.StartPosition(c, ts.Sealer.PositionIn(c, p), floor)
}

// changeLag is how long a process may still use the previous catalog after fanout has begun to use a changed one.
const changeLag = 2 * time.Minute

// PositionAfterChange returns the position after which [Feed.Add] must read a pattern that a changed catalog adds to an open stream. For
// an unordered event type, the position is earlier by [changeLag]. If the type has just become unordered, fanout may have written its
// events to other partitions for up to changeLag before this process learned of the change.
func (ts *Tails) PositionAfterChange(p match.Pattern) int64 {
	after := ts.Log.Position() - time.Second.Microseconds()
	if p.Unordered {
		after -= changeLag.Microseconds()
	}
	return after
}

// The following functions and constants name topics. A topic is a sequence of notices within a workspace. The package that sends a
// topic's notices defines their JSON.

// TopicCatalog is the topic for changes of a workspace's event types and backends. [IsBackendsNotice] tells the two kinds of notices
// apart.
const TopicCatalog = "catalog"

// topicPartitions returns the partitions of a topic. [TopicCatalog] has a second partition if the workspace uses the shared catalog
// ([catalog.Shared]), for changes of that catalog.
func (ts *Tails) topicPartitions(ctx context.Context, workspace, topic string) []eventlog.Partition {
	out := []eventlog.Partition{eventlog.TopicPartition(workspace, topic)}
	if topic == TopicCatalog && ts.Shares != nil && ts.Shares(ctx, workspace) {
		out = append(out, eventlog.TopicPartition(catalog.Shared, topic))
	}
	return out
}

// TopicPrincipal returns the topic for changes of a principal's subscriptions.
func TopicPrincipal(principal string) string {
	return "principal-" + base64.RawURLEncoding.EncodeToString([]byte(principal))
}

// TopicSubscription returns the topic for changes of a subscription's state.
func TopicSubscription(id string) string { return "subscription-" + id }

// TopicSession returns the topic for changes that other requests of a session make to the session's open stream.
func TopicSession(id string) string { return "session-" + id }

// AnnounceBackends notifies the streams of a workspace that its backends or their settings have changed. The parameter version is the
// version of the new settings. It is part of the notice's id, so that readers get only one notice even if several processes announce the
// change.
func AnnounceBackends(ctx context.Context, log *eventlog.Log, workspace, version string) error {
	notice, _ := json.Marshal(backendsNotice{version}) // cannot fail for a string
	return log.NotifyAs(ctx, workspace, TopicCatalog, "backends-"+version, notice)
}

type backendsNotice struct {
	Backends string `json:"backends"`
}

// IsBackendsNotice reports whether a notice of [TopicCatalog] is from [AnnounceBackends], and not about changed event types.
func IsBackendsNotice(notice json.RawMessage) bool {
	var n backendsNotice
	return json.Unmarshal(notice, &n) == nil && n.Backends != ""
}

// AnnounceStored returns a function that notifies streams of a changed settings document, for [settings.Announce].
func AnnounceStored(log *eventlog.Log) func(context.Context, settings.Change) error {
	return func(ctx context.Context, c settings.Change) error {
		version := strconv.FormatInt(c.Version, 10)
		if c.Kind == settings.Backends {
			return AnnounceBackends(ctx, log, c.Workspace, version)
		}
		notice, _ := json.Marshal(map[string]string{"version": version}) // cannot fail for strings
		return log.NotifyAs(ctx, c.Workspace, TopicCatalog, string(c.Kind)+"-"+c.Workspace+"-"+version, notice)
	}
}

// TopicBackend returns the topic for notifications that a backend has sent to the gateway.
func TopicBackend(name string) string { return "backend-" + name }

// TopicConversation returns the topic for a principal's conversation messages that belong to no session. Its notices have the context
// that context providers return for such a message.
func TopicConversation(principal string) string {
	return "conversation-" + base64.RawURLEncoding.EncodeToString([]byte(principal))
}
