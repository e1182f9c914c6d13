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

const MetaCut = `"` + spec.MetaContextCut + `":true`

// ContextLife is how long a context waits in the log for a stream that was cut off. It is
// of use only to the message that it belongs to.
const ContextLife = 2 * time.Minute

// ContextNotice carries a context through the log, sealed.
type ContextNotice struct {
	Context []byte `json:"context,omitempty"`
	Cut     bool   `json:"cut,omitempty"`
}

var contextPrefix = []byte(`{"context":`)

func isContext(notice json.RawMessage) bool { return bytes.HasPrefix(notice, contextPrefix) }

var topicConversations = stream.TopicConversation("")

// sendContext sends a context to who sent the message.
func (w *Writer) sendContext(ctx context.Context, d stream.Delivery) error {
	var n ContextNotice
	if json.Unmarshal(d.Notice, &n) != nil || w.Streams.Conversation == nil {
		return nil // of another version
	}
	members, err := w.Streams.Conversation.Open(w.Caller.Principal, n.Context)
	if err != nil { // not written by this program; the others are still good
		w.Streams.Faults.LogError(ctx, "sealed context not opened", err)
		return nil
	}
	meta := ""
	if n.Cut {
		meta = MetaCut
	}
	return w.Send(spec.NoteContext, text(members), text(meta), d.Cursor)
}
