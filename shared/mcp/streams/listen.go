package streams

import (
	"context"
	"encoding/json"
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

// filter is what a listen asks for, and what is honoured of it.
type filter struct {
	ToolsListChanged      bool     `json:"toolsListChanged,omitempty"`
	PromptsListChanged    bool     `json:"promptsListChanged,omitempty"`
	ResourcesListChanged  bool     `json:"resourcesListChanged,omitempty"`
	EventsListChanged     bool     `json:"eventsListChanged,omitempty"`
	ResourceSubscriptions []string `json:"resourceSubscriptions,omitempty"`
	// ConversationContext is ours: what comes of messages that the principal sent by
	// notifications.
	ConversationContext bool `json:"conversationContext,omitempty"`
}

// acknowledge sends the first message of a listen: the part of its filter that is honoured, and whether the log still reached back
// to the cursor.
func (w *Writer) acknowledge(honoured filter) error {
	members, meta := append([]byte(`"notifications":`), jsonrpc.Encode(honoured)...), ""
	if w.Feed.Truncated {
		meta = metaTruncated
	}
	return w.Send(spec.NoteAcknowledged, text(members), text(meta), w.ResumeAt())
}

// Listen serves subscriptions/listen.
func (st *Streams) Listen() method.Handler { return Streaming{Streams: st, Open: st.openListen} }

// openListen opens the stream of a subscriptions/listen (revision 2026-07-28): it makes out what is asked for, and opens the
// feed of what is honoured.
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
	honoured, err := o.honour(ctx, asked)
	if err != nil {
		return nil, err
	}
	o.Framing = Framing{
		Begin: func() error { return o.acknowledge(honoured) },
		End:   func(c *method.Call, _ error) { o.Complete(c, o.ResumeAt()) },
	}
	request := stream.Request{Workspace: c.Principal.Workspace, Topics: o.topics(ctx), Cursor: cursor}
	for _, t := range o.targets {
		t.addTo(&request)
	}
	if err := o.Open(ctx, request); err != nil {
		return nil, err
	}
	unwant, err := o.want(ctx, randomText(16), time.Now().Add(st.Admission.maxAge+time.Minute))
	if err != nil {
		return o, err
	}
	o.ends = append(o.ends, unwant)
	return o, nil
}

// Complete ends a stream on the server's own account with its result.
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
	}
	return f, nil
}

// readCursor is where a listen goes on; empty is now.
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

// honour takes of what was asked for what is served here and open to the caller. A
// URI that is unknown, or not the caller's to have, is left out.
func (w *Writer) honour(ctx context.Context, asked filter) (filter, error) {
	w.interests.resources = asked.ResourcesListChanged && w.Streams.Methods.Has(spec.MethodResources)
	w.interests.events = asked.EventsListChanged && w.Streams.Methods.Has(spec.MethodEvents)
	w.interests.contexts = asked.ConversationContext && w.Streams.Conversation != nil && w.Streams.Conversation.Offers(ctx, w.Caller.Principal).Any()
	// There may be no backend yet: these lists are notified of when one comes, and acknowledged when one is there.
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
	cat, err := w.Streams.Catalogs.Of(ctx, w.Caller.Principal)
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
