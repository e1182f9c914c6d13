package streams

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// notify sends a delivery to the client. A delivery is an event or a notice that the feed has read. All kinds of streams use notify
// except events/stream, which has its own messages.
func (s *Stream) notify(ctx context.Context, d stream.Delivery) error {
	switch {
	case d.Event != nil:
		return s.sendEvent(ctx, d)
	case d.Lost != "":
		return s.sendLost(d)
	case d.Topic == stream.TopicCatalog && stream.IsBackendsNotice(d.Notice):
		return s.sendOtherBackends(ctx, d.Cursor)
	case d.Topic == stream.TopicCatalog:
		if err := s.sendChanges(d.Cursor, spec.NoteResourcesChange, spec.NoteEventsChange); err != nil {
			return err
		}
		if err := s.flush(); err != nil { // send the gathered messages first, because resolveAgain may wait for backends
			return err
		}
		return s.resolveAgain(ctx)
	case d.Topic == stream.TopicPrincipal(s.Caller.Principal.ID):
		return s.sendChanges(d.Cursor, spec.NoteResourcesChange)
	case strings.HasPrefix(d.Topic, topicSubscriptions):
		return s.sendState(d)
	case strings.HasPrefix(d.Topic, topicBackends):
		return s.sendBackend(ctx, d)
	case strings.HasPrefix(d.Topic, topicConversations):
		return s.sendContext(ctx, d)
	}
	return nil
}

func (s *Stream) wantsNotification(note string) bool {
	switch note {
	case spec.NoteResourcesChange:
		return s.interests.resources
	case spec.NoteEventsChange:
		return s.interests.events
	case spec.NoteToolsChange:
		return s.interests.tools
	case spec.NotePromptsChange:
		return s.interests.prompts
	case spec.NoteRootsChange:
		return s.interests.roots
	}
	return false
}

// sendEach sends one notification for each item of a delivery. Only the last notification has the cursor after the delivery. So a client
// that is disconnected earlier gets the whole delivery again.
func (s *Stream) sendEach(items []string, cursor string, send func(item, cursor string) error) error {
	for i, item := range items {
		at := s.completedCursor
		if i == len(items)-1 {
			at = cursor
		}
		if err := send(item, at); err != nil {
			return err
		}
	}
	return nil
}

func (s *Stream) sendChanges(cursor string, notes ...string) error {
	asked := slices.DeleteFunc(notes, func(note string) bool { return !s.wantsNotification(note) })
	return s.sendEach(asked, cursor, func(note, at string) error { return s.Send(note, nil, nil, at) })
}

var topicSubscriptions = stream.TopicSubscription("")

// sendEvent sends an event if the current catalog still lets the caller receive it on a stream.
func (s *Stream) sendEvent(ctx context.Context, d stream.Delivery) error {
	ev := d.Event
	cat, err := s.Streams.Catalogs.With(ctx, s.Caller.Principal, ev.Name)
	if err != nil {
		return err
	}
	if !MayReceive(cat, s.Caller.Principal, ev) || !cat.ByName(ev.Name).PushAllowed() {
		return nil
	}
	members := func(b []byte) []byte {
		b = jsonrpc.AppendString(append(b, `"uri":`...), ev.URI)
		b = append(b, `,"payload":`...)
		return append(b, ev.Data...)
	}
	return s.Send(spec.NoteUpdated, members, func(b []byte) []byte { return s.eventMeta(b, ev) }, d.Cursor)
}

func (s *Stream) eventMeta(b []byte, ev *event.Event) []byte {
	b = jsonrpc.AppendString(append(b, `"`+spec.MetaEventID+`":`...), ev.ID)
	b = jsonrpc.AppendString(append(b, `,"`+spec.MetaTime+`":`...), ev.Timestamp())
	if s.interests.payloads {
		b = append(b, `,"`+spec.MetaPayload+`":`...)
		b = append(b, ev.Data...)
	}
	return b
}

// sendLost tells the client that an event could not be read from the event log. For each subscribed URI to which the event may belong, it
// sends a notification that says that events are missing.
func (s *Stream) sendLost(d stream.Delivery) error {
	var uris []string
	for _, t := range s.targets {
		if slices.ContainsFunc(t.Patterns, func(p match.Pattern) bool { return p.Key == d.Lost }) {
			uris = append(uris, t.asked)
		}
	}
	return s.sendEach(uris, d.Cursor, s.sendGapOf)
}

func (s *Stream) sendGapOf(uri, cursor string) error {
	return s.Send(spec.NoteUpdated, func(b []byte) []byte {
		return jsonrpc.AppendString(append(b, `"uri":`...), uri)
	}, text(metaTruncated), cursor)
}

func (s *Stream) sendState(d stream.Delivery) error {
	for _, t := range s.targets {
		if t.topic != d.Topic {
			continue
		}
		var notice struct {
			State string `json:"state"`
		}
		_ = json.Unmarshal(d.Notice, &notice) // the notice was written by this program; without a state, the client has to read the resource
		return s.Send(spec.NoteUpdated, func(b []byte) []byte {
			b = jsonrpc.AppendString(append(b, `"uri":`...), t.asked)
			if notice.State != "" {
				b = jsonrpc.AppendString(append(b, `,"payload":{"state":`...), notice.State)
				b = append(b, '}')
			}
			return b
		}, nil, d.Cursor)
	}
	return nil
}

const metaTruncated = `"` + spec.MetaTruncated + `":true`

// text returns a function that appends the text s to a message, in the form that [Stream.Send] needs. It returns nil if s is empty.
func text[T string | []byte](s T) func([]byte) []byte {
	if len(s) == 0 {
		return nil
	}
	return func(b []byte) []byte { return append(b, s...) }
}

// Send writes a notification. The functions members and meta append the members of its params and of its _meta, without braces. Both may
// be nil. The parameter cursor is the position after the notification.
func (s *Stream) Send(name string, members, meta func([]byte) []byte, cursor string) error {
	text, wire := method.Buffers.Get().(*[]byte), method.Buffers.Get().(*[]byte)
	defer putBuffer(text)
	defer putBuffer(wire)
	b := append((*text)[:0], `{"jsonrpc":"2.0","method":"`...)
	b = append(b, name...)
	b = append(b, `","params":{`...)
	if members != nil {
		b = members(b)
	}
	if meta != nil || s.subscriptionID != nil {
		if members != nil {
			b = append(b, ',')
		}
		b = append(b, `"_meta":{`...)
		if s.subscriptionID != nil {
			b = s.appendIDs(b, cursor)
			if meta != nil {
				b = append(b, ',')
			}
		} else if name == spec.NoteUpdated && cursor != "" && meta != nil {
			b = jsonrpc.AppendString(append(b, `"`+spec.MetaCursor+`":`...), cursor)
			b = append(b, ',')
		}
		if meta != nil {
			b = meta(b)
		}
		b = append(b, '}')
	}
	b = append(b, `}}`...)
	e := sse.Event{Name: s.eventName, Data: b}
	if s.ids != nil {
		e.ID = s.ids.next(cursor)
	}
	*text = b
	*wire = sse.Append((*wire)[:0], e)
	return s.write(*wire)
}

// appendIDs appends the id of the subscription and the cursor as members of _meta. It leaves out an empty cursor, for example for an
// events/stream, which sends the cursor in params.
func (s *Stream) appendIDs(b []byte, cursor string) []byte {
	b = append(b, `"`+spec.MetaSubscription+`":`...)
	b = append(b, s.subscriptionID...)
	if cursor == "" {
		return b
	}
	b = append(b, `,"`+spec.MetaCursor+`":`...)
	return jsonrpc.AppendString(b, cursor)
}

func (s *Stream) backendTopics(ctx context.Context) (topics []string) {
	for _, name := range s.Streams.Backends.Backends(ctx, s.Caller.Principal) {
		topics = append(topics, stream.TopicBackend(name))
	}
	return topics
}

var topicBackends = stream.TopicBackend("")

// sendOtherBackends handles a change of the configured backends. It makes the stream read the notices of new backends. It also notifies
// the client that the lists of tools, prompts and resources may have changed.
func (s *Stream) sendOtherBackends(ctx context.Context, cursor string) error {
	now := s.Streams.Feeds.Log.Position()
	for _, topic := range s.backendTopics(ctx) {
		s.Feed.Follow(topic, now)
	}
	return s.sendChanges(cursor, spec.NoteToolsChange, spec.NotePromptsChange, spec.NoteResourcesChange)
}

func (s *Stream) sendBackend(ctx context.Context, d stream.Delivery) error {
	backends, name := s.Streams.Backends, strings.TrimPrefix(d.Topic, topicBackends)
	if !slices.Contains(backends.Backends(ctx, s.Caller.Principal), name) {
		return nil
	}
	n := api.ReadNotice(d.Notice)
	if n.Method != spec.NoteUpdated {
		return s.sendChanges(d.Cursor, n.Method)
	}
	uri, ok := jsonrpc.String(jsonrpc.Member(n.Params, "uri"))
	if !ok || !s.subscribedAt(d.Topic, uri) || !backends.Permits(ctx, s.Caller.Principal, name, uri) {
		return nil
	}
	// Send only the member uri, which MCP's schema defines. A client could mistake other members of the backend's notification for
	// members of this server, for example for an event's payload.
	members := func(b []byte) []byte { return jsonrpc.AppendString(append(b, `"uri":`...), uri) }
	return s.Send(spec.NoteUpdated, members, text(backendMeta(jsonrpc.Member(n.Params, "_meta"))), d.Cursor)
}

// subscribedAt reports whether the stream is subscribed to the backend's resource, or to a resource above it such as its folder. The
// parameter topic is the topic of the backend's notices.
func (s *Stream) subscribedAt(topic, uri string) bool {
	for _, t := range s.targets {
		if t.Backend != "" && stream.TopicBackend(t.Backend) == topic && api.Covers(t.URI, uri) {
			return true
		}
	}
	return false
}

// backendMeta returns the members of a backend's _meta that may reach a client, without braces. It drops members whose names have our
// prefix or a prefix that MCP reserves, because only the gateway sets such members. For example, MCP reserves the names of the members
// with the id of the client's listen (2026-07-28) and the id of a task (2025-11-25).
func backendMeta(meta json.RawMessage) (members []byte) {
	for name, value := range jsonrpc.Members(meta) {
		if !reservedMeta(string(name)) {
			members = jsonrpc.AppendMember(members, string(name), value)
		}
	}
	return members
}

// reservedMeta reports whether the name of a member of _meta has [spec.OwnPrefix] or a prefix that MCP reserves. A prefix consists of
// labels separated by dots, for example "com.example/". MCP reserves prefixes that have the label "mcp" or "modelcontextprotocol" at a
// certain position, which depends on the revision:
//
//   - as the second label, for example "io.modelcontextprotocol/" or "dev.mcp.tools/",
//   - in revision 2025-06-18, as any label except the last, for example "mcp.dev/" or "com.example.mcp.tools/".
//
// reservedMeta applies both rules. It ignores case, because some JSON readers do.
func reservedMeta(name string) bool {
	if spec.IsOwn(name) {
		return true
	}
	prefix, _, ok := strings.Cut(strings.ToLower(name), "/")
	if !ok {
		return false
	}
	labels := strings.Split(prefix, ".")
	for i, label := range labels {
		if (label == "mcp" || label == "modelcontextprotocol") && (i == 1 || i < len(labels)-1) {
			return true
		}
	}
	return false
}

// logger is the value of the member "logger" in log messages that this server itself sends to clients.
const logger = "mcp-events"

func (s *Stream) sendLog(level, message, uri string) error {
	if s.interests.level == "" || !spec.SevereAs(level, s.interests.level) {
		return nil
	}
	return s.Send(spec.NoteMessage, func(b []byte) []byte {
		b = append(b, `"level":"`+level+`","logger":"`+logger+`","data":{"message":`...)
		b = jsonrpc.AppendString(b, message)
		if uri != "" {
			b = jsonrpc.AppendString(append(b, `,"uri":`...), uri)
		}
		return append(b, '}')
	}, nil, s.Feed.Cursor())
}

// subscribeBackends subscribes to the stream's URIs at the backends that serve them. The parameter holder is an id for the stream. The
// subscriptions expire at the time until. The function end ends them earlier.
func (s *Stream) subscribeBackends(ctx context.Context, holder string, until time.Time) (end func(), err error) {
	var all []api.Subscription
	end = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reserve/2)
		defer cancel()
		for _, subscribed := range all {
			if err := s.Streams.Backends.Unsubscribe(ctx, subscribed); err != nil {
				s.Streams.Faults.LogError(ctx, "backend subscription left to expire", err)
			}
		}
	}
	for _, t := range s.targets {
		if t.Backend == "" {
			continue
		}
		wanted := api.Subscription{Place: api.Place{Workspace: s.Caller.Principal.Workspace, Backend: t.Backend}, URI: t.URI, Principal: s.Caller.Principal.ID, Holder: holder, Until: until}
		if err := s.Streams.Backends.Subscribe(ctx, wanted); err != nil {
			end()
			return nil, err
		}
		all = append(all, wanted)
	}
	return end, nil
}

// Conversation forwards messages of conversations to context providers, and returns their context. [conversation.Service] implements it.
type Conversation interface {
	// Enabled reports whether any context provider is configured. Offers returns the kinds of messages that the principal may send.
	Enabled(ctx context.Context) bool
	Offers(ctx context.Context, p auth.Principal) conversation.Offers
	Forward(ctx context.Context, c api.Client, m *conversation.Message) (*conversation.Context, error)
	// Seal encrypts a context before it is written to the event log, and Open decrypts it, so that readers of the store do not see it.
	Seal(p auth.Principal, text []byte) []byte
	Open(p auth.Principal, sealed []byte) ([]byte, error)
}

// MetaCut is the member of _meta that tells a client that the context for a conversation message is incomplete.
const MetaCut = `"` + spec.MetaContextCut + `":true`

// ContextLife is how long the context for a conversation message stays in the event log, in case the client's stream was interrupted. It
// is short, because a context is of no use once the conversation has moved on to other messages.
const ContextLife = 2 * time.Minute

// ContextNotice carries the context for a conversation message, through the event log, to the client's stream. The context is encrypted,
// because the event log stores it. Cut is true if the context is incomplete.
type ContextNotice struct {
	Context []byte `json:"context,omitempty"`
	Cut     bool   `json:"cut,omitempty"`
}

var contextPrefix = []byte(`{"context":`)

var topicConversations = stream.TopicConversation("")

func (s *Stream) sendContext(ctx context.Context, d stream.Delivery) error {
	var n ContextNotice
	if json.Unmarshal(d.Notice, &n) != nil || s.Streams.Conversation == nil {
		return nil // the notice has the form of another version of this program
	}
	members, err := s.Streams.Conversation.Open(s.Caller.Principal, n.Context)
	if err != nil { // report the error, and continue without this context
		s.Streams.Faults.LogError(ctx, "sealed context not opened", err)
		return nil
	}
	meta := ""
	if n.Cut {
		meta = MetaCut
	}
	return s.Send(spec.NoteContext, text(members), text(meta), d.Cursor)
}
