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
	// ConversationContext is our own member. It asks for the context that belongs to the conversation messages that the
	// principal sends as notifications.
	ConversationContext bool `json:"conversationContext,omitempty"`
}

// acknowledge sends the first message of a subscriptions/listen. It contains the honored part of the filter, and tells the
// client whether events after its cursor are missing.
func (w *Writer) acknowledge(honored filter) error {
	members, meta := append([]byte(`"notifications":`), jsonrpc.Encode(honored)...), ""
	if w.Feed.Truncated {
		meta = metaTruncated
	}
	return w.Send(spec.NoteAcknowledged, text(members), text(meta), w.ResumeAt())
}

// Listen serves subscriptions/listen.
func (st *Streams) Listen() method.Handler { return Streaming{Streams: st, Open: st.openListen} }

// openListen opens the stream of a subscriptions/listen (revision 2026-07-28), with a feed for the honored part of its filter.
func (st *Streams) openListen(ctx context.Context, c *method.Call) (*Writer, error) {
	asked, err := readFilter(c)
	if err != nil {
		return nil, err
	}
	cursor, err := readCursor(c)
	if err != nil {
		return nil, err
	}
	o := &Writer{
		Kind: kindListen, Streams: st, Caller: Caller{Principal: c.Principal, Header: c.Request.Header},
		interests: interests{payloads: method.Declares(jsonrpc.Member(c.Meta, spec.MetaCapabilities), spec.OwnExtension)}, targets: map[string]Target{},
	}
	honored, err := o.setUpFilter(ctx, asked)
	if err != nil {
		return nil, err
	}
	if honored.TaskIDs, err = o.watchTasks(ctx, c, asked.TaskIDs); err != nil {
		return nil, err
	}
	o.Framing = Framing{
		Begin: func() error { return o.acknowledge(honored) },
		End:   func(c *method.Call, _ error) { o.Complete(c, o.ResumeAt()) },
	}
	request := stream.Request{Workspace: c.Principal.Workspace, Topics: o.extraTopics(ctx), Cursor: cursor}
	for _, t := range o.targets {
		t.addTo(&request)
	}
	if err := o.Open(ctx, request); err != nil {
		return nil, err
	}
	unsubscribe, err := o.subscribeBackends(ctx, randomText(16), time.Now().Add(st.Admission.maxAge+time.Minute))
	if err != nil {
		return o, err
	}
	o.ends = append(o.ends, unsubscribe)
	return o, nil
}

// Complete answers the request of a stream with its result, which ends the stream.
func (w *Writer) Complete(c *method.Call, cursor string) {
	text := w.Streams.Replies.AppendResult(nil, c, method.Result{Meta: w.appendIDs(nil, cursor)})
	_ = w.write(sse.Append(nil, sse.Event{Data: text})) // the stream ends either way
}

// readFilter reads the notifications that a listen asks for.
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

// readCursor returns the cursor after which a listen continues. It is empty if the listen begins with new events.
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

// setUpFilter sets up the part of the filter that the server supports and the caller may receive, and returns it. It leaves out URIs that
// are unknown or forbidden.
func (w *Writer) setUpFilter(ctx context.Context, asked filter) (filter, error) {
	w.interests.resources = asked.ResourcesListChanged && w.Streams.Methods.Has(spec.MethodResources)
	w.interests.events = asked.EventsListChanged && w.Streams.Methods.Has(spec.MethodEvents)
	w.interests.contexts = asked.ConversationContext && w.Streams.Conversation != nil && w.Streams.Conversation.Offers(ctx, w.Caller.Principal).Any()
	// If no backend has tools or prompts now, the acknowledgment leaves them out, but the client is notified when a backend is
	// added.
	w.interests.tools = asked.ToolsListChanged && w.Streams.Methods.Has(spec.MethodToolsList)
	w.interests.prompts = asked.PromptsListChanged && w.Streams.Methods.Has(spec.MethodPromptsList)
	var offers api.Capabilities
	if backends := w.Streams.Backends; (w.interests.tools || w.interests.prompts) && backends.Any(ctx) {
		offers = backends.Capabilities(ctx, api.Client{Principal: w.Caller.Principal})
	}
	out := filter{
		ToolsListChanged: w.interests.tools && offers.Tools, PromptsListChanged: w.interests.prompts && offers.Prompts,
		ResourcesListChanged: w.interests.resources, EventsListChanged: w.interests.events, ConversationContext: w.interests.contexts,
	}
	if len(asked.ResourceSubscriptions) == 0 {
		return out, nil
	}
	if most := w.Streams.MaxURIs; len(asked.ResourceSubscriptions) > most {
		return out, session.LimitReached("streamURIs", most)
	}
	cat, err := w.Streams.Catalogs.CatalogOf(ctx, w.Caller.Principal)
	if err != nil {
		return out, err
	}
	open := 0
	for _, uri := range asked.ResourceSubscriptions {
		t, err := w.Streams.Targets.Resolve(ctx, cat, w.Caller.Principal, uri)
		switch kind := fault.KindOf(err); {
		case err == nil:
		case kind == fault.Internal || kind == fault.Unavailable:
			return out, err
		default:
			continue
		}
		if _, twice := w.targets[t.URI]; twice {
			continue
		}
		if open += t.Open(); open > w.Streams.MaxPatterns {
			return out, session.LimitReached("streamPatterns", w.Streams.MaxPatterns)
		}
		w.targets[t.URI] = t
		out.ResourceSubscriptions = append(out.ResourceSubscriptions, uri)
	}
	return out, nil
}

// watchTasks begins to receive the states of the tasks that a listen names, until the stream ends. It returns the ids of the
// tasks whose states the client will receive.
func (w *Writer) watchTasks(ctx context.Context, c *method.Call, ids []string) (watched []string, err error) {
	if len(ids) == 0 || !w.Streams.Backends.Any(ctx) {
		return nil, nil
	}
	if most := w.Streams.MaxURIs; len(ids) > most {
		return nil, session.LimitReached("streamURIs", most)
	}
	ctx, cancel := context.WithCancel(ctx)
	watched, w.tasks, err = w.Streams.Backends.WatchTasks(ctx, c.Client(), ids)
	states := w.tasks
	w.ends = append(w.ends, func() {
		cancel()
		for states != nil {
			if _, open := <-states; !open {
				return
			}
		}
	})
	return watched, err
}

// sendTask sends a state of a task, if the caller may still see its backend. If t is nil, no further states will come.
func (w *Writer) sendTask(ctx context.Context, t *api.Task) error {
	if t == nil {
		w.tasks = nil
		return nil
	}
	if w.CheckDue() { // while states arrive, there are no heartbeats that would check it
		if err := w.CheckCredentials(ctx); err != nil {
			return err
		}
	}
	if !slices.Contains(w.Streams.Backends.Backends(ctx, w.Caller.Principal), t.Backend) {
		return nil
	}
	members := method.WithoutBraces(jsonrpc.Without(t.Params, func(name string) bool { return name == "_meta" }))
	return w.Send(spec.NoteTasks, text(members), text(backendMeta(jsonrpc.Member(t.Params, "_meta"))), w.ResumeAt())
}
