package streams

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Conversation forwards messages of conversations to context providers, and returns their context. [conversation.Service] implements it.
type Conversation interface {
	// Enabled reports whether any provider is configured. Offers returns the kinds of messages that the principal may send.
	Enabled(ctx context.Context) bool
	Offers(ctx context.Context, p auth.Principal) conversation.Offers
	Forward(ctx context.Context, c conversation.Caller, m *conversation.Message) (*conversation.Context, error)
	// Seal and Open encrypt a context, so that readers of the store do not see it.
	Seal(p auth.Principal, text []byte) []byte
	Open(p auth.Principal, sealed []byte) ([]byte, error)
}

// MetaCut is the member of _meta that marks an incomplete context.
const MetaCut = `"` + spec.MetaContextCut + `":true`

// ContextLife is how long a context waits in the log for an interrupted stream. It is short because a context is useful only for its
// message.
const ContextLife = 2 * time.Minute

// ContextNotice carries a sealed context through the log.
type ContextNotice struct {
	Context []byte `json:"context,omitempty"`
	Cut     bool   `json:"cut,omitempty"`
}

var contextPrefix = []byte(`{"context":`)

func isContext(notice json.RawMessage) bool { return bytes.HasPrefix(notice, contextPrefix) }

var topicConversations = stream.TopicConversation("")

// sendContext sends a context to the client that sent the message.
func (w *Writer) sendContext(ctx context.Context, d stream.Delivery) error {
	var n ContextNotice
	if json.Unmarshal(d.Notice, &n) != nil || w.Streams.Conversation == nil {
		return nil // a notice of another version
	}
	members, err := w.Streams.Conversation.Open(w.Caller.Principal, n.Context)
	if err != nil { // skip only this context
		w.Streams.Faults.LogError(ctx, "sealed context not opened", err)
		return nil
	}
	meta := ""
	if n.Cut {
		meta = MetaCut
	}
	return w.Send(spec.NoteContext, text(members), text(meta), d.Cursor)
}
