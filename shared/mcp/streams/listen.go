package streams

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// filter lists the notifications that a subscriptions/listen asks for, or the part of this list that the server honors.
type filter struct {
	ToolsListChanged      bool     `json:"toolsListChanged,omitempty"`
	PromptsListChanged    bool     `json:"promptsListChanged,omitempty"`
	ResourcesListChanged  bool     `json:"resourcesListChanged,omitempty"`
	EventsListChanged     bool     `json:"eventsListChanged,omitempty"`
	ResourceSubscriptions []string `json:"resourceSubscriptions,omitempty"`
	TaskIDs               []string `json:"taskIds,omitempty"` // of the tasks extension (SEP-2663)
	// ConversationContext is a member that this server adds to MCP's filter. It asks for the context that belongs to conversation
	// messages which the principal sends as notifications.
	ConversationContext bool `json:"conversationContext,omitempty"`
}

// listenFraming implements [Framing] for subscriptions/listen (revision 2026-07-28).
type listenFraming struct {
	basicFraming
	stream  *Stream
	honored filter // the part of the client's filter that the server honors
}

func (l *listenFraming) Begin(context.Context) error {
	members, meta := append([]byte(`"notifications":`), jsonrpc.Encode(l.honored)...), ""
	if l.stream.Feed.Truncated {
		meta = metaTruncated
	}
	return l.stream.Send(spec.NoteAcknowledged, text(members), text(meta), l.stream.ResumeAt())
}

func (l *listenFraming) Deliver(ctx context.Context, d stream.Delivery) error {
	if err := l.stream.verify(ctx, d); err != nil {
		return err
	}
	return l.stream.notify(ctx, d)
}

func (l *listenFraming) Heartbeat(ctx context.Context) error { return l.stream.sendComment(ctx) }

func (l *listenFraming) End(c *method.Call, _ error) { l.stream.Complete(c, l.stream.ResumeAt()) }

// Listen returns the handler of subscriptions/listen.
func (st *Streams) Listen() method.Handler { return Streaming{Streams: st, Open: st.openListen} }

func (st *Streams) openListen(ctx context.Context, c *method.Call) (*Stream, error) {
	asked, err := readFilter(c)
	if err != nil {
		return nil, err
	}
	cursor, err := readCursor(c)
	if err != nil {
		return nil, err
	}
	l := &listenFraming{}
	s := st.New(c, Options{Kind: kindListen, Framing: l, Gather: true})
	l.stream = s
	s.interests.payloads = method.Declares(jsonrpc.Member(c.Meta, spec.MetaCapabilities), spec.OwnExtension)
	if l.honored, err = s.setUpFilter(ctx, asked); err != nil {
		return nil, err
	}
	if l.honored.TaskIDs, err = s.watchTasks(ctx, c, asked.TaskIDs); err != nil {
		return nil, err
	}
	request := stream.Request{Workspace: c.Principal.Workspace, Topics: s.extraTopics(ctx), Cursor: cursor}
	for _, t := range s.targets {
		t.addTo(&request)
	}
	if err := s.Open(ctx, request); err != nil {
		return nil, err
	}
	unsubscribe, err := s.subscribeBackends(ctx, randomText(16), time.Now().Add(st.Admission.maxAge+time.Minute))
	if err != nil {
		return s, err
	}
	s.ends = append(s.ends, unsubscribe)
	return s, nil
}

// Complete answers the request of a stream with its result, which ends the stream. The cursor may be empty.
func (s *Stream) Complete(c *method.Call, cursor string) {
	text := s.Streams.Replies.AppendResult(nil, c, method.Result{Meta: s.appendIDs(nil, cursor)})
	_ = s.write(sse.Append(nil, sse.Event{Data: text})) // the stream ends either way
}

func readFilter(c *method.Call) (f filter, err error) {
	raw := c.Param("notifications")
	if len(raw) == 0 || raw[0] != '{' {
		return f, method.InvalidParams("notifications must be an object")
	}
	flags := map[string]*bool{
		"toolsListChanged": &f.ToolsListChanged, "promptsListChanged": &f.PromptsListChanged,
		"resourcesListChanged": &f.ResourcesListChanged, "eventsListChanged": &f.EventsListChanged,
		"conversationContext": &f.ConversationContext,
	}
	for key, value := range jsonrpc.Members(raw) {
		name, null := string(key), string(value) == "null"
		if flag := flags[name]; flag != nil {
			*flag = string(value) == "true"
			if !*flag && string(value) != "false" && !null {
				return f, method.InvalidParams("%s must be a boolean", name)
			}
		}
		if name == "resourceSubscriptions" && !null && json.Unmarshal(value, &f.ResourceSubscriptions) != nil {
			return f, method.InvalidParams("resourceSubscriptions must be an array of strings")
		}
		if name == "taskIds" && !null && json.Unmarshal(value, &f.TaskIDs) != nil {
			return f, method.InvalidParams("taskIds must be an array of strings")
		}
	}
	return f, nil
}

// readCursor returns the cursor after which the stream begins, or "" if it begins with new events.
func readCursor(c *method.Call) (string, error) {
	raw := jsonrpc.Member(c.Meta, spec.MetaCursor)
	if raw == nil {
		return "", nil
	}
	cursor, ok := jsonrpc.String(raw)
	if !ok || cursor == "" {
		return "", method.InvalidParams("%s must be a cursor of this server", spec.MetaCursor)
	}
	return cursor, nil
}

// setUpFilter makes the stream send the notifications that the client asked for, except for notifications that the server does not
// support or the caller may not receive. It returns the filter that the acknowledgment repeats to the client.
func (s *Stream) setUpFilter(ctx context.Context, asked filter) (filter, error) {
	s.interests.resources = asked.ResourcesListChanged && s.Streams.Methods.Has(spec.MethodResources)
	s.interests.events = asked.EventsListChanged && s.Streams.Methods.Has(spec.MethodEvents)
	s.interests.contexts = asked.ConversationContext && s.Streams.Conversation != nil && s.Streams.Conversation.Offers(ctx, s.Caller.Principal).Any()
	// Remember that the client wants to know of changed tools and prompts even if no backend has tools or prompts now, because such a
	// backend may be added. The acknowledgment to the client names these notifications only if there are tools or prompts now.
	s.interests.tools = asked.ToolsListChanged && s.Streams.Methods.Has(spec.MethodToolsList)
	s.interests.prompts = asked.PromptsListChanged && s.Streams.Methods.Has(spec.MethodPromptsList)
	var offers api.Capabilities
	if backends := s.Streams.Backends; (s.interests.tools || s.interests.prompts) && backends.Any(ctx) {
		offers = backends.Capabilities(ctx, api.Client{Principal: s.Caller.Principal})
	}
	out := filter{
		ToolsListChanged: s.interests.tools && offers.Tools, PromptsListChanged: s.interests.prompts && offers.Prompts,
		ResourcesListChanged: s.interests.resources, EventsListChanged: s.interests.events, ConversationContext: s.interests.contexts,
	}
	if len(asked.ResourceSubscriptions) == 0 {
		return out, nil
	}
	if most := s.Streams.MaxURIs; len(asked.ResourceSubscriptions) > most {
		return out, session.LimitReached("streamURIs", most)
	}
	cat, err := s.Streams.Catalogs.CatalogOf(ctx, s.Caller.Principal)
	if err != nil {
		return out, err
	}
	open := 0
	for _, uri := range asked.ResourceSubscriptions {
		t, err := s.Streams.Resolve(ctx, cat, s.Caller.Principal, uri)
		switch kind := fault.KindOf(err); {
		case err == nil:
		case kind == fault.Internal || kind == fault.Unavailable:
			return out, err
		default:
			continue
		}
		if _, twice := s.targets[t.URI]; twice {
			continue
		}
		if open += t.CountOpen(); open > s.Streams.MaxPatterns {
			return out, session.LimitReached("streamPatterns", s.Streams.MaxPatterns)
		}
		s.targets[t.URI] = t
		out.ResourceSubscriptions = append(out.ResourceSubscriptions, uri)
	}
	return out, nil
}

// watchTasks makes the stream receive the states of the tasks that a subscriptions/listen names, until the stream ends. It returns the
// ids of the tasks whose states the client will receive.
func (s *Stream) watchTasks(ctx context.Context, c *method.Call, ids []string) (watched []string, err error) {
	if len(ids) == 0 || !s.Streams.Backends.Any(ctx) {
		return nil, nil
	}
	if most := s.Streams.MaxURIs; len(ids) > most {
		return nil, session.LimitReached("streamURIs", most)
	}
	ctx, cancel := context.WithCancel(ctx)
	watched, s.tasks, err = s.Streams.Backends.WatchTasks(ctx, c.Client(), ids)
	states := s.tasks
	s.ends = append(s.ends, func() {
		cancel()
		for states != nil {
			if _, open := <-states; !open {
				return
			}
		}
	})
	return watched, err
}

// sendTask sends the state of a task to the client if the caller may still use the task's backend. If t is nil, no further states will
// arrive.
func (s *Stream) sendTask(ctx context.Context, t *api.Task) error {
	if t == nil {
		s.tasks = nil
		return nil
	}
	if s.CheckDue() { // while states arrive, there are no heartbeats, which would check the credentials
		if err := s.CheckCredentials(ctx); err != nil {
			return err
		}
	}
	if !slices.Contains(s.Streams.Backends.Backends(ctx, s.Caller.Principal), t.Backend) {
		return nil
	}
	members := method.WithoutBraces(jsonrpc.Without(t.Params, func(name string) bool { return name == "_meta" }))
	return s.Send(spec.NoteTasks, text(members), text(backendMeta(jsonrpc.Member(t.Params, "_meta"))), s.ResumeAt())
}
