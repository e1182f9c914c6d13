package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/sse"
	"github.com/mcp-events/mcpevents/shared/stream"
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

// listen serves subscriptions/listen (revision 2026-07-28): the response is a
// stream that stays open.
func (st *streams) listen(w http.ResponseWriter, c *call) error {
	return st.hold(w, c, func(ctx context.Context) (*streamWriter, response, error) {
		o, honoured, err := st.openListen(ctx, c)
		return o, listening{o, honoured}, err
	})
}

// response is the first and the last message of a stream that answers a request.
type response interface {
	begin() error
	// end sends why the stream ends, if the client is to know, and returns the cursor of its result; empty for none.
	end(ctx context.Context, why error) (cursor string)
}

// listening is a listen as a response.
type listening struct {
	*streamWriter
	honoured filter
}

func (l listening) begin() error { return l.acknowledge(l.honoured) }

func (l listening) end(context.Context, error) string { return l.resumeAt() }

// held is an open stream of the stateless revisions. What only its beginning and
// its end need is in functions of their own: hold waits on its stack.
type held struct {
	*streamWriter
	response response
	ctx      context.Context
	ends     []func() // in the order in which they began
	err      error    // of the first message
}

// hold keeps the response of a request open as a stream of the stateless revisions. open makes the stream writer, and what its first and last messages are.
func (st *streams) hold(w http.ResponseWriter, c *call, open func(context.Context) (*streamWriter, response, error)) error {
	h := &held{}
	defer h.end()
	if started, err := st.start(h, w, c, open); !started {
		return err
	}
	if h.err == nil {
		h.err = h.run(h.ctx)
	}
	h.ended(c.request, h.err)
	h.finish(c)
	return nil
}

// start opens the stream and sends its first message.
func (st *streams) start(h *held, w http.ResponseWriter, c *call, open func(context.Context) (*streamWriter, response, error)) (started bool, err error) {
	ctx, leave := st.admission.admit(w, c.request, c.principal, c.msg.ID)
	if leave == nil {
		return false, nil
	}
	h.ctx, h.ends = ctx, append(h.ends, leave)
	o, r, err := open(ctx)
	if err != nil {
		return false, err
	}
	h.streamWriter, h.response, h.ends = o, r, append(h.ends, o.feed.Close)
	unwant, err := o.want(ctx, randomText(16), time.Now().Add(st.maxAge+time.Minute))
	if err != nil {
		return false, err
	}
	h.ends = append(h.ends, unwant)
	// Of the request only the id is needed from here on; the body must not live as
	// long as the stream.
	o.subscriptionID = bytes.Clone(c.msg.ID)
	c.msg, c.meta, c.body = jsonrpc.Message{ID: o.subscriptionID}, nil, nil
	var done func() bool
	o.out, done = st.admission.writer(w)
	h.ends = append(h.ends, func() { done() })
	h.err = r.begin()
	return true, nil
}

// end gives back what the stream held, the last first.
func (h *held) end() {
	for _, end := range slices.Backward(h.ends) {
		end()
	}
}

// finish answers that the stream is over, unless it knows.
func (h *held) finish(c *call) {
	if errors.Is(h.err, errWriting) || c.request.Context().Err() != nil {
		return // the client closed the stream: nothing more may be sent
	}
	h.complete(c, h.response.end(h.ctx, h.err))
}

// openListen makes out what is asked for and opens the feed of what is honoured.
func (st *streams) openListen(ctx context.Context, c *call) (*streamWriter, filter, error) {
	asked, err := c.filter()
	if err != nil {
		return nil, asked, err
	}
	cursor, err := c.cursor()
	if err != nil {
		return nil, asked, err
	}
	o := &streamWriter{
		kind: kindListen, streams: st, principal: c.principal, header: c.request.Header,
		payloads: declares(jsonrpc.Member(c.meta, mcpspec.MetaCapabilities), Extension),
		targets:  map[string]target{},
	}
	o.framing = plain{o}
	honoured, err := o.honour(ctx, asked)
	if err != nil {
		return nil, asked, err
	}
	request := stream.Request{Workspace: c.principal.Workspace, Topics: o.topics(ctx), Cursor: cursor}
	for _, t := range o.targets {
		request.Patterns = append(request.Patterns, t.patterns...)
		if t.topic != "" {
			request.Topics = append(request.Topics, t.topic)
		}
	}
	o.feed, err = st.feeds.Open(ctx, request)
	return o, honoured, err
}

// acknowledge sends the first message: what is honoured, and whether the log
// still reached back to the cursor.
func (o *streamWriter) acknowledge(honoured filter) error {
	members := func(b []byte) []byte { return append(append(b, `"notifications":`...), mustJSON(honoured)...) }
	var truncated func([]byte) []byte
	if o.feed.Truncated {
		truncated = func(b []byte) []byte { return append(b, `"`+MetaTruncated+`":true`...) }
	}
	return o.send(mcpspec.NoteAcknowledged, members, truncated, o.resumeAt())
}

// complete ends a stream on the server's own account with its result.
func (o *streamWriter) complete(c *call, cursor string) {
	text := o.streams.replies.appendResult(nil, c, result{meta: o.appendIDs(nil, cursor)})
	_ = o.write(sse.Append(nil, sse.Event{Data: text})) // the stream ends either way
}

// filter reads the notifications that a listen asks for.
func (c *call) filter() (f filter, err error) {
	raw := c.param("notifications")
	if len(raw) == 0 || raw[0] != '{' {
		return f, invalidParams("notifications must be an object")
	}
	for key, value := range jsonrpc.Members(raw) {
		name := string(key)
		switch name {
		case "toolsListChanged", "promptsListChanged", "resourcesListChanged", "eventsListChanged", "conversationContext":
			on := string(value) == "true"
			if !on && string(value) != "false" && string(value) != "null" {
				return f, invalidParams("%s must be a boolean", name)
			}
			switch name {
			case "toolsListChanged":
				f.ToolsListChanged = on
			case "promptsListChanged":
				f.PromptsListChanged = on
			case "resourcesListChanged":
				f.ResourcesListChanged = on
			case "eventsListChanged":
				f.EventsListChanged = on
			case "conversationContext":
				f.ConversationContext = on
			}
		case "resourceSubscriptions":
			if string(value) == "null" {
				continue
			}
			if json.Unmarshal(value, &f.ResourceSubscriptions) != nil {
				return f, invalidParams("resourceSubscriptions must be an array of strings")
			}
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
func (o *streamWriter) honour(ctx context.Context, asked filter) (filter, error) {
	o.resources = asked.ResourcesListChanged && o.streams.methods.has(mcpspec.MethodResources)
	o.events = asked.EventsListChanged && o.streams.methods.has(mcpspec.MethodEvents)
	o.contexts = asked.ConversationContext && o.streams.conversation != nil && o.streams.conversation.Offers(ctx, o.principal).Any()
	// There may be no backend yet: these lists are notified of when one comes, and acknowledged when one is there.
	o.tools = asked.ToolsListChanged && o.streams.methods.has(mcpspec.MethodToolsList)
	o.prompts = asked.PromptsListChanged && o.streams.methods.has(mcpspec.MethodPromptsList)
	var offers api.Capabilities
	if backends := o.streams.backends; (o.tools || o.prompts) && backends.Any(ctx) {
		offers = backends.Capabilities(ctx, api.Client{Principal: o.principal})
	}
	out := filter{
		ToolsListChanged: o.tools && offers.Tools, PromptsListChanged: o.prompts && offers.Prompts,
		ResourcesListChanged: o.resources, EventsListChanged: o.events, ConversationContext: o.contexts,
	}
	if len(asked.ResourceSubscriptions) == 0 {
		return out, nil
	}
	if most := o.streams.maxURIs; len(asked.ResourceSubscriptions) > most {
		return out, session.LimitReached("streamURIs", most)
	}
	cat, err := o.streams.catalogs.of(ctx, o.principal)
	if err != nil {
		return out, err
	}
	open := 0
	for _, uri := range asked.ResourceSubscriptions {
		t, err := o.streams.targets.resolve(ctx, cat, o.principal, uri)
		switch kind := fault.KindOf(err); {
		case err == nil:
		case kind == fault.Internal || kind == fault.Unavailable:
			return out, err
		default:
			continue
		}
		if _, twice := o.targets[t.uri]; twice {
			continue
		}
		if open += t.open(); open > o.streams.maxPatterns {
			return out, session.LimitReached("streamPatterns", o.streams.maxPatterns)
		}
		o.targets[t.uri] = t
		out.ResourceSubscriptions = append(out.ResourceSubscriptions, uri)
	}
	return out, nil
}
