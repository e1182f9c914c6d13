package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Conversation handles messages, and has context to them; [conversation.Service] does.
type Conversation interface {
	// Enabled reports whether any principal is asked for messages, Offers for which of them one is.
	Enabled(ctx context.Context) bool
	Offers(ctx context.Context, p auth.Principal) conversation.Offers
	Forward(ctx context.Context, c conversation.Caller, m *conversation.Message) (*conversation.Context, error)
	// Seal and Open keep a context from who reads the store.
	Seal(p auth.Principal, text []byte) []byte
	Open(p auth.Principal, sealed []byte) ([]byte, error)
}

// conversations hands on what clients say in conversations.
type conversations struct {
	conversation Conversation
	feeds        *stream.Tails
}

// kind is which kind of message a call has; empty for other methods. The proposal has them as
// notifications whose answer is a "response"; which a notification cannot have. So as a
// request it is answered with its context, and as a notification the context comes as
// conversation/context: to a session on its GET stream, and outside of sessions on every listen
// of the principal that asked for it.
func (c *call) kind() conversation.Kind {
	for _, kind := range conversation.Kinds {
		if kind.Method() == c.msg.Method {
			return kind
		}
	}
	return ""
}

const metaCut = `"` + MetaContextCut + `":true`

// answer serves a message that comes as a request.
func (h *conversations) answer(ctx context.Context, c *call) (result, error) {
	found, _, err := h.context(ctx, c)
	if err != nil {
		return result{}, err
	}
	var r result
	if members := found.Members(); members != nil {
		r.members = [][]byte{members}
	}
	if found.Cut {
		r.meta = []byte(metaCut)
	}
	return r, nil
}

// context reads the message and gathers the context to it.
func (h *conversations) context(ctx context.Context, c *call) (*conversation.Context, *conversation.Message, error) {
	m, err := conversation.Parse(c.kind(), c.msg.Params)
	if err != nil {
		return nil, nil, err
	}
	found, err := h.conversation.Forward(ctx, conversation.Caller{Principal: c.principal, Client: c.client()}, m)
	return found, m, err
}

// handles reports whether a message of a conversation comes as a notification.
func (h *conversations) handles(c *call) bool {
	return c.msg.Kind == jsonrpc.Notification && c.kind() != "" && h.conversation != nil &&
		h.conversation.Offers(c.request.Context(), c.principal).Has(c.kind())
}

// contextLife is how long a context waits in the log for a stream that was cut off. It is
// of use only to the message that it belongs to.
const contextLife = 2 * time.Minute

// contextNotice carries a context through the log, sealed.
type contextNotice struct {
	Context []byte `json:"context,omitempty"`
	Cut     bool   `json:"cut,omitempty"`
}

var contextPrefix = []byte(`{"context":`)

func isContext(notice json.RawMessage) bool { return bytes.HasPrefix(notice, contextPrefix) }

// handle gathers the context of a message that came as a notification, and sends it on its way.
func (h *conversations) handle(c *call) error {
	if err := c.principal.Require(auth.ScopeRead); err != nil {
		return err
	}
	ctx := c.request.Context()
	found, m, err := h.context(ctx, c)
	if err != nil {
		return err
	}
	params := jsonrpc.AppendString([]byte(`"messageId":`), m.ID)
	if members := found.Members(); members != nil {
		params = append(append(params, ','), members...)
	}
	topic := stream.TopicConversation(c.principal.ID)
	if c.session != nil {
		topic = stream.TopicSession(c.session.Key)
	}
	notice := contextNotice{h.conversation.Seal(c.principal, params), found.Cut}
	return h.feeds.Log.NotifyFor(ctx, c.principal.Workspace, topic, contextLife, jsonrpc.Encode(notice))
}

var topicConversations = stream.TopicConversation("")

// sendContext sends a context to who sent the message.
func (w *streamWriter) sendContext(ctx context.Context, d stream.Delivery) error {
	var n contextNotice
	if json.Unmarshal(d.Notice, &n) != nil || w.streams.conversation == nil {
		return nil // of another version
	}
	members, err := w.streams.conversation.Open(w.principal, n.Context)
	if err != nil { // not written by this program; the others are still good
		w.streams.faults.log(ctx, "sealed context not opened", err)
		return nil
	}
	meta := ""
	if n.Cut {
		meta = metaCut
	}
	return w.send(spec.NoteContext, text(members), text(meta), d.Cursor)
}
