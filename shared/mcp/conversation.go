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

// conversationKind returns the kind of a conversation message: a user's message or an assistant's response. It returns "" for methods
// outside of the conversation events proposal.
//
// In the proposal, clients send these messages as notifications and expect a response with context for the model. JSON-RPC has no
// response to a notification, so this server accepts a message in two forms:
//
//   - As a request. The response has the context for the message.
//   - As a notification. This server then sends the context as the notification conversation/context: in a session on its GET stream, and
//     otherwise on each of the principal's subscriptions/listen streams that asks for contexts.
func conversationKind(c *method.Call) conversation.Kind {
	for _, kind := range conversation.Kinds {
		if kind.Method() == c.Msg.Method {
			return kind
		}
	}
	return ""
}

func (e *Endpoint) answerConversation(ctx context.Context, c *method.Call) (method.Result, error) {
	found, _, err := e.collectContext(ctx, c)
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

func (e *Endpoint) collectContext(ctx context.Context, c *method.Call) (*conversation.Context, *conversation.Message, error) {
	m, err := conversation.Parse(conversationKind(c), c.Msg.Params)
	if err != nil {
		return nil, nil, err
	}
	found, err := e.options.Conversation.Forward(ctx, c.Client(), m)
	return found, m, err
}

// expectsConversation reports whether the call is a notification with a conversation message that this server asked for. The server's
// capabilities tell each caller which kinds of messages to send.
func (e *Endpoint) expectsConversation(c *method.Call) bool {
	return c.Msg.Kind == jsonrpc.Notification && conversationKind(c) != "" && e.options.Conversation != nil &&
		e.options.Conversation.Offers(c.Request.Context(), c.Principal).Has(conversationKind(c))
}

// handleConversation serves a conversation message that arrived as a notification. It forwards the message to the context providers to
// which the user has consented, and sends the context that they return on the client's open streams.
func (e *Endpoint) handleConversation(c *method.Call) error {
	if err := c.Principal.Require(auth.ScopeRead); err != nil {
		return err
	}
	ctx := c.Request.Context()
	found, m, err := e.collectContext(ctx, c)
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
	notice := streams.ContextNotice{Context: e.options.Conversation.Seal(c.Principal, params), Cut: found.Cut}
	return e.options.Feeds.Log.NotifyFor(ctx, c.Principal.Workspace, topic, streams.ContextLife, jsonrpc.Encode(notice))
}
