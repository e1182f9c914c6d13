package mcp

import (
	"context"
	"encoding/json"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
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
func (w *streamWriter) acknowledge(honoured filter) error {
	members, meta := append([]byte(`"notifications":`), jsonrpc.Encode(honoured)...), ""
	if w.feed.Truncated {
		meta = metaTruncated
	}
	return w.send(spec.NoteAcknowledged, text(members), text(meta), w.resumeAt())
}

// openListen opens the stream of a subscriptions/listen (revision 2026-07-28): it makes out what is asked for, and opens the
// feed of what is honoured.
func (st *streams) openListen(ctx context.Context, c *call) (*streamWriter, error) {
	asked, err := c.filter()
	if err != nil {
		return nil, err
	}
	cursor, err := c.cursor()
	if err != nil {
		return nil, err
	}
	o := &streamWriter{
		kind: kindListen, streams: st, caller: caller{principal: c.principal, header: c.request.Header},
		interests: interests{payloads: declares(jsonrpc.Member(c.meta, spec.MetaCapabilities), Extension)}, targets: map[string]target{},
	}
	honoured, err := o.honour(ctx, asked)
	if err != nil {
		return nil, err
	}
	o.framing = framing{
		begin: func() error { return o.acknowledge(honoured) },
		end:   func(c *call, _ error) { o.complete(c, o.resumeAt()) },
	}
	request := stream.Request{Workspace: c.principal.Workspace, Topics: o.topics(ctx), Cursor: cursor}
	for _, t := range o.targets {
		t.addTo(&request)
	}
	if err := o.open(ctx, request); err != nil {
		return nil, err
	}
	unwant, err := o.want(ctx, randomText(16), time.Now().Add(st.admission.maxAge+time.Minute))
	if err != nil {
		return o, err
	}
	o.ends = append(o.ends, unwant)
	return o, nil
}

// complete ends a stream on the server's own account with its result.
func (w *streamWriter) complete(c *call, cursor string) {
	text := w.streams.replies.appendResult(nil, c, result{meta: w.appendIDs(nil, cursor)})
	_ = w.write(sse.Append(nil, sse.Event{Data: text})) // the stream ends either way
}

// filter reads the notifications that a listen asks for.
func (c *call) filter() (f filter, err error) {
	raw := c.param("notifications")
	if len(raw) == 0 || raw[0] != '{' {
		return f, invalidParams("notifications must be an object")
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
				return f, invalidParams("%s must be a boolean", name)
			}
		}
		if name == "resourceSubscriptions" && !null && json.Unmarshal(value, &f.ResourceSubscriptions) != nil {
			return f, invalidParams("resourceSubscriptions must be an array of strings")
		}
	}
	return f, nil
}

// cursor is where a listen goes on; empty is now.
func (c *call) cursor() (string, error) {
	raw := jsonrpc.Member(c.meta, MetaCursor)
	if raw == nil {
		return "", nil
	}
	cursor, ok := jsonrpc.String(raw)
	if !ok || cursor == "" {
		return "", invalidParams("%s must be a cursor of this server", MetaCursor)
	}
	return cursor, nil
}

// honour takes of what was asked for what is served here and open to the caller. A
// URI that is unknown, or not the caller's to have, is left out.
func (w *streamWriter) honour(ctx context.Context, asked filter) (filter, error) {
	w.interests.resources = asked.ResourcesListChanged && w.streams.methods.has(spec.MethodResources)
	w.interests.events = asked.EventsListChanged && w.streams.methods.has(spec.MethodEvents)
	w.interests.contexts = asked.ConversationContext && w.streams.conversation != nil && w.streams.conversation.Offers(ctx, w.caller.principal).Any()
	// There may be no backend yet: these lists are notified of when one comes, and acknowledged when one is there.
	w.interests.tools = asked.ToolsListChanged && w.streams.methods.has(spec.MethodToolsList)
	w.interests.prompts = asked.PromptsListChanged && w.streams.methods.has(spec.MethodPromptsList)
	var offers api.Capabilities
	if backends := w.streams.backends; (w.interests.tools || w.interests.prompts) && backends.Any(ctx) {
		offers = backends.Capabilities(ctx, api.Client{Principal: w.caller.principal})
	}
	out := filter{
		ToolsListChanged: w.interests.tools && offers.Tools, PromptsListChanged: w.interests.prompts && offers.Prompts,
		ResourcesListChanged: w.interests.resources, EventsListChanged: w.interests.events, ConversationContext: w.interests.contexts,
	}
	if len(asked.ResourceSubscriptions) == 0 {
		return out, nil
	}
	if most := w.streams.maxURIs; len(asked.ResourceSubscriptions) > most {
		return out, session.LimitReached("streamURIs", most)
	}
	cat, err := w.streams.catalogs.of(ctx, w.caller.principal)
	if err != nil {
		return out, err
	}
	open := 0
	for _, uri := range asked.ResourceSubscriptions {
		t, err := w.streams.targets.resolve(ctx, cat, w.caller.principal, uri)
		switch kind := fault.KindOf(err); {
		case err == nil:
		case kind == fault.Internal || kind == fault.Unavailable:
			return out, err
		default:
			continue
		}
		if _, twice := w.targets[t.uri]; twice {
			continue
		}
		if open += t.open(); open > w.streams.maxPatterns {
			return out, session.LimitReached("streamPatterns", w.streams.maxPatterns)
		}
		w.targets[t.uri] = t
		out.ResourceSubscriptions = append(out.ResourceSubscriptions, uri)
	}
	return out, nil
}
