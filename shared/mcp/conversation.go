package mcp

import (
	"context"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/mcp/streams"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

type conversations struct {
	conversation streams.Conversation
	feeds        *stream.Tails
}

// conversationKind returns the kind of a conversation's message, or an empty text for other methods.
//
// In the conversation events proposal, clients send messages as notifications, and the server answers them with a "response",
// which a notification cannot have. So this server accepts a message in two forms. It answers a request with the context for
// the message. For a notification, it sends the context as conversation/context: in a session on its GET stream, and otherwise
// on each of the principal's subscriptions/listen streams that asks for contexts.
func conversationKind(c *method.Call) conversation.Kind {
	for _, kind := range conversation.Kinds {
		if kind.Method() == c.Msg.Method {
			return kind
		}
	}
	return ""
}

func (h *conversations) answer(ctx context.Context, c *method.Call) (method.Result, error) {
	found, _, err := h.collectContext(ctx, c)
	if err != nil {
		return method.Result{}, err
	}
	var r method.Result
	if members := found.Members(); members != nil {
		r.Members = [][]byte{members}
	}
	if found.Cut {
		r.Meta = []byte(streams.MetaCut)
	}
	return r, nil
}

func (h *conversations) collectContext(ctx context.Context, c *method.Call) (*conversation.Context, *conversation.Message, error) {
	m, err := conversation.Parse(conversationKind(c), c.Msg.Params)
	if err != nil {
		return nil, nil, err
	}
	found, err := h.conversation.Forward(ctx, c.Client(), m)
	return found, m, err
}

// handles reports whether the call is a notification with a message of a conversation that this server asks the caller to send.
func (h *conversations) handles(c *method.Call) bool {
	return c.Msg.Kind == jsonrpc.Notification && conversationKind(c) != "" && h.conversation != nil &&
		h.conversation.Offers(c.Request.Context(), c.Principal).Has(conversationKind(c))
}

// handle collects the context for a message that arrived as a notification, and sends it to the client's open streams.
func (h *conversations) handle(c *method.Call) error {
	if err := c.Principal.Require(auth.ScopeRead); err != nil {
		return err
	}
	ctx := c.Request.Context()
	found, m, err := h.collectContext(ctx, c)
	if err != nil {
		return err
	}
	params := jsonrpc.AppendString([]byte(`"messageId":`), m.ID)
	if members := found.Members(); members != nil {
		params = append(append(params, ','), members...)
	}
	topic := stream.TopicConversation(c.Principal.ID)
	if c.Session != nil {
		topic = stream.TopicSession(c.Session.Key)
	}
	notice := streams.ContextNotice{Context: h.conversation.Seal(c.Principal, params), Cut: found.Cut}
	return h.feeds.Log.NotifyFor(ctx, c.Principal.Workspace, topic, streams.ContextLife, jsonrpc.Encode(notice))
}
