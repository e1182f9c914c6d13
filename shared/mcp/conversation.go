package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/rate"
	"github.com/mcp-events/mcpevents/shared/stream"
)

// Conversation is told messages, and has context to them; [conversation.Service] does.
type Conversation interface {
	// Enabled reports whether anybody is asked to tell anything, Offers what a principal is.
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
	log          Log
	replies      *replies
	faults       faults
}

// conversationMethods are the methods that tell a message. The proposal has them as
// notifications whose answer is a "response"; which a notification cannot have. So as a
// request it is answered with its context, and as a notification the context comes as
// conversation/context: to a session on its GET stream, and outside of sessions on every listen
// of the principal that asked for it.
var conversationMethods = map[conversation.Kind]string{
	conversation.UserMessage: mcpspec.MethodUserMessage, conversation.AssistantResponse: mcpspec.MethodAssistant,
}

// kind is which kind of message a call tells; empty for other methods.
func (c *call) kind() conversation.Kind {
	for kind, name := range conversationMethods {
		if name == c.msg.Method {
			return kind
		}
	}
	return ""
}

const metaCut = `"` + MetaContextCut + `":true`

// tell serves a message that is told by a request.
func (h *conversations) tell(ctx context.Context, c *call) (result, error) {
	told, _, err := h.context(ctx, c)
	if err != nil {
		return result{}, err
	}
	var r result
	if members := told.Members(); members != nil {
		r.members = [][]byte{members}
	}
	if told.Cut {
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
	told, err := h.conversation.Forward(ctx, conversation.Caller{Principal: c.principal, Client: c.client()}, m)
	return told, m, err
}

// handles reports whether a message of a conversation is told by a notification.
func (h *conversations) handles(c *call) bool {
	return c.msg.Kind == jsonrpc.Notification && c.kind() != "" && h.conversation != nil &&
		h.conversation.Offers(c.request.Context(), c.principal).Has(c.kind())
}

// accept serves such a notification. Its answer comes when the context is on its way, for on
// Lambda nothing goes on behind it.
func (h *conversations) accept(w http.ResponseWriter, c *call) {
	err := h.handle(c)
	switch kind := fault.KindOf(err); {
	case err == nil:
		w.WriteHeader(http.StatusAccepted)
	case kind == fault.Forbidden:
		h.replies.fault(w, c, method{scope: auth.ScopeRead}, err)
	case kind == fault.Internal || kind == fault.Unavailable:
		w.Header().Set("Retry-After", "1")
		sendError(w, http.StatusServiceUnavailable, nil, h.faults.translate(c.request.Context(), err, c.version, coreMethods))
	case kind == fault.Exhausted:
		if after, ok := fault.DataOf(err).(rate.RetryAfter); ok {
			w.Header().Set("Retry-After", strconv.Itoa(after.Seconds))
		}
		sendError(w, http.StatusTooManyRequests, nil, h.faults.translate(c.request.Context(), err, c.version, coreMethods))
	default:
		sendError(w, http.StatusBadRequest, nil, h.faults.translate(c.request.Context(), err, c.version, coreMethods))
	}
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

// handle gathers the context of a message told by a notification, and sends it on its way.
func (h *conversations) handle(c *call) error {
	if err := c.principal.Require(auth.ScopeRead); err != nil {
		return err
	}
	ctx := c.request.Context()
	told, m, err := h.context(ctx, c)
	if err != nil || h.log == nil {
		return err
	}
	params := jsonrpc.AppendString([]byte(`"messageId":`), m.ID)
	if members := told.Members(); members != nil {
		params = append(append(params, ','), members...)
	}
	topic := stream.TopicConversation(c.principal.ID)
	if c.session != nil {
		topic = stream.TopicSession(c.session.Key)
	}
	notice := contextNotice{h.conversation.Seal(c.principal, params), told.Cut}
	return h.log.NotifyFor(ctx, c.principal.Workspace, topic, contextLife, mustJSON(notice))
}

var topicConversations = stream.TopicConversation("")

// sendContext sends a context to who told the message.
func (o *streamWriter) sendContext(ctx context.Context, d stream.Delivery) error {
	var n contextNotice
	if json.Unmarshal(d.Notice, &n) != nil || o.streams.conversation == nil {
		return nil // of another version
	}
	text, err := o.streams.conversation.Open(o.principal, n.Context)
	if err != nil { // not written by this program; the others are still good
		o.streams.faults.log(ctx, "sealed context not opened", err)
		return nil
	}
	var meta func([]byte) []byte
	if n.Cut {
		meta = func(b []byte) []byte { return append(b, metaCut...) }
	}
	return o.send(mcpspec.NoteContext, func(b []byte) []byte { return append(b, text...) }, meta, d.Cursor)
}
