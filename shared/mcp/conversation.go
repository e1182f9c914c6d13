package mcp

import (
	"context"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

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
